"""Chronos-Bolt and Chronos-2 (`chronos-forecasting`): quantiles, of which the median is the point forecast.

The public calls detach, and Chronos-2's pads future covariates with NaN, which makes every gradient NaN. `predict` runs
the pipeline's steps below them. Chronos-2's group attention runs over the batch axis with one group per window; in a
group of one series the attention weight is exactly 1, so for univariate windows `predict` skips scores, weights and
their two projections, and the forecast keeps every bit.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from chronos import Chronos2Pipeline, ChronosBoltPipeline
from chronos.chronos2.layers import MHA, AttentionOutput, GroupSelfAttention
from chronos.chronos2.preprocess import PreparedInput
from torch import Tensor

from hrx.adapters.checkpoint import ignore_warning, second_module
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, RoleName, Window
from hrx.adapters.windows import WindowForecaster, as_levels, encode_by_target, split

CHRONOS_BOLT = Family(
    "chronos-bolt", f"{__name__}:ChronosBolt", "chronos-forecasting", "chronos-bolt", also=("transformers",),
    architectures=("ChronosBoltModelForForecasting",),
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), interpolates=True, point="median"),
    released=(
        ModelCard(
            "bolt-mini", "bolt-mini", "Apache-2.0", 356_288, 512, 96, "generated series only", synthetic=True,
            sources=("adapters/bolt_mini/README.md",),
        ),
        *(
            ModelCard(
                f"chronos-bolt-{size}", f"amazon/chronos-bolt-{size}", "Apache-2.0", parameters, 2048, 64,
                "the training corpora of Chronos", benchmark="test",
                seen=(
                    "electricity", "kdd_cup_2018_with_missing", "m4_daily", "m4_hourly", "m4_monthly", "m4_weekly",
                    "temperature_rain_with_missing",
                ),
                sources=(
                    "github.com/amazon-science/chronos-forecasting, README.md",
                    "github.com/amazon-science/chronos-forecasting, scripts/evaluation/configs/in-domain.yaml",
                ),
            )
            for size, parameters in (
                ("tiny", 9_000_000), ("mini", 21_000_000), ("small", 48_000_000), ("base", 205_000_000)
            )
        ),
    ),
)  # fmt: skip
CHRONOS_2 = Family(
    "chronos-2", f"{__name__}:Chronos2", "chronos-forecasting", "chronos-2", also=("transformers",),
    architectures=("Chronos2Model",),
    inputs=Inputs(
        (1, None), past=Role("optional", categorical="encoded", missing="masked"),
        future=Role("optional", categorical="encoded", missing="masked", ahead_missing="masked"),
    ),
    outputs=Outputs(
        (0.01, *(step / 20 for step in range(1, 20)), 0.99), interpolates=True, point="median",
    ),
    released=(
        ModelCard(
            "chronos-2", "amazon/chronos-2", "Apache-2.0", 120_000_000, 8192, benchmark="train",
            pretraining="real and generated series listed in its report (arXiv 2510.15821, table 6)",
            sources=("github.com/amazon-science/chronos-forecasting, README.md",),
        ),
        ModelCard(
            "chronos-2-small", "autogluon/chronos-2-small", "unknown", 28_000_000, 8192,
            sources=("github.com/amazon-science/chronos-forecasting, README.md",),
        ),
    ),
)  # fmt: skip

UNROLLED_QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Paths that `Chronos2Pipeline.predict` unrolls by default."""
LONG_HORIZON = "We recommend keeping prediction length"
"""Advice of the library against horizons beyond its native one: an audit requests them on purpose."""


class ChronosForecaster(WindowForecaster):
    """A pipeline around one model, as both families of this library have it."""

    module_attribute = "model"
    pipeline_class: ClassVar[Any]

    def open_library(self) -> Any:
        pipeline = self.pipeline_class.from_pretrained(self.checkpoint.path, dtype=torch.float32)
        if 0.5 not in pipeline.quantiles:
            raise ModelError(
                f"{self.checkpoint.path} was trained without the median (its quantiles: {pipeline.quantiles})."
            )
        self.outputs = replace(self.outputs, levels=tuple(pipeline.quantiles))
        return pipeline

    def read_limits(self) -> Limits:
        return Limits(longest_lookback=self.library.model_context_length)

    def at_levels(self, quantiles: Tensor, columns: Sequence[Column]) -> Tensor:
        """`(N, Q, H) -> (N, H, columns)`: trained levels, and a line between the two neighbours of any other."""
        trained, chosen = self.library.quantiles, []
        for level in as_levels(columns):
            above = next(place for place, known in enumerate(trained) if known >= level)
            share = 0.0 if trained[above] == level else (trained[above] - level) / (trained[above] - trained[above - 1])
            upper = quantiles[:, above]
            chosen.append(upper if share == 0 else upper * (1 - share) + quantiles[:, above - 1] * share)
        return torch.stack(chosen, dim=-1)


