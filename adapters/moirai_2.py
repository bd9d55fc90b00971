"""Moirai-2.0 (`uni2ts`): a causal transformer over patches of 16 steps that forecasts nine quantiles.

The public call takes numpy arrays and may write into them. What lies below it, the library's `forward`, computes the
same and can be differentiated, so `predict` repeats only the few lines in between. Beyond the native length the library
recurses over nine quantile paths by itself.
"""

from __future__ import annotations

import copy
from contextlib import redirect_stdout
from typing import Any, cast

import torch
from torch import Tensor
from uni2ts.model.moirai2 import Moirai2Forecast, Moirai2Module

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return Moirai2(checkpoint, identity)


class Moirai2(Forecaster):
    """The median of a Moirai-2.0 checkpoint."""

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self._checkpoint = checkpoint
        with redirect_stdout(None):  # the loader prints, and standard output is for results
            self._module: Any = Moirai2Module.from_pretrained(checkpoint.path)
        freeze(self._module)
        # The length that the positions were built for. The library would extend them in silence.
        self.limits = Limits(longest_lookback=self._module.max_seq_len * self._module.patch_size)
        self._median = _median(self._module.quantile_levels, checkpoint)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        observed = ~x.isnan()
        past = torch.where(observed, x, 0.0).to(dtype=torch.float32)  # zeros for gaps, as in the public call
        quantiles = self._forecast(x.shape[1], horizon)(
            past_target=past[..., None],
            past_observed_target=observed[..., None],
            past_is_pad=torch.zeros_like(observed),
        )
        return cast(Tensor, quantiles[:, self._median])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        copies = list(x.detach().cpu().numpy().copy())  # the library fills gaps in the arrays it is given
        quantiles = self._forecast(x.shape[1], horizon).predict(copies)
        return torch.from_numpy(quantiles[:, self._median])

    def converted(self, convert: Convert) -> Forecaster:
        other = copy.copy(self)
        other._module = convert(copy.deepcopy(self._module))
        return other

    def reload(self) -> Forecaster:
        return Moirai2(self._checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return self._checkpoint.differences(self._module)

    def _forecast(self, lookback: int, horizon: int) -> Any:
        """The library's forecaster of one setting, around the same module: under a millisecond to make."""
        return Moirai2Forecast(
            module=self._module,
            prediction_length=horizon,
            context_length=lookback,
            target_dim=1,
            feat_dynamic_real_dim=0,
            past_feat_dynamic_real_dim=0,
        )


def _median(levels: tuple[float, ...], checkpoint: Checkpoint) -> int:
    if 0.5 not in levels:
        raise ModelError(f"{checkpoint.name} forecasts the quantiles {levels}, and the median is not among them.")
    return list(levels).index(0.5)
