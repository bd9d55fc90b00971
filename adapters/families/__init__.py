"""The families of checkpoints: how each is recognised, which library runs it, and which models are refused."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.formats.neuralforecast_directory import FAMILY as NEURALFORECAST
from hrx.adapters.formats.tslib_run import FAMILY as TSLIB
from hrx.install import install_command


@dataclass(frozen=True)
class Family:
    """How checkpoints of a family are recognised, and which library runs them."""

    name: str
    loader: str
    """`module:Class` or `module:function`, called as `loader(checkpoint, identity) -> Forecaster`."""
    distribution: str
    """The PyPI distribution of the family's library."""
    extra: str
    also: tuple[str, ...] = ()
    """Other distributions that compute the forecast; their versions are part of the identity."""
    architectures: tuple[str, ...] = ()
    """Values of `architectures` in `config.json`."""
    config_keys: tuple[str, ...] = ()
    """Keys that together identify its `config.json`, for a library that writes no `architectures`."""
    files: str = ""
    """A glob pattern of its weight files, for a library that writes no `config.json`."""
    tensors: tuple[str, ...] = ()
    """Tensor names that together identify its weights, for a release whose `config.json` is absent or another's."""
    revision_selector: str = ""
    """`module:function`, called as `(hub_id, lookback, horizon) -> revision`, for one release per setting."""
    unpinned: str = ""
    """A requirement that pins an older torch than it needs: installed without dependencies, which are in the extra."""
    licence_note: str = ""
    """Terms of the weights or of a library that a user may not expect, as a sentence."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether the content of a checkpoint identifies this family."""
        if self.files and any(checkpoint.path.glob(self.files)):
            return True
        if self.tensors and checkpoint.tensor_names.issuperset(self.tensors):
            return True
        if not (checkpoint.path / "config.json").exists():
            return False
        named = set(checkpoint.config.get("architectures") or [])
        marked = bool(self.config_keys) and not named and set(self.config_keys) <= set(checkpoint.config)
        return marked or bool(named & set(self.architectures))

    @property
    def installed(self) -> str | None:
        """The installed version of the family's library, or None."""
        return _version(self.distribution)

    @property
    def versions(self) -> str:
        """The distributions that compute its forecasts with their versions, as in `Identity.library`."""
        return ", ".join(f"{name} {_version(name)}" for name in (self.distribution, *self.also))

    @property
    def install_command(self) -> str:
        """Installs the family's library into this environment."""
        return install_command(self.extra, self.unpinned)


