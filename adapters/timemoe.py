"""TimeMoE (`sktime.libs.timemoe`): one token a value, heads of several lengths, two experts of many for every token.

The official recipe standardises the window by its mean and unbiased spread, calls `generate` on that, takes the end of
what comes back and undoes the scaling. `generate` takes the longest head that fits what is still to forecast, then the
next; `predict` does so on the library's forward. Which experts a token takes is decided by rank, so the forecast is
smooth only between the places where the decision changes.
"""

from __future__ import annotations

from typing import cast

import torch
from sktime.libs.timemoe import TimeMoeForPrediction
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Forecaster, Identity, Limits
from hrx.adapters.timer import GeneratingForecaster, KeyValues, is_flat, quiet, stand_in


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class; code that the directory names is never run."""
    return TimeMoe(checkpoint, identity)


class TimeMoe(GeneratingForecaster):
    """The point forecast of a TimeMoE checkpoint."""

    library_class = TimeMoeForPrediction

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        super().__init__(checkpoint, identity)
        # A single value has no unbiased spread.
        self.limits = Limits(shortest_lookback=2, longest_lookback=self._model.config.max_position_embeddings)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        x = x.to(dtype=torch.float32)
        flat = is_flat(x)
        window = stand_in(x, flat)
        mean, std = window.mean(dim=-1, keepdim=True), window.std(dim=-1, keepdim=True)
        read, past, steps, seen, made = (window - mean) / std, KeyValues(), list[Tensor](), 0, 0
        with quiet():
            while made < horizon:
                seen += read.shape[1]
                # A trailing axis is given: the library would add it in place, to the caller's tensor.
                y = self._model(
                    input_ids=read[..., None],
                    attention_mask=torch.ones(len(x), seen, dtype=torch.long),
                    past_key_values=past,
                    use_cache=True,
                    max_horizon_length=horizon - made,
                    return_dict=True,
                ).logits
                read = y[:, -1]
                steps.append(read)
                made += read.shape[1]
        return torch.where(flat, torch.nan, torch.cat(steps, dim=1) * std + mean)

    def _generate(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        series = self._model.generate((x - mean) / std, max_new_tokens=horizon)
        return cast(Tensor, series[:, -horizon:] * std + mean)

    def _recompute(self, x: Tensor, horizon: int) -> Tensor:
        mean, std = x.mean(dim=-1, keepdim=True), x.std(dim=-1, keepdim=True)
        series = (x - mean) / std
        while (missing := x.shape[1] + horizon - series.shape[1]) > 0:
            y = self._model(
                input_ids=series[..., None], use_cache=False, max_horizon_length=missing, return_dict=True
            ).logits
            series = torch.cat([series, y[:, -1]], dim=1)
        return series[:, -horizon:] * std + mean