class ChronosBolt(ChronosForecaster):
    """Quantiles of a Chronos-Bolt checkpoint."""

    official_call = "ChronosBoltPipeline.predict_quantiles"
    pipeline_class = ChronosBoltPipeline
    outputs = CHRONOS_BOLT.outputs

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        with ignore_warning(LONG_HORIZON):
            quantiles: Tensor = self.library.predict(window.target[..., 0], prediction_length=horizon)
        levels = as_levels(columns)
        if set(levels) <= set(self.library.quantiles):
            return self.at_levels(quantiles, columns)[:, :, None]
        padded = torch.cat([quantiles[:, :1], quantiles, quantiles[:, -1:]], dim=1)  # levels 0 to 1 in equal steps
        return torch.quantile(padded, torch.tensor(levels).to(padded), dim=1).permute(1, 2, 0)[:, :, None]

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        levels = [0.5 if column == "point" else column for column in columns]
        with ignore_warning(LONG_HORIZON):
            quantiles, _ = self.library.predict_quantiles(
                window.target.squeeze(2), prediction_length=horizon, quantile_levels=levels
            )
        return cast(Tensor, quantiles.unsqueeze(2))


class Chronos2(ChronosForecaster):
    """Quantiles of a Chronos-2 checkpoint; each window, with all its channels, is a group of its own."""

    official_call = "Chronos2Pipeline.predict_quantiles"
    pipeline_class = Chronos2Pipeline
    inputs, outputs = CHRONOS_2.inputs, CHRONOS_2.outputs

    def prepare(self) -> None:
        # For groups of one series: a second model on the same weights.
        self.univariate_pipeline = copy.copy(self.library)
        self.univariate_pipeline.model = second_module(self.module)
        for module in self.univariate_pipeline.model.modules():
            if isinstance(module, GroupSelfAttention):
                module.self_attention = _SingleSeriesAttention(module.self_attention)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        lookback, targets = window.target.shape[1:]
        rows, ahead = window.target.mT, None
        past, future = _numbers(window, "past"), _numbers(window, "future")
        if past is not None or future is not None:
            # A missing value ahead is unknown: of a target, of a covariate known up to now, or of one known ahead.
            ahead = rows.new_full((len(rows), targets + (0 if past is None else past.shape[1]), horizon), torch.nan)
            rows = torch.cat([rows, *([] if past is None else [past])], dim=1)
            if future is not None:
                rows = torch.cat([rows, future[..., :lookback]], dim=1)
                ahead = torch.cat([ahead, future[..., lookback:]], dim=1)
            ahead = ahead.flatten(0, 1).to(dtype=torch.float32)
        groups = torch.arange(len(rows)).repeat_interleave(rows.shape[1])
        pipeline = self.univariate_pipeline if rows.shape[1] == 1 else self.library
        quantiles = self._quantiles(pipeline, rows.flatten(0, 1), groups, ahead, horizon)
        y = self.at_levels(quantiles, columns).reshape(*rows.shape[:2], horizon, len(columns))
        return y[:, :targets].transpose(1, 2)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        levels = [0.5 if column == "point" else column for column in columns]
        batches: list[Any] = [window.target.mT]
        if window.past is not None or window.future is not None:
            double = window.target.dtype == torch.float64 and not window.categorical
            tasks = [(_rows if double else _task)(window, index, horizon) for index in range(len(window))]
            # With several targets a code becomes its rank among those of the whole call.
            alone = window.target.shape[2] > 1 and window.categorical
            batches = [[task] for task in tasks] if alone else [tasks]
        forecasts: list[Tensor] = []
        with ignore_warning(LONG_HORIZON):
            for inputs in batches:
                quantiles, _ = self.library.predict_quantiles(inputs, prediction_length=horizon, quantile_levels=levels)
                forecasts += quantiles
        y = torch.stack(forecasts).transpose(1, 2)
        return torch.from_numpy(y.numpy().astype("float32")) if window.categorical else y  # it rounds codes to fp32

    def _quantiles(self, pipeline: Any, context: Tensor, groups: Tensor, ahead: Tensor | None, horizon: int) -> Tensor:
        """`(N, L) -> (N, Q, H)`: series of one group attend to one another, and to what is known `ahead` `(N, H)`."""
        context = context.to(dtype=torch.float32)
        step = pipeline._predict_step(context, groups, ahead, self._patches(horizon))
        steps, remaining = [step], horizon - step.shape[-1]
        if remaining > 0:
            quantiles = torch.tensor(UNROLLED_QUANTILES)
            context, groups, ahead, weights = pipeline._prepare_inputs_for_long_horizon_unrolling(
                context, groups, ahead, quantiles
            )
        while remaining > 0:
            step, context, ahead = pipeline._autoregressive_unroll_for_long_horizon(
                context, groups, ahead, step, quantiles, weights, self._patches(remaining)
            )
            steps.append(step)
            remaining -= step.shape[-1]
        return torch.cat(steps, dim=-1)[..., :horizon]

    def _patches(self, steps: int) -> int:
        """Output patches of one pass that forecasts `steps` steps."""
        return cast(int, min(math.ceil(steps / self.library.model_output_patch_size), self.library.max_output_patches))


