"""Moirai-2.0 (`uni2ts`): a causal transformer over patches of 16 steps that forecasts nine quantiles.

The public call takes numpy arrays and may write into them. `predict` repeats the few lines between it and the library's
differentiable `forward`. Beyond the native horizon the library recurses over nine quantile paths.
"""

from contextlib import redirect_stdout
from typing import Any, cast

import torch
from torch import Tensor
from uni2ts.model.moirai2 import Moirai2Forecast, Moirai2Module

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

FAMILY = Family(
    "moirai-2", f"{__name__}:Moirai2", "uni2ts", "moirai-2", unpinned="uni2ts==2.0.0",
    config_keys=("num_predict_token", "quantile_levels", "patch_size", "max_seq_len"),
    released=(
        ModelCard(
            "moirai-2-small", "Salesforce/moirai-2.0-R-small", "unknown", 11_400_000, benchmark="train",
            pretraining="GIFT-Eval's pretraining data and training splits, Chronos-Mixup, KernelSynth, "
            "internal data",
            saw_all=True, sources=("arXiv 2511.11698",),
        ),
    ),
)  # fmt: skip


class Moirai2(CheckpointForecaster):
    """Median of a Moirai-2.0 checkpoint."""

    official_call = "Moirai2Forecast.predict"

    def open_library(self) -> Any:
        with redirect_stdout(None):  # the loader prints, and standard output is for results
            module = Moirai2Module.from_pretrained(self.checkpoint.path)
        if 0.5 not in module.quantile_levels:
            raise ModelError(
                f"{self.checkpoint.name} forecasts the quantiles {module.quantile_levels}, "
                "and the median is not among them."
            )
        return module

    def read_limits(self) -> Limits:
        # The length of the position table. The library extends it without a message.
        return Limits(longest_lookback=self.module.max_seq_len * self.module.patch_size)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        observed = ~x.isnan()
        past = torch.where(observed, x, 0.0).to(dtype=torch.float32)  # zeros for gaps, as in the public call
        # A forecaster of the library around the same module is built in under a millisecond.
        forecast = Moirai2Forecast(
            module=self.module, prediction_length=horizon, context_length=x.shape[1],
            target_dim=1, feat_dynamic_real_dim=0, past_feat_dynamic_real_dim=0,
        )  # fmt: skip
        quantiles = forecast(past[..., None], observed[..., None], torch.zeros_like(observed))
        return cast(Tensor, quantiles[:, list(self.module.quantile_levels).index(0.5)])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        copies = list(x.detach().cpu().numpy().copy())  # the library fills gaps in the arrays it is given
        library = Moirai2Forecast(
            prediction_length=horizon, target_dim=1, feat_dynamic_real_dim=0, past_feat_dynamic_real_dim=0,
            context_length=x.shape[1], module=self.module,
        )  # fmt: skip
        by_level = dict(zip(self.module.quantile_levels, library.predict(copies).swapaxes(0, 1), strict=True))
        return torch.from_numpy(by_level[0.5])
