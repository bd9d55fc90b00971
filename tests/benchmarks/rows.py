"""All rows of the matrix of one window, by hrx and by the other ways of having them.

    python tests/benchmarks/rows.py [--models "NAME;…"] [--setting LxH] [--json FILE]

- captum: `Saliency` called once per step. Its calls are alike, so six of them are timed and the rest counted.
- 16 replicas: the way of the paper, without hrx's gradient machinery around backward.
- replicas, loop: the other strategies of hrx. jacrev: `torch.func.jacrev` of the model; where it refuses, a dash.

Ratios are how many times longer each takes than hrx does with the strategy that the model declares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from captum.attr import Saliency
from side_by_side import Row, arguments, begin, fastest, models, report, series
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.adapters.contract import Strategy
from hrx.audit.memory import Budget
from hrx.audit.plan import parse_settings
from hrx.audit.rows import jacobian

CAPTUM_STEPS = 6
AGREEMENT = 1e-5
"""Of two ways of having the rows, relative to the largest entry: batches of another size differ in their last bits."""


def by_captum(model: Forecaster, x: Tensor, horizon: int, steps: int) -> Tensor:
    """`(R, L)`: magnitudes of evenly spaced rows."""
    saliency = Saliency(lambda some: model.forward(some.clone(), horizon))
    return torch.cat([saliency.attribute(x.clone(), target=h) for h in range(0, horizon, horizon // steps)])


def by_replicas(model: Forecaster, x: Tensor, horizon: int, count: int = 16) -> Tensor:
    """`(H, L)`: each copy of the window answers for one step; the sum is differentiated."""
    rows = []
    for steps in torch.arange(horizon).split(count):
        leaf = x.repeat(len(steps), 1).requires_grad_()
        forecast = model.forward(leaf.clone(), horizon)
        rows.append(torch.autograd.grad(forecast[torch.arange(len(steps)), steps].sum(), leaf)[0])
    return torch.cat(rows)


def by_jacrev(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    return torch.func.jacrev(lambda some: model.predict(some[None].clone(), horizon)[0])(x[0])


def by_hrx(model: Forecaster, x: Tensor, horizon: int, strategy: Strategy, budget: Budget) -> Tensor:
    declared, model.rows = model.rows, strategy
    try:
        found = jacobian(model, x, horizon, budget=budget)
    finally:
        model.rows = declared
    if found.strategy != strategy:
        raise RuntimeError(f"{strategy} fell back to {found.strategy}")
    return found.jacobian[0]


def measure(name: str, model: Forecaster, lookback: int, horizon: int) -> Row:
    """One line of the table; ways that a model refuses are left out."""
    x, budget = series(1, lookback), Budget()
    hrx = partial(by_hrx, model, x, horizon, budget=budget)
    expected = hrx(strategy="loop")
    ways: dict[str, Callable[[], Tensor]] = {
        "hrx": partial(hrx, strategy=model.rows),
        "replicas": partial(hrx, strategy="replicas"),
        "16 replicas": partial(by_replicas, model, x, horizon),
        "jacrev": partial(by_jacrev, model, x, horizon),
    }
    ways = {way: call for way, call in ways.items() if _agrees(call, expected)}
    seconds = fastest(ways)
    steps = min(CAPTUM_STEPS, horizon)
    by_step = fastest(
        {"captum": partial(by_captum, model, x, horizon, steps), "hrx": ways["hrx"]},
        turns=1,
    )
    own = seconds["hrx"] = min(seconds["hrx"], by_step["hrx"])
    row: Row = {"model": name, "strategy": model.rows, "hrx, ms": 1000 * own}
    row["captum per step"] = by_step["captum"] * horizon / steps / own
    return row | {way: seconds[way] / own if way in seconds else None for way in ("16 replicas", "jacrev", "replicas")}


def _agrees(call: Callable[[], Tensor], expected: Tensor) -> bool:
    """Whether a way gives the same rows; one that refuses the model's operations does not."""
    try:
        found = call()
    except RuntimeError:
        return False
    return bool((found - expected).abs().max() <= AGREEMENT * expected.abs().max())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--setting", default="512x96", help="LxH (default: 512x96)")
    options = begin(parser)
    (setting,) = parse_settings(options.setting)
    with models(options.models.split(";") if options.models else ()) as found:
        rows = [measure(name, model, setting.lookback, setting.horizon) for name, model in found.items()]
    report(f"rows of E at {setting}: times hrx's", rows, options.json)


if __name__ == "__main__":
    main()
