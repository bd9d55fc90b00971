"""What each acceleration does to a model's forecasts and to their speed, as the trial of an audit finds it.

    python tests/benchmarks/accelerations.py [--models "NAME;…"] [--setting LxH] [--json FILE]

`speed` is how many times as fast the forecasts of a batch are as without it, `parity` how far they are from the
official call. The time of the trial, with compilation, stands beside them: an audit pays it once per setting.
"""

from __future__ import annotations

import time

from side_by_side import Row, arguments, begin, models, report, series

from hrx.adapters import Forecaster
from hrx.adapters.acceleration import ACCELERATIONS
from hrx.audit.memory import Budget
from hrx.audit.runner.plan import Setting, parse_settings
from hrx.audit.trial import try_out


def measure(name: str, model: Forecaster, setting: Setting) -> list[Row]:
    """A line for each acceleration, on top of those kept before it."""
    began = time.perf_counter()
    trials = try_out(model, series(4, setting.lookback), setting.horizon, ACCELERATIONS, Budget()).trials
    took = time.perf_counter() - began
    return [
        {
            "model": name,
            "acceleration": trial.acceleration,
            "kept": "yes" if trial.kept else "no",
            "speed": trial.speed,
            "parity": trial.parity,
            "all trials, s": took,
            "why not": trial.note,
        }
        for trial in trials
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(models="bolt-mini;ttm-r2;ttm, tiny")
    parser.add_argument("--setting", default="512x96", help="LxH (default: 512x96)")
    options = begin(parser)
    (setting,) = parse_settings(options.setting)
    with models(options.models.split(";")) as found:
        rows = [row for name, model in found.items() for row in measure(name, model, setting)]
    report(f"accelerations at {setting}", rows, options.json)


if __name__ == "__main__":
    main()
