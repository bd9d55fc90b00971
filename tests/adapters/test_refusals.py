"""Models that the admission checks must refuse: their libraries' own code with small random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import series
from safetensors.torch import load_file
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint, differing_tensors
from hrx.adapters.contract import Forecaster, Identity, Limits, freeze
from hrx.audit.admission import AGREEMENT_LIMIT, DERIVATIVE_LIMIT, EQUIVALENCE_LIMIT, LEAST_SPREAD, Check, admit

# These libraries call functions that their dependencies have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

LOOKBACK, HORIZON = 64, 6
SAMPLES = 5


class Wrapped(Forecaster):
    """A library's call as a forecaster: the same one as `official` and as `predict`."""

    limits = Limits(lookbacks=(LOOKBACK,), longest_horizon=HORIZON)

    def __init__(self, path: Path):
        self.path = path
        self.identity = Identity(type(self).__name__, "refused", path.name, "", "")
        self.library: Any = self.open(path)

    def open(self, path: Path) -> Any:
        """Model of the library from its saved directory."""
        raise NotImplementedError

    def official(self, x: Tensor, horizon: int) -> Tensor:
        with torch.no_grad():
            return self.predict(x, horizon)

    def reload(self) -> Forecaster:
        return type(self)(self.path)


class ChronosT5(Wrapped):
    """Median of sampled paths."""

    def open(self, path: Path) -> Any:
        from chronos import ChronosPipeline

        pipeline = ChronosPipeline.from_pretrained(path)
        freeze(pipeline.model)
        return pipeline

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self.library.predict(x, prediction_length=horizon, num_samples=SAMPLES).median(dim=1).values


class GreedyChronosT5(ChronosT5):
    """Likeliest token at each step, without sampling."""

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self.library.predict(x, prediction_length=horizon, num_samples=1, top_k=1)[:, 0]


class Moment(Wrapped):
    """MOMENT opened for forecasting, zero-shot."""

    def open(self, path: Path) -> Any:
        from momentfm import MOMENTPipeline

        task = {"task_name": "forecasting", "forecast_horizon": HORIZON}
        pipeline = MOMENTPipeline.from_pretrained(path, model_kwargs=task)
        pipeline.init()
        return freeze(pipeline)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self.library(x_enc=x[:, None, :]).forecast[:, 0]


class MomentAgainstItsFile(Moment):
    """MOMENT with its parameters compared with the file."""

    def unloaded(self) -> tuple[str, ...]:
        return differing_tensors(self.library, Checkpoint(self.path, "moment", "moment").tensors())


class LagLlama(Wrapped):
    """Mean of sampled paths. Its lags lie before the context, so a window covers both."""

    def open(self, path: Path) -> Any:
        module = lag_llama_module()
        module.load_state_dict(torch.load(path / "lag-llama.ckpt", weights_only=True))
        return freeze(module)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self.library(past_target=x, past_observed_values=torch.ones_like(x)).mean(dim=1)


class Moirai1(Wrapped):
    """Median of samples from the predicted mixture."""

    def open(self, path: Path) -> Any:
        from sktime.libs.uni2ts.forecast import MoiraiForecast
        from sktime.libs.uni2ts.moirai_module import MoiraiModule

        return MoiraiForecast(
            module=freeze(MoiraiModule.from_pretrained(path)), prediction_length=HORIZON, context_length=LOOKBACK,
            target_dim=1, feat_dynamic_real_dim=0, past_feat_dynamic_real_dim=0, patch_size=8, num_samples=SAMPLES,
        )  # fmt: skip

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        past, seen = x[..., None], torch.ones_like(x, dtype=torch.bool)
        samples = self.library(past_target=past, past_observed_target=seen[..., None], past_is_pad=~seen)
        return samples.median(dim=1).values


class Sundial(Wrapped):
    """Mean of paths drawn by flow matching.

    `generate` needs an older transformers; for one token it normalises, calls `forward` and inverts the scaling.
    """

    def open(self, path: Path) -> Any:
        from sktime.libs.sundial.configuration_sundial import SundialConfig
        from sktime.libs.sundial.modeling_sundial import SundialForPrediction

        # Under transformers 5 its `from_pretrained` leaves the rotary tables, which are not in the file, uninitialised.
        model = SundialForPrediction(SundialConfig.from_pretrained(path))
        model.load_state_dict(load_file(path / "model.safetensors"))
        return freeze(model)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        mean, spread = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True, unbiased=False) + 1e-5
        samples = self.library((x - mean) / spread, max_output_length=horizon, num_samples=SAMPLES, use_cache=False)
        return samples.logits.mean(dim=1) * spread + mean


