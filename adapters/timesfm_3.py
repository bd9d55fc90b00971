"""TimesFM-3 (`timesfm3`, in the distribution `timesfm`): one pass for the whole horizon, overlapping patches stitched.

The public call runs in inference mode, which leaves no gradient to ask for, so `predict` repeats its few steps around
the library's own `decode`: whole patches on both sides, and quantiles sorted before the median is taken. What is
audited is the default of `TimesFM3Forecaster`. `TimesFM3Evaluator`, the variant for benchmarks, averages with the
negated window and clamps at zero, and makes another forecast.
"""

from __future__ import annotations

import copy
import io
from contextlib import redirect_stdout
from typing import Any, cast

import torch
from timesfm3.torch import TimesFM3Forecaster
from torch import Tensor

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, freeze


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return TimesFM3(checkpoint, identity)


class TimesFM3(Forecaster):
    """The median of a TimesFM-3 checkpoint, each series by itself."""

    def __init__(self, checkpoint: Checkpoint, identity: Identity):
        self.identity = identity
        self._checkpoint = checkpoint
        with redirect_stdout(io.StringIO()):  # the library reports progress where results are printed
            self._library: Any = TimesFM3Forecaster.from_pretrained(
                str(checkpoint.path), device="cpu", local_files_only=True
            )
        self._model: Any = freeze(self._library.model)
        self._median: int = self._library.config.median_quantile_index
        self.limits = Limits(longest_lookback=self._library.global_context)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        missing = -x.shape[1] % self._model.input_patch_len
        window = torch.nn.functional.pad(x.to(dtype=torch.float32), (missing, 0))
        padded = (torch.arange(window.shape[1]) < missing).expand(window.shape)
        # The forecast depends on the horizon asked for, and the library asks for whole output patches.
        asked = horizon + -horizon % self._model.output_patch_len
        quantiles = self._model.decode(target=window[:, None], horizon=asked, mask=padded)[:, 0, :horizon]
        return cast(Tensor, quantiles.sort(dim=-1).values[..., self._median])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        self._library.config.per_core_batch_size = len(x)
        forecasts = self._library.predict_batch(list(x.detach().cpu().numpy().copy()), horizon)
        return torch.stack([torch.from_numpy(y.forecast) for y in forecasts])

    def converted(self, convert: Convert) -> Forecaster:
        return _Converted(self, convert)

    def reload(self) -> Forecaster:
        return TimesFM3(self._checkpoint, self.identity)

    def unloaded(self) -> tuple[str, ...]:
        return self._checkpoint.differences(self._model)


class _Converted(TimesFM3):
    """The model after a conversion. Its official call is `predict` without gradients: the public one runs the module
    as it was loaded and rounds to fp32 in numpy, and finite differences of a rounded input measure the rounding."""

    def __init__(self, original: TimesFM3, convert: Convert):
        self.__dict__.update(original.__dict__)
        self._model = convert(copy.deepcopy(original._model))

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with torch.no_grad():
            return self.predict(x, horizon)
