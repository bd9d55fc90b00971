"""How time and peak memory of a run grow with each of its sizes.

    python tests/benchmarks/growth.py [--models NAME] [--json FILE]

From one run of the embedded model, one size at a time is doubled twice; windows and draws grow fourfold. `power` is the
exponent of the growth from the first to the last: 1 is linear, 0 constant. Memory is the growth of the resident set of
a process that has just loaded the model, by the kernel's high-water mark; Linux only.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from side_by_side import Line, arguments, begin, fastest, models, report, series

from hrx.adapters import Forecaster
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol
from hrx.audit.scoring.score import score

MEBIBYTE = 2**20
FOURFOLD = ("windows", "draws")


class Size(NamedTuple):
    """The sizes that decide the time of a run."""

    lookback: int = 128
    horizon: int = 24
    windows: int = 4
    draws: int = 4
    scored: int = 4
    """The number of orderings is one more."""


def run(model: Forecaster, size: Size, budget: MemoryBudget) -> object:
    x, protocol = series(size.windows, size.lookback), Protocol(draws=size.draws, scored=size.scored)
    return score(model, x, size.horizon, protocol=protocol, budget=budget)


def peak(call: Callable[[], object]) -> int:
    """Bytes that a call adds to the resident set, measured in a fork of the process."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_count, args=(call, theirs))
    process.start()
    process.join()
    return int(ours.recv())


def _count(call: Callable[[], object], answer: Connection) -> None:
    ctypes.CDLL(None).malloc_trim(0)  # a call that reuses freed memory would look small
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the high-water mark
    before = _status("VmRSS")
    call()
    answer.send(_status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name + ":"))) * 1024


def sizes(name: str) -> list[Size]:
    """Three runs that differ in one size."""
    factor = 4 if name in FOURFOLD else 2
    return [Size()._replace(**{name: getattr(Size(), name) * factor**power}) for power in range(3)]


def line(model: Forecaster, name: str, peaks: list[int]) -> Line:
    values, budget = [getattr(size, name) for size in sizes(name)], MemoryBudget()
    taken = fastest({str(size): partial(run, model, size, budget) for size in sizes(name)}, turns=3)
    seconds = list(taken.values())
    return {
        "size": name,
        "values": " ".join(map(str, values)),
        "seconds": " ".join(f"{each:.3f}" for each in seconds),
        "power": math.log(seconds[-1] / seconds[0], values[-1] / values[0]),
        "peak, MiB": " ".join(f"{each / MEBIBYTE:.0f}" for each in peaks),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(models="bolt-mini")
    options = begin(parser)
    with models([options.models]) as loaded:
        model = loaded[options.models]
        # Memory first: after a run the process keeps some of its memory.
        peaks = {
            name: [peak(partial(run, model, size, MemoryBudget())) for size in sizes(name)] for name in Size._fields
        }
        rows = [line(model, name, peaks[name]) for name in Size._fields]
    start = ", ".join(f"{name} {value}" for name, value in Size()._asdict().items())
    report(f"growth of a run of {options.models} from {start}", rows, options.json)


if __name__ == "__main__":
    main()