def save_chronos_t5(path: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_decoder_layers=1, num_heads=2, dropout_rate=0.0,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, architectures=["T5ForConditionalGeneration"],
        chronos_config={
            "tokenizer_class": "MeanScaleUniformBins", "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
            "context_length": LOOKBACK, "prediction_length": HORIZON, "n_tokens": 64, "n_special_tokens": 2,
            "pad_token_id": 0, "eos_token_id": 1, "use_eos_token": True, "model_type": "seq2seq",
            "num_samples": SAMPLES, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
        },
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(path)


def save_moment(path: Path) -> None:
    from momentfm import MOMENTPipeline
    from transformers import T5Config

    t5 = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu").to_dict()
    config = {
        "task_name": "reconstruction", "model_name": "MOMENT", "transformer_type": "encoder_only",
        "transformer_backbone": "google/flan-t5-small", "d_model": 16, "seq_len": LOOKBACK, "patch_len": 8,
        "patch_stride_len": 8, "t5_config": t5, "revin_affine": False,
    }  # fmt: skip
    MOMENTPipeline(config, model_kwargs={"task_name": "reconstruction"}).save_pretrained(path, config=config)


def lag_llama_module() -> Any:
    from sktime.libs.lag_llama.gluon.estimator import LagLlamaEstimator

    estimator = LagLlamaEstimator(
        prediction_length=HORIZON, context_length=32, n_layer=1, n_embd_per_head=8, n_head=2, scaling="robust",
        lags_seq=["Q"], num_parallel_samples=SAMPLES, device=torch.device("cpu"),
    )  # fmt: skip
    assert max(estimator.lags_seq) + estimator.context_length <= LOOKBACK
    return estimator.create_lightning_module()


def save_lag_llama(path: Path) -> None:
    path.mkdir()
    torch.save(lag_llama_module().state_dict(), path / "lag-llama.ckpt")


def save_moirai_1(path: Path) -> None:
    from sktime.libs.uni2ts.distribution.log_normal import LogNormalOutput
    from sktime.libs.uni2ts.distribution.mixture import MixtureOutput
    from sktime.libs.uni2ts.distribution.negative_binomial import NegativeBinomialOutput
    from sktime.libs.uni2ts.distribution.normal import NormalFixedScaleOutput
    from sktime.libs.uni2ts.distribution.student_t import StudentTOutput
    from sktime.libs.uni2ts.moirai_module import MoiraiModule

    components = [StudentTOutput(), NormalFixedScaleOutput(), NegativeBinomialOutput(), LogNormalOutput()]
    MoiraiModule(
        distr_output=MixtureOutput(components), d_model=64, num_layers=1, patch_sizes=(8, 16), max_seq_len=64,
        attn_dropout_p=0.0, dropout_p=0.0,
    ).save_pretrained(path)  # fmt: skip


def save_sundial(path: Path) -> None:
    from sktime.libs.sundial.configuration_sundial import SundialConfig
    from sktime.libs.sundial.modeling_sundial import SundialForPrediction

    config = SundialConfig(
        hidden_size=16, intermediate_size=32, output_token_lens=[HORIZON], num_hidden_layers=1, num_attention_heads=2,
        num_sampling_steps=2, flow_loss_depth=1, dropout_rate=0.0,
    )  # fmt: skip
    SundialForPrediction(config).save_pretrained(path)


def checked(kind: type[Wrapped], save: Callable[[Path], None], path: Path) -> dict[str, Check]:
    """All checks by name, of a model that is saved and opened again."""
    torch.manual_seed(0)
    save(path)
    return {check.check: check for check in admit(kind(path), series(2, LOOKBACK), HORIZON)}


def failed(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if not check.passed}


SAMPLED = [(ChronosT5, save_chronos_t5), (LagLlama, save_lag_llama), (Moirai1, save_moirai_1), (Sundial, save_sundial)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "save"), SAMPLED)
def test_a_sampled_forecast_is_refused_also_with_a_fixed_seed(
    kind: type[Wrapped], save: Callable[[Path], None], tmp_path: Path
) -> None:
    class Seeded(kind):  # type: ignore[misc, valid-type]
        def predict(self, x: Tensor, horizon: int) -> Tensor:
            torch.manual_seed(0)
            return super().predict(x, horizon)

    determinism = checked(kind, save, tmp_path / "sampled")["determinism"]
    assert not determinism.passed
    assert determinism.figure > 1000 * AGREEMENT_LIMIT
    # With a fixed seed each window draws by its position in the batch.
    checks = checked(Seeded, save, tmp_path / "seeded")
    assert checks["determinism"].passed
    assert {"isolation", "derivative"} <= failed(checks)
    assert checks["isolation"].figure > 1000 * EQUIVALENCE_LIMIT
    assert checks["derivative"].figure > DERIVATIVE_LIMIT


def test_chronos_t5_without_sampling_is_refused_because_its_gradient_flows_through_the_scale_only(
    tmp_path: Path,
) -> None:
    checks = checked(GreedyChronosT5, save_chronos_t5, tmp_path / "model")
    assert failed(checks) == {"gradient path"}
    assert checks["gradient path"].figure <= LEAST_SPREAD


def test_moment_is_refused_because_its_head_is_initialised_after_loading(tmp_path: Path) -> None:
    by_forecasts = checked(Moment, save_moment, tmp_path / "forecasts")
    by_parameters = checked(MomentAgainstItsFile, save_moment, tmp_path / "parameters")
    assert failed(by_forecasts) == failed(by_parameters) == {"trained head"}
    assert by_forecasts["trained head"].figure > 0.1
    assert by_parameters["trained head"].figure == 2
    assert "first head.linear.weight" in by_parameters["trained head"].note
