"""Windows with covariates, and what a test does with a family that reads them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from helpers.tiny import series
from hrx.adapters.contract import Forecaster
from hrx.adapters.gradients import GradientPath, differentiable_input
from hrx.adapters.inputs import Column, Layout, Output, Window
from hrx.adapters.wrapped import Bound, Wrapped

LEVEL = 3.0
"""Of the targets, so that no forecast is cut at zero."""


def window(lookback: int, horizon: int, *, targets: int = 1, past: int = 0, future: int = 0, seed: int = 0) -> Window:
    """Two windows of seasonal targets, and covariates of other scales."""
    draw = torch.Generator().manual_seed(seed)

    def covariates(channels: int, length: int) -> Tensor | None:
        if not channels:
            return None
        scales = torch.tensor([10.0**place for place in range(channels)])
        return torch.randn(2, length, channels, generator=draw) * scales + scales

    target = torch.stack([series(2, lookback, seed + place) for place in range(targets)], dim=-1)
    return Window(target + LEVEL, covariates(past, lookback), covariates(future, lookback + horizon))


def windows(model: Forecaster, lookback: int, horizon: int) -> dict[str, Window]:
    """One window for each combination of roles that a model takes."""
    several = 1 if model.inputs.targets[1] == 1 else 2
    past, future = (2 * (role.accepts != "no") for role in (model.inputs.past, model.inputs.future))
    counts = {
        "one target": (1, 0, 0), "several targets": (several, 0, 0), "past": (1, past, 0), "future": (1, 0, future),
        "everything": (several, past, future),
    }  # fmt: skip
    distinct = {counts: name for name, counts in reversed(counts.items())}
    return {
        name: window(lookback, horizon, targets=targets, past=past, future=future)
        for (targets, past, future), name in distinct.items()
    }


def bound(model: Forecaster, given: Window, horizon: int, output: object = "point") -> tuple[Bound, Tensor]:
    """The model bound to the last target of a window, and the packed window."""
    layout = Layout.of(given, horizon)
    return Bound(model, layout, given.target.shape[2] - 1, Output.parse(output)), layout.pack(given)


def outputs(model: Forecaster) -> Iterator[Output]:
    """The point forecast, and of what else a model gives one of each kind."""
    for given in ("point", "mean", 0.9, 0.25, (0.1, 0.9)):
        if model.outputs.refusal(Output.parse(given)) is None:
            yield Output.parse(given)


def rows(model: Forecaster, x: Tensor, horizon: int, steps: Sequence[int]) -> Tensor:
    """`(S, W, P)`: derivatives of some steps of a forecast."""
    with GradientPath():
        leaf, working = differentiable_input(x)
        y = model.forward(working, horizon)
        return torch.stack([torch.autograd.grad(y[:, step].sum(), leaf, retain_graph=True)[0] for step in steps])


def derivative_error(model: Bound, x: Tensor, horizon: int, moving: Tensor | None = None) -> float:
    """Worst relative error of directional derivatives against central differences of the official call.

    `moving` `(P,)` says which positions a direction may move. In float64 where the official call computes in it. Of
    each direction the best of several step lengths: a long one suffers from curvature, a short one from rounding.
    """
    steps, draw, worst = (0, horizon // 2, horizon - 1), torch.Generator().manual_seed(1), 0.0
    lengths: tuple[float, ...] = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
    if (double := model.double()) and double.official(x.double(), horizon).dtype == torch.float64:
        model, x, lengths = double, x.double(), (1e-3, 1e-4, 1e-5, 1e-6)
    gradient = rows(model, x, horizon, steps)
    scale = torch.cat([part.std().clamp_min(1e-3).expand(part.shape[1]) for part in x.split(model.sections, dim=1)])
    for _ in range(3):
        direction = torch.randn(x.shape[1], generator=draw).to(x) * scale * (1.0 if moving is None else moving)
        slope = torch.einsum("swp,p->sw", gradient, direction)
        errors = []
        for length in lengths:
            ahead, behind = (model.official(x + sign * length * direction, horizon) for sign in (1, -1))
            change = ((ahead - behind) / (2 * length))[:, steps].T.to(slope)
            errors.append(float((slope - change).norm() / change.norm()))
        worst = max(worst, min(errors))
    return worst


class Mistaken(Wrapped):
    """A model whose forward, not its official call, gets another window."""

    def __init__(self, base: Forecaster, change: Callable[[Window], Window]):
        super().__init__(base)
        self._change = change

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        raise NotImplementedError

    def official(self, x: Tensor, horizon: int) -> Tensor:
        raise NotImplementedError

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        return self._base.predict_window(self._change(window), horizon, columns)

    def official_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        return self._base.official_window(window, horizon, columns)
