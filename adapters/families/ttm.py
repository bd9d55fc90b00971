"""TTM-r1 to r3 (`granite-tsfm`): a fixed context and a fixed native horizon, continued recursively beyond it.

The library cuts a window that is longer than the context and pads a shorter one with zeros that count as observed, in
the model as in its forecasting pipeline, which is the official call: both are its defaults and are audited as such. The
point forecast is the library's default, which for TTM-r3 is the median. A directory or a hub id is one checkpoint at
every setting; `@auto` selects a release per lookback and horizon with the library's own rule.

A decomposed model of TTM-r3 forecasts trend and residual apart. It gets a short window unpadded, as from the library's
own forecaster class: in a window that is mostly zeros the scale of its smoother is rounding error, and so is the
forecast.

A fine-tune may mix its channels (`mix_channel`), or forecast some of them only (`prediction_channel_indices`). Such a
model reads all its channels together: `(B, L, C) -> (B, H, K)`. One that needs more than past values is refused.
"""

from functools import lru_cache
from importlib import resources
from typing import Any, cast

import torch
import yaml
from torch import Tensor
from tsfm_public import TinyTimeMixerForDecomposedPrediction, TinyTimeMixerForPrediction
from tsfm_public.resources import model_paths_config
from tsfm_public.toolkit.get_model import get_model
from tsfm_public.toolkit.recursive_predictor import RecursivePredictor, RecursivePredictorConfig
from tsfm_public.toolkit.time_series_preprocessor import DEFAULT_FREQUENCY_MAPPING

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.families.granite import PIPELINE, run_pipeline

FAMILY = Family(
    "ttm", f"{__name__}:TinyTimeMixer", "granite-tsfm", "ttm", also=("transformers",),
    architectures=("TinyTimeMixerForPrediction", "TinyTimeMixerForDecomposedPrediction"),
    revision_selector=f"{__name__}:select_revision",
    released=(
        ModelCard(
            "ttm-r2", "ibm-granite/granite-timeseries-ttm-r2", "Apache-2.0", 805_280, 512, 96,
            "18 public datasets named in its card, and more in the branches r2.1", benchmark="test",
            seen=("kdd_cup_2018_with_missing", "saugeenday", "solar", "us_births"),
            fingerprints=("348b862b15b55bdf09f900bb9daa83393f69691254146498da3746e2b64b1a49",),
            sources=("huggingface.co/ibm-granite/granite-timeseries-ttm-r2, README.md",),
            branches={  # one checkpoint per lookback and horizon, as 512-192-r2 or 90-30-ft-r2.1
                r"(?P<native_lookback>\d+)-(?P<native_horizon>\d+)-.*r2\.1": {
                    "parameters": None,
                    "seen": (
                        "kdd_cup_2018_with_missing", "saugeenday", "solar", "us_births", "covid_deaths",
                        "hierarchical_sales", "temperature_rain_with_missing",
                    ),
                },
                r"(?P<native_lookback>\d+)-(?P<native_horizon>\d+)-.*": {"parameters": None},
                ".*": {"parameters": None, "native_lookback": None, "native_horizon": None},
            },
        ),
        ModelCard(
            "ttm-r3", "ibm-granite/granite-timeseries-ttm-r3", "Apache-2.0",
            sources=("github.com/ibm-granite/granite-tsfm, tsfm_public/resources/model_paths_config/ttm.yaml",),
            branches={r"(?P<native_lookback>\d+)-(?P<native_horizon>\d+)-.*": {}},
        ),
    ),
)  # fmt: skip

DECOMPOSED = "TinyTimeMixerForDecomposedPrediction"
"""Architecture of a TTM-r3 that forecasts trend and residual apart."""


def select_revision(hub_id: str, lookback: int, horizon: int) -> str:
    """Revision of `hub_id` that the library selects for a setting.

    It has the longest context that the lookback fills, and is continued recursively if no release reaches the horizon.
    """
    try:
        key = get_model(
            hub_id, context_length=lookback, prediction_length=horizon, force_return="rolling", return_model_key=True
        )
    except ValueError as error:
        raise ModelError(f"{hub_id} has no release for {lookback}x{horizon}: {error}") from error
    # The library returns the key of its table; the revision stands only in the table.
    releases = yaml.safe_load(resources.files(model_paths_config).joinpath("ttm.yaml").read_text())
    return cast(str, releases["ibm-granite-models"][key]["revision"])


