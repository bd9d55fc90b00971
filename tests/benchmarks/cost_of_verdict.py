"""Perturbed forecasts until the interval of the median g_margin is as wide as with four windows and four draws.

    python tests/benchmarks/cost_of_verdict.py [--json FILE]

An audit at `--effort paper`, and one at `--effort light` that may take more series and settings of the same data, in
the order of the plan. Counted are the perturbed forecasts after which the 95 % interval of the verdict (runs that beat
naive, seeds folded) is as narrow as that of the first audit and stays so. Counts do not depend on the machine's load.
bolt-mini on the embedded series, and TTM-r2 on real data where HRX_TEST_DATA has both.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from side_by_side import Line, arguments, begin, quiet, report

from hrx.adapters import Located, locate
from hrx.audit.memory import GIBIBYTE
from hrx.audit.protocol import Protocol
from hrx.audit.request import EFFORTS
from hrx.audit.runner.plan import STAR, ModelKey, Setting, plan
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import InProcessExecutor, WorkerSettings
from hrx.gift_eval import open_source
from hrx.records.ledger import Ledger
from hrx.reports import read
from hrx.reports.runs import beats_naive, fold_seeds, scored_runs
from hrx.reports.statistics import FEW, describe

GRID = tuple(Setting(lookback, horizon) for lookback in (96, 192, 320, 512) for horizon in (24, 48, 96, 192))
FIXED = (Setting(512, 24), Setting(512, 96))
"""Settings at which TTM-r2 has its full context."""


class Design(NamedTuple):
    """What an audit takes from a source."""

    effort: str
    settings: tuple[Setting, ...]
    series: int
    seeds: int


def audit(folder: Path, located: Located, source: str, design: Design) -> pd.DataFrame:
    """The records of an audit in the order of its plan."""
    effort = EFFORTS[design.effort]
    runs = plan(
        [located.identity], open_source(source), design.settings, series=design.series, seeds=design.seeds,
        windows=effort.windows, protocol=Protocol(draws=effort.draws),
    )  # fmt: skip
    path = folder / f"{located.identity.model}-{design.effort}.db"
    with Ledger.open(path) as ledger:
        executor = InProcessExecutor(WorkerSettings({ModelKey.of(located.identity): located}, 2 * GIBIBYTE))
        execute(runs, ledger, executor, progress=lambda run, record: None)
    order = {run.key: place for place, run in enumerate(runs)}
    frame = read(path)
    return frame.sort_values("key", key=lambda keys: keys.map(order), ignore_index=True)


def interval(frame: pd.DataFrame) -> tuple[float, int]:
    """Width of the 95 % interval of the verdict's `g_margin`, and the configurations that it rests on."""
    runs = scored_runs(frame)
    found = describe(fold_seeds(runs[beats_naive(runs)], ["g_margin"])["g_margin"])
    return found.high - found.low, found.n


def first_as_narrow(frame: pd.DataFrame, width: float) -> int | None:
    """How many records it takes until the interval is at most so wide, and stays so; None where it never does."""
    reached = None
    for count in range(len(frame), 0, -1):
        found, n = interval(frame.iloc[:count])
        if n < FEW or not found <= width:
            break
        reached = count
    return reached


def unperturbed(frame: pd.DataFrame) -> float:
    """Forecasts behind the variances: once for each series and setting."""
    once = frame.drop_duplicates(["series_fingerprint", "lookback", "horizon"])
    return float(once["series_windows"].fillna(0).sum())


def measure(folder: Path, located: Located, source: str, paper: Design, light: Design) -> Line:
    """The two audits beside each other."""
    full, cheap = audit(folder, located, source, paper), audit(folder, located, source, light)
    width, n = interval(full)
    needed = first_as_narrow(cheap, width)
    part = cheap if needed is None else cheap.iloc[:needed]
    perturbed = float(full["forecasts"].sum()), float(part["forecasts"].sum())
    every = perturbed[0] + unperturbed(full), perturbed[1] + unperturbed(part)
    return {
        "model": located.identity.model, "n, paper": float(n), "width, paper": width,
        "forecasts, paper": perturbed[0], "n, light": float(interval(part)[1]), "width, light": interval(part)[0],
        "reached": "no" if needed is None else "yes", "forecasts, light": perturbed[1],
        "light / paper": perturbed[1] / perturbed[0], "with unperturbed ones": every[1] / every[0],
    }  # fmt: skip


def main() -> None:
    options = begin(arguments(__doc__))
    quiet()
    names = [name for name in options.models.split(";") if name] or ["bolt-mini", "ttm-r2"]
    data = os.environ.get("HRX_TEST_DATA")
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "bolt-mini" in names:
            designs = Design("paper", STAR, 3, 2), Design("light", GRID, 4, 1)
            lines.append(measure(folder, locate("bolt-mini"), "sample", *designs))
        if data and "ttm-r2" in names:
            os.environ["GIFT_EVAL"] = f"{data}/gift_eval"
            located = locate(f"ttm:{data}/checkpoints/ttm-r2")
            designs = Design("paper", FIXED, 3, 2), Design("light", FIXED, 8, 1)
            lines.append(measure(folder, located, "gift-eval", *designs))
    report("perturbed forecasts until the interval of g_margin is as narrow", lines, options.json)


if __name__ == "__main__":
    main()
