"""All Jacobian rows of some windows, by hrx and by other implementations.

    python tests/benchmarks/jacobian_rows.py [--models "NAME;…"] [--setting LxH] [--windows N] [--json FILE]

- captum: `Saliency` called once per step. All calls cost the same, so six of them are timed.
- 16 replicas: the method of the paper, without hrx's gradient machinery around backward.
- jacrev: `torch.func.jacrev` of the model, one window at a time; a dash where it raises or gives other rows.

Ratios: how many times longer each takes than hrx.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from captum.attr import Saliency
from side_by_side import Line, arguments, begin, by_definition, fastest, models, report, series
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath
from hrx.audit.attribution.gradients import jacobian
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import Setting, parse_settings

CAPTUM_STEPS = 6
AGREEMENT = 1e-5
"""Allowed difference of two implementations, relative to the largest entry."""


def by_captum(model: Forecaster, x: Tensor, horizon: int, steps: int) -> Tensor:
    """`(W, R, L)`: magnitudes of evenly spaced rows."""
    saliency = Saliency(lambda some: model.forward(some.clone(), horizon))
    chosen = range(0, horizon, horizon // steps)
    return torch.stack([saliency.attribute(x.clone(), target=h) for h in chosen], dim=1)


def by_replicas(model: Forecaster, x: Tensor, horizon: int, count: int = 16) -> Tensor:
    """`(W, H, L)`: each copy of a window stands for one step; the sum is differentiated."""
    return torch.stack([_by_replicas(model, window, horizon, count) for window in x])


def _by_replicas(model: Forecaster, window: Tensor, horizon: int, count: int) -> Tensor:
    rows = []
    for steps in torch.arange(horizon).split(count):
        leaf = window.repeat(len(steps), 1).requires_grad_()
        forecast = model.forward(leaf.clone(), horizon)
        rows.append(torch.autograd.grad(forecast[torch.arange(len(steps)), steps].sum(), leaf)[0])
    return torch.cat(rows)


def by_jacrev(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    """`(W, H, L)`."""
    rows = torch.func.jacrev(lambda some: model.predict(some[None].clone(), horizon)[0])
    return torch.stack([rows(window) for window in x])


def measure(name: str, model: Forecaster, setting: Setting, windows: int) -> Line:
    """One line of the table."""
    horizon, x, budget = setting.horizon, series(windows, setting.lookback), MemoryBudget()
    with GradientPath():
        expected = by_definition.gradient_rows(lambda some: model.forward(some.clone(), horizon), x)
    calls: dict[str, Callable[[], Tensor]] = {
        "hrx": lambda: jacobian(model, x, horizon, budget=budget).jacobian,
        "16 replicas": partial(by_replicas, model, x, horizon),
        "jacrev": partial(by_jacrev, model, x, horizon),
    }
    valid = {method: call for method, call in calls.items() if agrees(call, expected)}
    if "hrx" not in valid:
        raise AssertionError(f"{name}: the rows differ from those of one backward pass per step")
    seconds = fastest(valid, turns=8, least=6)
    steps = min(CAPTUM_STEPS, horizon)
    captum = fastest({"captum": partial(by_captum, model, x, horizon, steps), "hrx": calls["hrx"]}, turns=2)["captum"]
    own = seconds["hrx"]
    ratios = {method: seconds[method] / own if method in seconds else None for method in ("16 replicas", "jacrev")}
    return {
        "model": name,
        "ms a window": 1000 * own / windows,
        "captum per step": captum * horizon / steps / own,
        **ratios,
    }


def agrees(call: Callable[[], Tensor], expected: Tensor) -> bool:
    """Whether a call gives rows of these magnitudes; False where it cannot differentiate the model."""
    try:
        rows = call()
    except RuntimeError:
        return False
    return bool((rows.abs() - expected).abs().max() <= AGREEMENT * expected.abs().max())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--setting", default="512x96", help="LxH (default: 512x96)")
    parser.add_argument("--windows", type=int, default=1, help="of one run (default: 1)")
    options = begin(parser)
    (setting,) = parse_settings(options.setting)
    with models(options.models.split(";") if options.models else ()) as loaded:
        lines = [measure(name, model, setting, options.windows) for name, model in loaded.items()]
    report(f"Jacobian rows at {setting}, {options.windows} window(s): times hrx's", lines, options.json)


if __name__ == "__main__":
    main()
