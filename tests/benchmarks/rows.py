"""All rows of the matrix of one window, by hrx and by the other ways of having them.

    python tests/benchmarks/rows.py [--models "NAME;…"] [--setting LxH] [--windows N] [--json FILE]

- captum: `Saliency` called once per step. Its calls are alike, so six of them are timed and the rest counted.
- 16 replicas: the way of the paper, without hrx's gradient machinery around backward.
- jacrev: `torch.func.jacrev` of the model, a window at a time; where it refuses, or gives other rows, a dash.
- batched, bare, replicas: each strategy of hrx. hrx is the one that its probe chooses on these windows, as in an audit.

Ratios are how many times longer each takes than hrx; the last is the best of them, which the probe should have found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from captum.attr import Saliency
from side_by_side import Row, arguments, begin, fastest, models, report, series
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.audit.attribution.jacobian import jacobian
from hrx.audit.memory import Budget
from hrx.audit.runner.plan import Setting, parse_settings
from hrx.audit.way import TRIED, Wanted, choose, with_rows

CAPTUM_STEPS = 6
AGREEMENT = 1e-5
"""Of two ways of having the rows, relative to the largest entry: batches of another size differ in their last bits."""


def by_captum(model: Forecaster, x: Tensor, horizon: int, steps: int) -> Tensor:
    """`(W, R, L)`: magnitudes of evenly spaced rows."""
    saliency = Saliency(lambda some: model.forward(some.clone(), horizon))
    chosen = range(0, horizon, horizon // steps)
    return torch.stack([saliency.attribute(x.clone(), target=h) for h in chosen], dim=1)


def by_replicas(model: Forecaster, x: Tensor, horizon: int, count: int = 16) -> Tensor:
    """`(W, H, L)`: each copy of a window answers for one step; the sum is differentiated."""
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


def by_hrx(model: Forecaster, x: Tensor, horizon: int, budget: Budget) -> Tensor:
    """`(W, H, L)`, by the strategy of the model."""
    found = jacobian(model, x, horizon, budget=budget)
    if found.strategy != model.rows:
        raise RuntimeError(f"{model.rows} fell back to {found.strategy}")
    return found.jacobian


def measure(name: str, model: Forecaster, setting: Setting, windows: int) -> Row:
    """One line of the table; ways that a model refuses are left out."""
    horizon, x, budget = setting.horizon, series(windows, setting.lookback), Budget()
    chosen = choose(model, x, horizon, Wanted(), budget).model.rows
    expected = by_hrx(with_rows(model, "loop"), x, horizon, budget)
    ways: dict[str, Callable[[], Tensor]] = {
        "16 replicas": partial(by_replicas, model, x, horizon),
        "jacrev": partial(by_jacrev, model, x, horizon),
        **{strategy: partial(by_hrx, with_rows(model, strategy), x, horizon, budget) for strategy in TRIED},
    }
    seconds = fastest({way: call for way, call in ways.items() if _agrees(call, expected)}, turns=8, least=6)
    steps = min(CAPTUM_STEPS, horizon)
    captum = fastest({"captum": partial(by_captum, model, x, horizon, steps), "hrx": ways[chosen]}, turns=2)["captum"]
    own = seconds[chosen]
    row: Row = {"model": name, "hrx": chosen, "ms a window": 1000 * own / windows}
    row["captum per step"] = captum * horizon / steps / own
    others = {way: seconds[way] / own if way in seconds else None for way in ways}
    return row | others | {"best": min(seconds.values()) / own}


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
    parser.add_argument("--windows", type=int, default=1, help="of one run (default: 1)")
    options = begin(parser)
    (setting,) = parse_settings(options.setting)
    with models(options.models.split(";") if options.models else ()) as found:
        rows = [measure(name, model, setting, options.windows) for name, model in found.items()]
    report(f"rows of E at {setting}, {options.windows} window(s): times hrx's", rows, options.json)


if __name__ == "__main__":
    main()
