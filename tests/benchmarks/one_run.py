"""One complete run against a direct implementation of the definitions, and against its lower bound.

    python tests/benchmarks/one_run.py [--models "NAME;…"] [--setting LxH] [--json FILE]

Four windows, four draws. The direct implementation (tests/helpers/by_definition.py) makes one forecast and one backward
pass at a time; it is timed on one window, and four windows take four times as long. The floor is the number of
perturbed forecasts times the time of one at the best batch size, plus the Jacobian rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from side_by_side import Line, arguments, begin, by_definition, fastest, models, report, series, timed
from torch import Tensor

from hrx.adapters import Forecaster
from hrx.audit.attribution.gradients import jacobian
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Setting, parse_settings
from hrx.audit.scoring.deletion import replacements
from hrx.audit.scoring.score import score

WINDOWS = 4
BATCHES = (64, 128, 256, 512)


def directly(model: Forecaster, x: Tensor, horizon: int, protocol: Protocol) -> float:
    """`g_own` of the run by the direct implementation."""
    drawn = replacements(x, protocol, stream=0, first=0, count=protocol.draws, variants=1)[:, 0].numpy()
    matrix = by_definition.gradient_rows(lambda some: model.forward(some.clone(), horizon), x).numpy()

    @torch.no_grad()
    def forecast(window: object) -> object:
        return model.forward(torch.as_tensor(window)[None], horizon)[0].numpy()

    run = by_definition.Run(forecast, x.numpy(), matrix, drawn, protocol.fractions)
    return run.quantities()["g_own"] / float(run.variance)


def throughput(model: Forecaster, lookback: int, horizon: int) -> dict[str, Callable[[], Tensor]]:
    """A forward pass of each batch size."""
    x = series(max(BATCHES), lookback)
    return {f"batch {size}": partial(torch.no_grad()(model.forward), x[:size], horizon) for size in BATCHES}


def measure(name: str, model: Forecaster, setting: Setting) -> Line:
    """One line of the table."""
    horizon, protocol, budget = setting.horizon, Protocol(draws=4), MemoryBudget()
    x = series(WINDOWS, setting.lookback)
    forecasts = score(model, x, horizon, protocol=protocol, budget=budget).forecasts
    calls: dict[str, Callable[[], object]] = {
        "hrx": partial(score, model, x, horizon, protocol=protocol, budget=budget),
        "rows": partial(jacobian, model, x, horizon, budget=budget),
    }
    seconds = fastest(calls | throughput(model, setting.lookback, horizon), turns=4, least=8)
    each = {size: seconds[f"batch {size}"] / size for size in BATCHES}
    best = min(each, key=lambda size: each[size])
    floor = forecasts * each[best] + seconds["rows"]

    results: list[float] = []
    direct = WINDOWS * timed(lambda: results.append(directly(model, x[:1], horizon, protocol)))
    (slow,) = results
    quick = score(model, x[:1], horizon, protocol=protocol, budget=budget).normalised.g_own
    if abs(slow - quick) > 1e-3 * max(1.0, abs(slow)):
        raise AssertionError(f"{name}: g_own is {quick} and {slow} by definition")
    return {
        "model": name,
        "seconds": seconds["hrx"],
        "rows, s": seconds["rows"],
        "forecasts": float(forecasts),
        "direct / hrx": direct / seconds["hrx"],
        "hrx / floor": seconds["hrx"] / floor,
        "best batch": float(best),
        "hrx's batch": float(budget.fastest(model, x[0], horizon, forecasts)),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(models="bolt-mini;ttm-r2;ttm, tiny")
    parser.add_argument("--setting", default="512x96", help="LxH (default: 512x96)")
    options = begin(parser)
    (setting,) = parse_settings(options.setting)
    with models(options.models.split(";")) as loaded:
        lines = [measure(name, model, setting) for name, model in loaded.items()]
    report(f"one run at {setting}, {WINDOWS} windows, 4 draws", lines, options.json)


if __name__ == "__main__":
    main()