def _numbers(window: Window, role: RoleName) -> Tensor | None:
    """`(B, C, T)`: the channels of a role, codes as the library encodes them."""
    numbers, codes = split(window, role)
    if codes is None:
        return numbers
    one_target = window.target.shape[2] == 1
    encoded = encode_by_target(codes, window.target[..., 0]) if one_target else _ranks(codes, window.target.shape[1])
    return encoded if numbers is None else torch.cat([numbers, encoded], dim=1)


def _ranks(codes: Tensor, lookback: int) -> Tensor:
    """Rank of each code among those of its channel's past; after them a missing code; NaN for one that is new ahead."""
    past = codes[..., :lookback]
    same = past[..., :, None] == past[..., None, :]
    first = ~same.tril(-1).any(dim=-1) & ~past.isnan()
    rank = (first[..., None, :] & ((past[..., None, :] < codes[..., None]) | codes[..., None].isnan())).sum(dim=-1)
    known = (past[..., None, :] == codes[..., None]).any(dim=-1) | codes.isnan()
    return torch.where(known, rank.to(codes), torch.nan)


def _task(window: Window, index: int, horizon: int) -> dict[str, Any]:
    """One window as the library takes it: names of covariates, numbers as fp32, codes as text."""
    task: dict[str, Any] = {"target": window.target[index].numpy().T, "past_covariates": {}, "future_covariates": {}}
    for role, values in window.roles():
        for place, name in enumerate(() if role == "target" else window.named(role)):
            column: Any = values[index, :, place].numpy()
            if name in window.categorical:
                column = np.array([None if code != code else f"{int(code):09d}" for code in column], dtype=object)
            task["past_covariates"][name] = column[:-horizon] if role == "future" else column
            if role == "future":
                task["future_covariates"][name] = column[-horizon:]
    return task


def _rows(window: Window, index: int, horizon: int) -> PreparedInput:
    """One window without codes as the library takes it after its preprocessing, which rounds to fp32."""
    known = [] if window.future is None else [window.future[index].T]
    unknown = [values[index].T for values in (window.target, window.past) if values is not None]
    context = torch.cat([*unknown, *(rows[:, :-horizon] for rows in known)])
    blank = [torch.full_like(rows[:, :1], torch.nan).expand(-1, horizon) for rows in unknown]
    return PreparedInput(
        context=context, future_covariates=torch.cat([*blank, *(rows[:, -horizon:] for rows in known)]),
        n_targets=window.target.shape[2], n_covariates=len(context) - window.target.shape[2],
        n_future_covariates=sum(map(len, known)),
    )  # fmt: skip


class _SingleSeriesAttention(torch.nn.Module):
    """Group attention of series that attend to themselves only."""

    def __init__(self, attention: MHA):
        super().__init__()
        self.v, self.o = attention.v, attention.o

    def forward(self, states: Tensor, mask: Tensor, output_attentions: bool = False) -> AttentionOutput:
        return AttentionOutput(hidden_states=self.o(self.v(states)), attn_weights=None)
