"""What each estimator costs relative to one forward pass of the same model and windows, beside the published ratios.

    python tests/benchmarks/estimator_cost.py [--model NAME] [--settings LxH,…] [--windows N] [--json FILE]

Everything runs in one thread and is timed by the processor time of the process, which on an idle machine is the wall
time and on a busy one is not stretched as much: the forward pass by the median of several, an estimator once, after one
untimed pass that fills caches. By default a small setting and two windows, which takes a minute or two: the estimators
that learn masks cost a thousand forward passes and more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hrx.adapters import Forecaster, load
from hrx.audit.estimators import estimate, estimator_names
from hrx.audit.memory import Budget
from hrx.audit.plan import Setting, parse_settings

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


class Cost(NamedTuple):
    """One estimator at one setting."""

    setting: str
    estimator: str
    forward_seconds: float
    seconds: float
    ratio: float
    published: float | None


def windows(count: int, lookback: int) -> Tensor:
    """`(W, L)`: seasonal windows with noise."""
    generator = torch.Generator().manual_seed(0)
    phase = 6 * torch.rand(count, 1, generator=generator)
    noise = torch.randn(count, lookback, generator=generator)
    return torch.sin(torch.arange(lookback) / 4 + phase) + 0.3 * noise


def timed(call: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def measure(model: Forecaster, setting: Setting, count: int, names: list[str]) -> Iterator[Cost]:
    """The cost of each estimator on the same windows."""
    x, budget, horizon = windows(count, setting.lookback), Budget(), setting.horizon

    def forward() -> None:
        with torch.no_grad():
            model.forward(x, horizon)

    estimate(model, x, horizon, estimator="saliency", budget=budget)
    forward()
    once = statistics.median(timed(forward) for _ in range(FORWARDS))
    for name in names:
        seconds = timed(lambda name=name: estimate(model, x, horizon, estimator=name, budget=budget))
        yield Cost(str(setting), name, once, seconds, seconds / once, PUBLISHED.get(name))


def line(cost: Cost) -> str:
    """A line of the table."""
    published = f"{cost.published:g}×" if cost.published else "–"
    return f"{cost.setting:>8}  {cost.estimator:<22}{cost.seconds:>10.3f}{cost.ratio:>10.1f}×{published:>11}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of each estimator relative to one forward pass.")
    parser.add_argument("--model", default="bolt-mini")
    parser.add_argument("--settings", default="96x24", help="LxH,… (default: 96x24)")
    parser.add_argument("--windows", type=int, default=2, help="default: 2")
    parser.add_argument("--estimators", default=",".join(estimator_names()), help="NAME,… (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load(options.model)
    print(f"{'setting':>8}  {'estimator':<22}{'seconds':>10}{'cost':>11}{'published':>11}")
    costs = []
    for setting in parse_settings(options.settings):
        for cost in measure(model, setting, options.windows, options.estimators.split(",")):
            print(line(cost), flush=True)
            costs.append(cost)
    if options.json:
        options.json.write_text(json.dumps([cost._asdict() for cost in costs], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