# fmt: off
BUILT_IN = (
    Family("chronos-bolt", "hrx.adapters.families.chronos:ChronosBolt", "chronos-forecasting", "chronos-bolt",
           also=("transformers",), architectures=("ChronosBoltModelForForecasting",)),
    Family("chronos-2", "hrx.adapters.families.chronos:Chronos2", "chronos-forecasting", "chronos-2",
           also=("transformers",), architectures=("Chronos2Model",)),
    Family("ttm", "hrx.adapters.families.ttm:TinyTimeMixer", "granite-tsfm", "ttm",
           also=("transformers",), architectures=("TinyTimeMixerForPrediction", "TinyTimeMixerForDecomposedPrediction"),
           revision_selector="hrx.adapters.families.ttm:select_revision"),
    Family("patchtst-fm", "hrx.adapters.families.granite:PatchTSTFM", "granite-tsfm", "patchtst-fm",
           also=("transformers",), architectures=("PatchTSTFMForPrediction",)),
    Family("flowstate", "hrx.adapters.families.granite:FlowState", "granite-tsfm", "flowstate",
           also=("transformers",), architectures=("FlowStateForPrediction",)),
    Family("timesfm-2.5", "hrx.adapters.families.timesfm:TimesFM25", "timesfm", "timesfm",
           architectures=("TimesFmModelForPrediction",), config_keys=("torch_compile",),
           tensors=("tokenizer.hidden_layer.weight", "output_projection_quantiles.output_layer.weight")),
    Family("timesfm-2.5-hf", "hrx.adapters.families.timesfm_transformers:TimesFM25Transformers", "transformers",
           "timesfm-transformers", architectures=("TimesFm2_5ModelForPrediction",),
           tensors=("model.input_ff_layer.input_layer.weight", "output_projection_quantiles.output_layer.weight")),
    Family("timesfm-3", "hrx.adapters.families.timesfm:TimesFM3", "timesfm", "timesfm",
           config_keys=("input_patch_len", "output_patch_len", "residual_block_config", "transformer_config")),
    Family("moirai-2", "hrx.adapters.families.moirai_2:Moirai2", "uni2ts", "moirai-2",
           config_keys=("num_predict_token", "quantile_levels", "patch_size", "max_seq_len"),
           unpinned="uni2ts==2.0.0"),
    Family("t0", "hrx.adapters.families.t0:T0", "tfc-t0", "t0", also=("rotary-embedding-torch",),
           config_keys=("embed_dim", "group_every_n", "mlp_hidden_dim", "quantile_levels")),
    Family("timestral", "hrx.adapters.families.timestral:Timestral", "timecopilot-timestral", "timestral",
           config_keys=("block_schedule", "block_size", "quantile_knots"),
           licence_note="The licence of the released weights (Modified MIT) gives no rights to companies with a "
                        "revenue of more than 20 million dollars a month: read the LICENSE beside the weights."),
    Family("timer", "hrx.adapters.families.timer_timemoe:Timer", "sktime", "timer",
           also=("transformers",), architectures=("TimerForPrediction",)),
    Family("timemoe", "hrx.adapters.families.timer_timemoe:TimeMoe", "sktime", "timemoe",
           also=("transformers",), architectures=("TimeMoeForPrediction",)),
    Family("visionts", "hrx.adapters.families.visionts:VisionTSModel", "visionts", "visionts",
           files="mae_visualize_vit_*.pth"),
    Family("tirex-2", "hrx.adapters.families.tirex_2:TiRex2", "tirex-2", "tirex-2", also=("flashrnn", "mlstm_kernels"),
           config_keys=("stack_config", "tokenizer_cfg", "scaler_cfg", "future_len"),
           licence_note="Its library needs mlstm_kernels, under the NXAI Community License: a company with more than "
                        "100 million euros of revenue a year needs a commercial licence for use in a product or "
                        "service."),
    Family("toto-2", "hrx.adapters.families.toto_2:Toto2", "timecopilot-toto-2", "toto-2",
           also=("timecopilot-dd-unit-scaling", "unit-scaling"),
           config_keys=("layer_group_size", "num_variate_layers_per_group", "variate_layer_first")),
    Family(NEURALFORECAST, "hrx.adapters.formats.neuralforecast:NeuralForecastModel", "neuralforecast",
           "neuralforecast", also=("pytorch-lightning",)),
    Family("hrx-trained", "hrx.adapters.formats.backbones:TrainedBackbone", "torch", "",
           config_keys=("hrx_trained", "backbone", "lookback", "horizon")),
)
# fmt: on
CHECKOUT = Family(TSLIB, "hrx.adapters.formats.tslib:TimeSeriesLibraryRun", "torch", "")
"""Not among the families: the library is a user's checkout, which no package installs."""


class Refused(NamedTuple):
    """A model that is recognised and cannot be audited."""

    name: str
    reason: str
    architectures: tuple[str, ...] = ()
    files: str = ""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether the content of a checkpoint identifies this model."""
        if self.files and any(checkpoint.path.glob(self.files)):
            return True
        named = (checkpoint.path / "config.json").exists() and checkpoint.config.get("architectures")
        return bool(set(named or ()) & set(self.architectures))


REFUSED = (
    Refused("Sundial", "samples its forecast, so the forecast has no input gradient", ("SundialForPrediction",)),
    Refused(
        "TabPFN-TS",
        "fits a tabular regression on each window and forecasts from calendar features, and its differentiable mode "
        "is not its official forecast",
        files="tabpfn-*.ckpt",
    ),
)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
