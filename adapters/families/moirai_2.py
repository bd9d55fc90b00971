"""Moirai-2.0 (`uni2ts`): a causal transformer over patches of 16 steps that forecasts nine quantiles.

The public call takes numpy arrays and may write into them. `predict` repeats the few lines between it and the library's
differentiable `forward`. Beyond the native horizon the library recurses over nine quantile paths.
"""

from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from uni2ts.model.moirai2 import Moirai2Forecast, Moirai2Module

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard
from hrx.adapters.inputs import Column, Inputs, Outputs, Role, Window
from hrx.adapters.windows import WindowForecaster, as_levels

FAMILY = Family(
    "moirai-2", f"{__name__}:Moirai2", "uni2ts", "moirai-2", unpinned="uni2ts==2.0.0",
    config_keys=("num_predict_token", "quantile_levels", "patch_size", "max_seq_len"),
    inputs=Inputs(
        past=Role("optional", missing="masked"),
        future=Role("optional", missing="masked", ahead_missing="masked"),
    ),
    outputs=Outputs((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), point="median"),
    released=(
        ModelCard(
            "moirai-2-small", "Salesforce/moirai-2.0-R-small", "unknown", 11_400_000, benchmark="train",
            pretraining="GIFT-Eval's pretraining data and training splits, Chronos-Mixup, KernelSynth, "
            "internal data",
            saw_all=True, sources=("arXiv 2511.11698",),
        ),
    ),
)  # fmt: skip


class Moirai2(WindowForecaster):
    """Quantiles of a Moirai-2.0 checkpoint.

    `predict` refuses what is known ahead (it cuts the future off), so with it the library's `forward` is the official
    call. The first 64 steps come from the last token of the context and read it through its row's mean and scale only.
    """

    official_call = "Moirai2Forecast.predict"
    inputs, outputs = FAMILY.inputs, FAMILY.outputs

    def open_library(self) -> Any:
        with redirect_stdout(None):  # the loader prints, and standard output is for results
            module = Moirai2Module.from_pretrained(self.checkpoint.path)
        if 0.5 not in module.quantile_levels:
            raise ModelError(
                f"{self.checkpoint.name} forecasts the quantiles {module.quantile_levels}, "
                "and the median is not among them."
            )
        self.outputs = replace(self.outputs, levels=tuple(module.quantile_levels))
        return module

    def read_limits(self) -> Limits:
        # The length of the position table. The library extends it without a message.
        return Limits(longest_lookback=self.module.max_seq_len * self.module.patch_size)

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        # A forecaster of the library around the same module is built in under a millisecond.
        forecast = Moirai2Forecast(
            module=self.module, prediction_length=horizon, context_length=window.target.shape[1], target_dim=1,
            feat_dynamic_real_dim=0 if window.future is None else window.future.shape[2],
            past_feat_dynamic_real_dim=0 if window.past is None else window.past.shape[2],
        )  # fmt: skip
        more: dict[str, Tensor] = {}
        if window.past is not None:
            more["past_feat_dynamic_real"], more["past_observed_feat_dynamic_real"] = _masked(window.past)
        if window.future is not None:
            more["feat_dynamic_real"], more["observed_feat_dynamic_real"] = _masked(window.future)
        padded = torch.zeros_like(window.target[..., 0], dtype=torch.bool)
        quantiles = forecast(*_masked(window.target), padded, **more)
        chosen = [self.outputs.levels.index(level) for level in as_levels(columns)]
        return cast(Tensor, quantiles[:, chosen].transpose(1, 2)[:, :, None])

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        past, future, lookback = window.past, window.future, window.target.shape[1]
        library = Moirai2Forecast(
            prediction_length=horizon, target_dim=1, feat_dynamic_real_dim=0 if future is None else future.shape[-1],
            past_feat_dynamic_real_dim=0 if past is None else past.shape[-1], context_length=lookback,
            module=self.module,
        )  # fmt: skip
        if future is not None:
            with torch.no_grad():
                quantiles = library.forward(
                    window.target.nan_to_num(0.0), window.target.isfinite(), torch.zeros(len(window), lookback) > 0,
                    future.nan_to_num(0.0), future.isfinite(),
                    *(() if past is None else (past.nan_to_num(0.0), past.isfinite())),
                )  # fmt: skip
        else:  # copies: the library fills gaps in the arrays it is given
            targets = list(window.target.squeeze(2).numpy().copy())
            more = {}
            if past is not None:  # a row that it cuts off: it cannot pad more than one column, not even by nothing
                more["past_feat_dynamic_real"] = [np.concatenate([one[:1], one]) for one in past.numpy()]
            quantiles = torch.from_numpy(library.predict(targets, **more))
        by_level = dict(zip(self.module.quantile_levels, quantiles.unbind(1), strict=True))
        return torch.stack([by_level[0.5 if one == "point" else one] for one in columns], dim=-1).unsqueeze(2)


def _masked(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values with zeros for gaps, which the model reads as masked, and where they are observed."""
    observed = ~values.isnan()
    return torch.where(observed, values, 0.0).to(dtype=torch.float32), observed
