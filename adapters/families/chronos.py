"""Chronos-Bolt and Chronos-2 (`chronos-forecasting`): the median of the pipeline's quantiles.

The public calls detach, and Chronos-2's pads future covariates with NaN, which makes every gradient NaN. `predict` runs
the pipeline's steps below them. Chronos-2's group attention runs over the batch axis with one group per window; in a
group of one series the attention weight is exactly 1, so for univariate windows `predict` skips scores, weights and
their two projections, and the forecast keeps every bit.
"""

import copy
import math
from typing import Any, ClassVar, cast

import torch
from chronos import Chronos2Pipeline, ChronosBoltPipeline
from chronos.chronos2.layers import MHA, AttentionOutput, GroupSelfAttention
from torch import Tensor

from hrx.adapters.checkpoint import ChannelForecaster, CheckpointForecaster, ignore_warning, second_module
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

CHRONOS_BOLT = Family(
    "chronos-bolt", f"{__name__}:ChronosBolt", "chronos-forecasting", "chronos-bolt", also=("transformers",),
    architectures=("ChronosBoltModelForForecasting",),
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


class ChronosForecaster(CheckpointForecaster):
    """A pipeline around one model, as both families of this library have it."""

    module_attribute = "model"
    pipeline_class: ClassVar[Any]

    def open_library(self) -> Any:
        pipeline = self.pipeline_class.from_pretrained(self.checkpoint.path, dtype=torch.float32)
        if 0.5 not in pipeline.quantiles:
            raise ModelError(
                f"{self.checkpoint.path} was trained without the median (its quantiles: {pipeline.quantiles})."
            )
        return pipeline

    def read_limits(self) -> Limits:
        return Limits(longest_lookback=self.library.model_context_length)


class ChronosBolt(ChronosForecaster):
    """Median of a Chronos-Bolt checkpoint."""

    official_call = "ChronosBoltPipeline.predict_quantiles"
    pipeline_class = ChronosBoltPipeline

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        with ignore_warning(LONG_HORIZON):
            quantiles: Tensor = self.library.predict(x, prediction_length=horizon)
        return quantiles[:, self.library.quantiles.index(0.5)]

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with ignore_warning(LONG_HORIZON):
            _, median = self.library.predict_quantiles(x, prediction_length=horizon, quantile_levels=[0.5])
        return cast(Tensor, median)


class Chronos2(ChannelForecaster, ChronosForecaster):
    """Median of a Chronos-2 checkpoint; each window, with all its channels, is a group of its own."""

    official_call = "Chronos2Pipeline.predict_quantiles"
    pipeline_class = Chronos2Pipeline

    def prepare(self) -> None:
        # For groups of one series: a second model on the same weights.
        self.univariate_pipeline = copy.copy(self.library)
        self.univariate_pipeline.model = second_module(self.module)
        for module in self.univariate_pipeline.model.modules():
            if isinstance(module, GroupSelfAttention):
                module.self_attention = _SingleSeriesAttention(module.self_attention)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        series = self.to_series(x)
        groups = torch.arange(len(x)).repeat_interleave(series.shape[1])
        medians = self._medians(series.flatten(0, 1), groups, horizon)
        return self.from_series(medians.reshape(*series.shape[:2], horizon))

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        inputs = x.mT if self.limits.multivariate else x.unsqueeze(1)
        with ignore_warning(LONG_HORIZON):
            _, medians = self.library.predict_quantiles(inputs, prediction_length=horizon, quantile_levels=[0.5])
        median = torch.stack(cast("list[Tensor]", medians))
        return median.mT if self.limits.multivariate else median.squeeze(1)

    def _medians(self, context: Tensor, groups: Tensor, horizon: int) -> Tensor:
        """`(N, L) -> (N, H)`: series of one group attend to one another."""
        pipeline = self.library if self.limits.multivariate else self.univariate_pipeline
        context = context.to(dtype=torch.float32)
        step = pipeline._predict_step(context, groups, None, self._patches(horizon))
        steps, remaining = [step], horizon - step.shape[-1]
        if remaining > 0:
            quantiles = torch.tensor(UNROLLED_QUANTILES)
            context, groups, _, weights = pipeline._prepare_inputs_for_long_horizon_unrolling(
                context, groups, None, quantiles
            )
        while remaining > 0:
            step, context, _ = pipeline._autoregressive_unroll_for_long_horizon(
                context, groups, None, step, quantiles, weights, self._patches(remaining)
            )
            steps.append(step)
            remaining -= step.shape[-1]
        return torch.cat(steps, dim=-1)[:, self.library.quantiles.index(0.5), :horizon]

    def _patches(self, steps: int) -> int:
        """Output patches of one pass that forecasts `steps` steps."""
        return cast(int, min(math.ceil(steps / self.library.model_output_patch_size), self.library.max_output_patches))


class _SingleSeriesAttention(torch.nn.Module):
    """Group attention of series that attend to themselves only."""

    def __init__(self, attention: MHA):
        super().__init__()
        self.v, self.o = attention.v, attention.o

    def forward(self, states: Tensor, mask: Tensor, output_attentions: bool = False) -> AttentionOutput:
        return AttentionOutput(hidden_states=self.o(self.v(states)), attn_weights=None)
