"""Shared by the benchmarks: models, timing of calls in turn, tables and JSON.

A busy machine slows whatever runs at the moment, and a repeated call runs faster. So compared calls take turns, each
turn in another order, and the fastest turn of each counts. With one thread the clock is the processor time of the
process, which on an idle machine is the wall time.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import logging
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers import by_definition, tiny, tiny_timesfm
from helpers.tiny import series

from hrx.adapters import Forecaster, load
from hrx.reports import render_table

__all__ = ["Line", "arguments", "begin", "by_definition", "fastest", "models", "quiet", "report", "series", "timed"]

Line = dict[str, str | float | None]
LIBRARIES = ("torch", "transformers", "chronos-forecasting", "granite-tsfm", "timesfm", "uni2ts", "captum")


@contextmanager
def models(names: Sequence[str] = ()) -> Iterator[dict[str, Forecaster]]:
    """The models of the benchmarks, or those named; TTM-r2's real weights where HRX_TEST_DATA has them."""
    quiet()
    makers: dict[str, Callable[[], Forecaster]] = {"bolt-mini": lambda: load("bolt-mini")}
    real = Path(os.environ.get("HRX_TEST_DATA", "")) / "checkpoints" / "ttm-r2"
    if real.is_dir():
        makers["ttm-r2"] = lambda: load(f"ttm:{real}")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        opened.enter_context(tiny_timesfm.small_timesfm_25())
        tiny_families = {name: tiny.FAMILIES[name] for name in ("ttm", "chronos-2", "moirai-2")}
        for name, make in (tiny_families | {"timesfm-2.5": tiny_timesfm.timesfm_25}).items():
            makers[f"{name}, tiny"] = lambda name=name, make=make: load(f"{name}:{make(folder / name)}")
        yield {name: make() for name, make in makers.items() if not names or name in names}


def fastest(calls: Mapping[str, Callable[[], object]], turns: int = 3, least: float = 0.0) -> dict[str, float]:
    """Seconds of the fastest of several turns of each call, after one untimed turn.

    Turns continue until `least` seconds have passed: short calls need many turns.
    """
    names, seconds = list(calls), dict.fromkeys(calls, float("inf"))
    shuffled, start = random.Random(0), time.perf_counter()
    for turn in itertools.count():
        if turn > turns and time.perf_counter() - start > least:
            break
        for name in names:
            took = timed(calls[name])
            seconds[name] = min(seconds[name], took) if turn else seconds[name]
        shuffled.shuffle(names)
    return seconds


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    call()
    return clock() - start


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of a benchmark; sets torch's threads, and the allocator as the command line does."""
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def quiet() -> None:
    """Silences the messages of libraries while they load."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")


def machine() -> dict[str, Any]:
    """The machine and the versions of the measurement."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--models", default="", help="NAME;… (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1, timed by processor time)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    return parser


def report(title: str, lines: Sequence[Line], file: Path | None) -> None:
    """Prints a table with the machine under it, and writes both as JSON."""
    names = list(lines[0])
    print(title)
    print(render_table(names, [[_cell(line[name]) for name in names] for line in lines], width=120))
    where = machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()), flush=True)
    if file:
        file.write_text(
            json.dumps({"title": title, "machine": where, "lines": lines}, indent=1) + "\n", encoding="utf-8"
        )


def _cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.3g}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "")