class TinyTimeMixer(CheckpointForecaster):
    """Point forecast of a TTM checkpoint."""

    def open_library(self) -> Any:
        decomposed = DECOMPOSED in self.checkpoint.architectures
        # Either class loads the other's file without an error, and leaves what it does not find there at random values.
        kind = TinyTimeMixerForDecomposedPrediction if decomposed else TinyTimeMixerForPrediction
        model = kind.from_pretrained(self.checkpoint.path)
        config, name = model.config, self.identity.model
        if config.categorical_vocab_size_list:
            raise ModelError(
                f"{name} needs static categorical values (categorical_vocab_size_list in its config.json), and hrx "
                "forecasts from past values alone. Fine-tune it without them to audit it."
            )
        if config.enable_forecast_channel_mixing and config.exogenous_channel_indices:
            raise ModelError(
                f"{name} needs the future values of its exogenous channels {config.exogenous_channel_indices} "
                "(exogenous_channel_indices in its config.json), and hrx forecasts from past values alone. "
                "Fine-tune it without enable_forecast_channel_mixing to audit it."
            )
        return model

    def read_limits(self) -> Limits:
        config = self.module.config
        predicted = config.prediction_channel_indices
        # A decomposed model pads trend and residual apart, after it has smoothed the short window.
        padded_to = None if isinstance(self.module, TinyTimeMixerForDecomposedPrediction) else config.context_length
        lengths = {"longest_lookback": config.context_length, "padded_to": padded_to}
        alone = config.mode == config.decoder_mode == "common_channel" and not config.enable_forecast_channel_mixing
        if (alone and predicted is None) or config.num_input_channels == 1:
            return Limits(**lengths)
        return Limits(
            **lengths,
            # A later step would need future values of the channels that are not forecast.
            longest_horizon=None if predicted is None else self._native_horizon,
            multivariate=True,
            channels=config.num_input_channels,
            predicted=None if predicted is None else tuple(predicted),
        )

    @property
    def official_call(self) -> str:  # type: ignore[override]  # depends on the checkpoint
        return PIPELINE if self._runs_pipeline else f"{type(self.module).__name__}.forward"

    def prepare(self) -> None:
        self._recursive = lru_cache(maxsize=8)(self._build_recursive)
        self._decomposed = isinstance(self.module, TinyTimeMixerForDecomposedPrediction)

    @property
    def _native_horizon(self) -> int:
        config = self.module.config
        return cast(int, config.prediction_filter_length or config.prediction_length)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        past = x if self.limits.multivariate else x[..., None]
        # Padded before the recursion, which otherwise drops the oldest values of a short window.
        missing = 0 if self._decomposed else max(self.module.config.context_length - past.shape[1], 0)
        past = torch.nn.functional.pad(past, (0, 0, missing, 0))
        token = None  # of the library for an unknown frequency, for checkpoints with frequency prefix tuning
        if self.module.config.resolution_prefix_tuning:
            token = torch.full((len(x),), DEFAULT_FREQUENCY_MAPPING["oov"], device=x.device)
        if horizon <= self._native_horizon:
            y = self.module(past_values=past, freq_token=token).prediction_outputs
        else:
            # Without both masks the recursive predictor raises.
            past_mask, future_mask = torch.ones_like(past), torch.ones_like(past[:, :1]).expand(-1, horizon, -1)
            y = self._recursive(horizon)(
                past_values=past, past_observed_mask=past_mask, future_observed_mask=future_mask, freq_token=token
            ).prediction_outputs
        return cast(Tensor, y[:, :horizon] if self.limits.multivariate else y[:, :horizon, 0])

    def _build_recursive(self, horizon: int) -> Any:
        lengths = {"requested_prediction_length": horizon, "model_prediction_length": self._native_horizon}
        return RecursivePredictor(RecursivePredictorConfig(model=self.module, loss="mse", **lengths)).eval()

    @property
    def _runs_pipeline(self) -> bool:
        """Whether the columns that are forecast come before all others, where the pipeline puts them."""
        predicted = self.module.config.prediction_channel_indices
        return predicted is None or predicted == list(range(len(predicted)))

    def official(self, x: Tensor, horizon: int) -> Tensor:
        """Run the pipeline; for a float64 copy the model's own call, since the pipeline rounds its input to fp32."""
        self.check(x, horizon)
        windows = x.detach().unsqueeze(-1) if x.ndim == 2 else x.detach()
        call = self._call_pipeline if self._runs_pipeline and not self.is_converted else self._call_model
        y = call(windows, horizon)
        return y.squeeze(-1) if x.ndim == 2 else y

    def _call_pipeline(self, windows: Tensor, horizon: int) -> Tensor:
        """`(B, L, C) -> (B, H, K)`: one series of the frame per window, each column a channel."""
        config = self.module.config
        predicted = config.prediction_channel_indices
        targets = windows.shape[2] if predicted is None else len(predicted)
        model, steps = self.module, config.prediction_filter_length or config.prediction_length
        if horizon > steps:
            model, steps = _rolling(self.module, horizon, steps)
        token = DEFAULT_FREQUENCY_MAPPING["oov"] if config.resolution_prefix_tuning else None
        context = windows.shape[1] if self._decomposed else config.context_length
        return run_pipeline(model, windows, steps, targets, context_length=context, frequency_token=token)[:, :horizon]

    @torch.no_grad()
    def _call_model(self, windows: Tensor, horizon: int) -> Tensor:
        config = self.module.config
        inputs: dict[str, Tensor] = {}
        if config.resolution_prefix_tuning:
            inputs["freq_token"] = torch.tensor([DEFAULT_FREQUENCY_MAPPING["oov"]] * len(windows))
        steps = config.prediction_filter_length or config.prediction_length
        missing = 0 if self._decomposed else max(config.context_length - windows.shape[1], 0)
        past = torch.cat([windows.new_zeros(len(windows), missing, windows.shape[2]), windows], dim=1)
        if horizon <= steps:
            return cast(Tensor, self.module(past_values=past, **inputs).prediction_outputs[:, :horizon])
        model, steps = _rolling(self.module, horizon, steps)
        inputs["past_observed_mask"] = torch.ones_like(past)
        inputs["future_observed_mask"] = past.new_ones(len(past), steps, past.shape[2])
        return cast(Tensor, model(past_values=past, **inputs).prediction_outputs[:, :horizon])


def _rolling(model: Any, horizon: int, native: int) -> tuple[Any, int]:
    """Recursive forecaster of the library over whole passes of the model, for the official call, and its steps."""
    steps = -(-horizon // native) * native
    config = RecursivePredictorConfig(
        model=model, requested_prediction_length=steps, model_prediction_length=native, loss="mse"
    )
    return RecursivePredictor(config).eval(), steps
