"""TTM-r1 to r3 (`granite-tsfm`): a fixed context and a fixed native horizon, continued recursively beyond it.

The library cuts a window that is longer than the context and pads a shorter one with zeros that count as observed, in
the model as in its forecasting pipeline, which is the official call: both are its defaults and are audited as such. The
point forecast is the library's default, which for TTM-r3 is the median. A directory or a hub id is one checkpoint at
every setting; `@auto` selects a release per lookback and horizon with the library's own rule.

A decomposed model of TTM-r3 forecasts trend and residual apart. It gets a short window unpadded, as from the library's
own forecaster class: in a window that is mostly zeros the scale of its smoother is rounding error, and so is the
forecast.

A fine-tune may mix its channels (`mix_channel`), or forecast some of them only (`prediction_channel_indices`). Such a
model reads all its channels together: `(B, L, C) -> (B, H, K)`. One with exogenous channels reads their values ahead in
the unit of its training, which the library joins to the scaled forecast as they are. One that needs static categories
is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, cast

import numpy as np
import torch
import yaml
from torch import Tensor
from tsfm_public import TinyTimeMixerForDecomposedPrediction, TinyTimeMixerForPrediction
from tsfm_public.resources import model_paths_config
from tsfm_public.toolkit.get_model import get_model
from tsfm_public.toolkit.recursive_predictor import RecursivePredictor, RecursivePredictorConfig
from tsfm_public.toolkit.time_series_preprocessor import DEFAULT_FREQUENCY_MAPPING

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.families.granite import PIPELINE, chosen_columns, run_pipeline
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, Window
from hrx.adapters.windows import WindowForecaster

FAMILY = Family(
    "ttm", f"{__name__}:TinyTimeMixer", "granite-tsfm", "ttm", also=("transformers",),
    architectures=("TinyTimeMixerForPrediction", "TinyTimeMixerForDecomposedPrediction"),
    inputs=Inputs((1, None), past=Role("optional"), future=Role("optional")),
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
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


@dataclass(frozen=True)
class ExogenousLimits(Limits):
    """A fine-tune with exogenous channels reads their values at every step of its own horizon."""

    native_horizon: int = 0

    def refusal_of_horizon(self, horizon: int) -> str | None:
        if horizon == self.native_horizon:
            return None
        return f"reads exogenous values of all its {self.native_horizon} steps, and forecasts these, not {horizon}"


class TinyTimeMixer(WindowForecaster):
    """Forecast of a TTM checkpoint."""

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
        return model

    def read_limits(self) -> Limits:
        config = self.module.config
        predicted, known = config.prediction_channel_indices, self._known
        if config.multi_quantile_head:
            self.outputs = Outputs(tuple(round(level, 6) for level in config.quantile_levels), point="median")
        # A decomposed model pads trend and residual apart, after it has smoothed the short window.
        padded_to = None if isinstance(self.module, TinyTimeMixerForDecomposedPrediction) else config.context_length
        lengths = {"longest_lookback": config.context_length, "padded_to": padded_to}
        alone = config.mode == config.decoder_mode == "common_channel" and not config.enable_forecast_channel_mixing
        if (alone and predicted is None) or config.num_input_channels == 1:
            return Limits(**lengths)
        targets = len(predicted or range(config.num_input_channels))
        conditional = config.num_input_channels - targets - len(known)
        self.inputs = Inputs((targets, targets), _required(conditional), _required(len(known)))
        several = {
            "multivariate": True,
            "channels": config.num_input_channels,
            "predicted": predicted and tuple(predicted),
        }
        if known:
            return ExogenousLimits(
                **lengths, **several, native_horizon=self._native_horizon,
                needs=f"reads the future values of {len(known)} exogenous channels: name their columns with future=",
            )  # fmt: skip
        # A later step would need future values of the channels that are not forecast.
        return Limits(**lengths, **several, longest_horizon=None if predicted is None else self._native_horizon)

    @property
    def _known(self) -> list[int]:
        """Channels whose values ahead the model reads."""
        config = self.module.config
        return list(config.exogenous_channel_indices or ()) if config.enable_forecast_channel_mixing else []

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

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        past, ahead = self._channels(window)
        # Padded before the recursion, which otherwise drops the oldest values of a short window.
        missing = 0 if self._decomposed else max(self.module.config.context_length - past.shape[1], 0)
        past = torch.nn.functional.pad(past, (0, 0, missing, 0))
        token = None  # of the library for an unknown frequency, for checkpoints with frequency prefix tuning
        if self.module.config.resolution_prefix_tuning:
            token = torch.full((len(past),), DEFAULT_FREQUENCY_MAPPING["oov"], device=past.device)
        if horizon <= self._native_horizon:
            output = self.module(past_values=past, future_values=ahead, freq_token=token, return_loss=False)
        else:
            if "point" not in columns:
                raise ModelError(
                    f"{self.identity.model} gives quantiles of its first {self._native_horizon} steps only, not of "
                    f"{horizon}. Explain its point forecast, or fewer steps."
                )
            # Without both masks the recursive predictor raises.
            past_mask, future_mask = torch.ones_like(past), torch.ones_like(past[:, :1]).expand(-1, horizon, -1)
            output = self._recursive(horizon)(
                past_values=past, past_observed_mask=past_mask, future_observed_mask=future_mask, freq_token=token
            )
        return chosen_columns(output, self.outputs.levels, columns)[:, :horizon]

    def _channels(self, window: Window) -> tuple[Tensor, Tensor | None]:
        """`(B, L, C)` in the order of the checkpoint, and `(B, H, C)` with what is known ahead, if anything is."""
        if window.past is None and window.future is None:
            return window.target, None
        config, lookback = self.module.config, window.target.shape[1]
        conditional = [
            c for c in range(config.num_input_channels) if c not in (*config.prediction_channel_indices, *self._known)
        ]
        places = {"target": config.prediction_channel_indices, "past": conditional, "future": self._known}
        by_place: dict[int, Tensor] = {}
        for role, values in window.roles():
            if len(places[role]) != values.shape[2]:
                raise ModelError(
                    f"{self.identity.model} reads {len(places[role])} {role} covariates, not {values.shape[2]}: name "
                    "as many columns as it was fine-tuned with, in their order."
                )
            by_place |= zip(places[role], values.unbind(-1), strict=True)
        past = torch.stack([by_place[place][:, :lookback] for place in range(config.num_input_channels)], dim=-1)
        if window.future is None:
            return past, None
        blank = torch.zeros_like(window.future[:, lookback:, 0])  # the model reads no future of other channels
        ahead = [by_place[c][:, lookback:] if c in self._known else blank for c in range(config.num_input_channels)]
        return past, torch.stack(ahead, dim=-1)

    def _build_recursive(self, horizon: int) -> Any:
        lengths = {"requested_prediction_length": horizon, "model_prediction_length": self._native_horizon}
        return RecursivePredictor(RecursivePredictorConfig(model=self.module, loss="mse", **lengths)).eval()

    @property
    def _runs_pipeline(self) -> bool:
        """Whether channels are in the order of the pipeline: those that are forecast, known ahead, all others."""
        predicted, known = self.module.config.prediction_channel_indices, self._known
        return predicted is None or [*predicted, *known] == list(range(len(predicted) + len(known)))

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        """Run the pipeline; for a float64 copy the model's own call, since the pipeline rounds its input to fp32."""
        config = self.module.config
        parts = [
            values[:, : window.target.shape[1]]
            for values in (window.target, window.future, window.past)
            if values is not None
        ]
        windows = torch.cat(parts, dim=2)
        if not self._runs_pipeline:
            order = [*config.prediction_channel_indices, *self._known]
            order += [channel for channel in range(config.num_input_channels) if channel not in order]
            windows = windows if len(parts) == 1 else windows[..., np.argsort(order).tolist()]
        ahead = None if window.future is None else window.future[:, -horizon:]
        call = self._call_pipeline if self._runs_pipeline and not self.is_converted else self._call_model
        return call(windows, ahead, horizon, columns)

    def _call_pipeline(self, windows: Tensor, ahead: Tensor | None, horizon: int, columns: Sequence[Column]) -> Tensor:
        """`(B, L, C) -> (B, H, K, Q)`: one series of the frame per window, each column a channel."""
        config = self.module.config
        predicted = config.prediction_channel_indices
        targets = windows.shape[2] if predicted is None else len(predicted)
        model, steps = self.module, config.prediction_filter_length or config.prediction_length
        if horizon > steps:
            model, steps = _rolling(self.module, horizon, steps)
        token = DEFAULT_FREQUENCY_MAPPING["oov"] if config.resolution_prefix_tuning else None
        context = windows.shape[1] if self._decomposed else config.context_length
        y = run_pipeline(model, windows, steps, targets, columns, ahead, context_length=context, frequency_token=token)
        return y[:, :horizon]

    @torch.no_grad()
    def _call_model(self, windows: Tensor, ahead: Tensor | None, horizon: int, columns: Sequence[Column]) -> Tensor:
        config = self.module.config
        inputs: dict[str, Tensor] = {}
        if config.resolution_prefix_tuning:
            inputs["freq_token"] = torch.tensor([DEFAULT_FREQUENCY_MAPPING["oov"]] * len(windows))
        model, steps = self.module, config.prediction_filter_length or config.prediction_length
        missing = 0 if self._decomposed else max(config.context_length - windows.shape[1], 0)
        past = torch.cat([windows.new_zeros(len(windows), missing, windows.shape[2]), windows], dim=1)
        if ahead is not None:
            inputs["future_values"] = windows.new_zeros(len(windows), horizon, windows.shape[2])
            inputs["future_values"][..., config.exogenous_channel_indices] = ahead
        if horizon > steps:
            model, steps = _rolling(self.module, horizon, steps)
            inputs["past_observed_mask"] = torch.ones_like(past)
            inputs["future_observed_mask"] = past.new_ones(len(past), steps, past.shape[2])
        output = model(past_values=past, **inputs)
        by_level: dict[Column, Tensor] = {"point": output.prediction_outputs}
        if getattr(output, "quantile_outputs", None) is not None:
            by_level |= zip(config.quantile_levels, output.quantile_outputs.unbind(1), strict=True)
        return torch.stack([by_level[one] for one in columns], dim=-1)[:, :horizon]


def _required(channels: int) -> Role:
    return Role("required") if channels else Role()


def _rolling(model: Any, horizon: int, native: int) -> tuple[Any, int]:
    """Recursive forecaster of the library over whole passes of the model, for the official call, and its steps."""
    steps = -(-horizon // native) * native
    config = RecursivePredictorConfig(
        model=model, requested_prediction_length=steps, model_prediction_length=native, loss="mse"
    )
    return RecursivePredictor(config).eval(), steps
