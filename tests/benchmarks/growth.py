"""How time and peak memory of a run grow with each of its sizes.

    python tests/benchmarks/growth.py [--models NAME] [--json FILE]

From one run of the embedded model, one size at a time is doubled twice. `power` is the exponent of the growth from the
first to the last: 1 is linear, 0 flat. Memory is what the process adds to what it holds before the run, by the kernel's
own high-water mark; Linux only.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

from side_by_side import Row, arguments, begin, fastest, models, report, series

from hrx.adapters import Forecaster
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol
from hrx.audit.scoring import score

MEBIBYTE = 2**20


class Size(NamedTuple):
    """Everything that makes a run long."""

    lookback: int = 128
    horizon: int = 24
    windows: int = 4
    draws: int = 4
    scored: int = 4
    """One more than it is the number of orderings."""


class Taken(NamedTuple):
    """What a run of a size took."""

    seconds: float
    bytes: int


def run(model: Forecaster, size: Size, budget: Budget) -> object:
    x, protocol = series(size.windows, size.lookback), Protocol(draws=size.draws, scored=size.scored)
    return score(model, x, size.horizon, protocol=protocol, budget=budget)


def measure(model: Forecaster, sizes: list[Size], budget: Budget) -> list[Taken]:
    """The sizes in turn; memory in one further pass each."""
    calls = {str(size): partial(run, model, size, budget) for size in sizes}
    seconds = fastest(calls, turns=3)
    taken = []
    for name, call in calls.items():
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the mark falls to what is held now
        before = _status("VmRSS")
        call()
        taken.append(Taken(seconds[name], max(0, _status("VmHWM") - before)))
    return taken


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name + ":"))) * 1024


def line(model: Forecaster, name: str, budget: Budget) -> Row:
    first = getattr(Size(), name)
    values = [first, 2 * first, 4 * first]
    taken = measure(model, [Size()._replace(**{name: value}) for value in values], budget)
    power = math.log(taken[-1].seconds / taken[0].seconds, values[-1] / values[0])
    return {
        "doubled": name,
        "values": " ".join(map(str, values)),
        "seconds": " ".join(f"{each.seconds:.3f}" for each in taken),
        "power": power,
        "peak, MiB": " ".join(f"{each.bytes / MEBIBYTE:.0f}" for each in taken),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(models="bolt-mini")
    options = begin(parser)
    with models([options.models]) as found:
        model, budget = found[options.models], Budget()
        rows = [line(model, name, budget) for name in Size._fields]
    start = ", ".join(f"{name} {value}" for name, value in Size()._asdict().items())
    report(f"growth of a run of {options.models} from {start}", rows, options.json)


if __name__ == "__main__":
    main()
