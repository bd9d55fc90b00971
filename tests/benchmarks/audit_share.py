"""The share of a small audit's time that is spent in model code.

    python tests/benchmarks/audit_share.py [--json FILE]

TTM-r2 on three datasets of GIFT-Eval where HRX_TEST_DATA has them, else the embedded model on the embedded series; two
seeds, all in this process. Model code is `forward`, `official`, `torch.autograd.grad` and, listed
separately, loading. The rest is cutting windows, orderings, masks, quantities and the ledger.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from side_by_side import Line, arguments, begin, quiet, report

from hrx.adapters import Forecaster, Located, locate
from hrx.audit.memory import GIBIBYTE
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import ModelKey, Setting, plan
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import InProcessExecutor, WorkerSettings
from hrx.gift_eval import open_source
from hrx.records.ledger import Ledger

REAL = ("us_births/D", "m4_hourly", "saugeenday/D")


class Clock:
    """Seconds inside wrapped calls, the outermost one's only."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inside = False

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside, began = True, time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._inside = False
                self.seconds[name] += time.perf_counter() - began

        return timed

    @contextmanager
    def watching(self, located: Located) -> Iterator[None]:
        """Wraps the model's calls, the backward pass, and loading."""
        kind = type(located.load())
        places = [(Forecaster, "forward"), (kind, "official")]
        places += [(torch.autograd, "grad"), (type(located), "load")]
        originals = [(owner, name, getattr(owner, name)) for owner, name in places]
        for owner, name, call in originals:
            setattr(owner, name, self.wrapped(name, call))
        try:
            yield
        finally:
            for owner, name, call in originals:
                setattr(owner, name, call)


def audit(folder: Path, located: Located, source: str, setting: Setting) -> Line:
    clock = Clock()
    runs = plan([located.identity], open_source(source), (setting,), series=1, seeds=2, windows=4, protocol=Protocol())
    with clock.watching(located), Ledger.open(folder / "audit.db") as ledger:
        began = time.perf_counter()
        executor = InProcessExecutor(WorkerSettings({ModelKey.of(located.identity): located}, 2 * GIBIBYTE))
        execute(runs, ledger, executor, progress=lambda run, record: None)
        wall = time.perf_counter() - began
        done = sum(record["status"] == "done" for record in ledger.records())
    inside = sum(clock.seconds.values())
    shares: Line = {f"{name}, %": 100 * seconds / wall for name, seconds in sorted(clock.seconds.items())}
    return {
        "model": located.identity.model, "setting": str(setting), "runs done": float(done), "seconds": wall,
        "model code, %": 100 * inside / wall, **shares,
    }  # fmt: skip


def main() -> None:
    options = begin(arguments(__doc__))
    quiet()
    data = os.environ.get("HRX_TEST_DATA")
    with tempfile.TemporaryDirectory() as name:
        if data:
            os.environ["GIFT_EVAL"] = f"{data}/gift_eval"
            located, source = locate(f"ttm:{data}/checkpoints/ttm-r2"), f"gift-eval:{','.join(REAL)}"
            lines = [audit(Path(name), located, source, Setting(512, 96))]
        else:
            lines = [audit(Path(name), locate("bolt-mini"), "sample", Setting(512, 96))]
    report("share of an audit in model code", lines, options.json)


if __name__ == "__main__":
    main()
