"""The cost of each estimator relative to one forward pass of the same model and windows, beside the published ratios.

    python tests/benchmarks/estimator_cost.py [--models "NAME;…"] [--settings LxH,…] [--windows N] [--json FILE]

The forward pass is the median of several, an estimator is timed once, after one untimed pass that fills caches. By
default a small setting and two windows, which takes half a minute: the estimators that learn masks cost a thousand
forward passes and more.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch
from side_by_side import Line, arguments, begin, models, report, series, timed

from hrx.adapters import Forecaster
from hrx.audit.attribution import estimators
from hrx.audit.attribution.explanation import explain
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import Setting, parse_settings

PUBLISHED = {
    "saliency": 3.1,
    "gradient_x_input": 3.1,
    "integrated_gradients": 98.0,
    "occlusion": 14.0,
    "dynamask": 592.0,
    "extremalmask": 643.0,
    "contralsp": 675.0,
    "input_gradient": 18.0,
}
FORWARDS = 15


def measure(name: str, model: Forecaster, setting: Setting, count: int, estimators: list[str]) -> Iterator[Line]:
    """The cost of each estimator on the same windows."""
    x, budget, horizon = series(count, setting.lookback), MemoryBudget(), setting.horizon

    def forward() -> None:
        with torch.no_grad():
            model.forward(x, horizon)

    explain(model, x, horizon, estimator="saliency", budget=budget)
    forward()
    once = statistics.median(timed(forward) for _ in range(FORWARDS))
    for estimator in estimators:
        seconds = timed(lambda one=estimator: explain(model, x, horizon, estimator=one, budget=budget))
        yield {
            "model": name, "setting": str(setting), "estimator": estimator, "seconds": seconds,
            "forward passes": seconds / once, "published": PUBLISHED.get(estimator),
        }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(models="bolt-mini")
    parser.add_argument("--settings", default="96x24", help="LxH,… (default: 96x24)")
    parser.add_argument("--windows", type=int, default=2, help="default: 2")
    parser.add_argument("--estimators", default=",".join(estimators()), help="NAME,… (default: all)")
    options = begin(parser)
    names = options.estimators.split(",")
    with models(options.models.split(";")) as loaded:
        lines = [
            line
            for name, model in loaded.items()
            for setting in parse_settings(options.settings)
            for line in measure(name, model, setting, options.windows, names)
        ]
    report("cost of each estimator, in forward passes", lines, options.json)


if __name__ == "__main__":
    main()
