"""The audit of a Chronos-2 of the released size, with random weights, at both efforts.

    python tests/benchmarks/effort.py [--settings 96x24] [--json FILE]

Builds the checkpoint (120 million parameters, half a gigabyte), and measures one embedded series with two seeds, as an
audit does: parity, variance of the series, matrix, sweep, determinism. One turn at each effort: each takes minutes.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
from side_by_side import Line, arguments, begin, quiet, report, timed

from hrx.adapters import Forecaster, locate
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol
from hrx.audit.request import EFFORTS
from hrx.audit.runner.plan import Run, Setting, parse_settings, plan
from hrx.audit.runner.run import SeriesCache, measure_run
from hrx.gift_eval import open_source
from hrx.records.record import DONE, Record

SERIES = "sample:co2"


def planned(model: Forecaster, setting: Setting, effort: str) -> list[Run]:
    """The runs of one series at a setting, two seeds."""
    chosen = EFFORTS[effort]
    protocol = Protocol(draws=chosen.draws)
    return plan(
        [model.identity], open_source(SERIES), (setting,), series=1, seeds=2, windows=chosen.windows, protocol=protocol
    )


def _measure_all(model: Forecaster, runs: list[Run], records: list[Record]) -> None:
    """Measures the runs, which share the variance of their series."""
    cache: SeriesCache = {}
    records += [measure_run(model, run, MemoryBudget(), series=cache).record for run in runs]
    assert all(record.status == DONE for record in records), [record.reason for record in records]


def measure(model: Forecaster, setting: Setting) -> Line:
    """Seconds and perturbed forecasts of the same runs at both efforts."""
    seconds, forecasts = dict[str, float](), dict[str, float]()
    with torch.no_grad():
        model.forward(torch.zeros(1, setting.lookback) + torch.arange(setting.lookback), setting.horizon)  # warms up
    for effort in EFFORTS:
        records: list[Record] = []
        seconds[effort] = timed(partial(_measure_all, model, planned(model, setting, effort), records))
        forecasts[effort] = float(sum(record.forecasts or 0 for record in records))
    return {
        "setting": str(setting), "light, s": seconds["light"], "paper, s": seconds["paper"],
        "light / paper": seconds["light"] / seconds["paper"], "forecasts, light": forecasts["light"],
        "forecasts, paper": forecasts["paper"],
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--settings", default="96x24", help="L x H,… (default: 96x24)")
    options = begin(parser)
    quiet()
    from helpers.full_size import chronos_2  # found through side_by_side's path

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        model = locate(str(chronos_2(Path(name) / "chronos-2"))).load()
        lines = [measure(model, setting) for setting in parse_settings(options.settings)]
    report("Chronos-2 of the released size: light effort against paper effort", lines, options.json)


if __name__ == "__main__":
    main()
