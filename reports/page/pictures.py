"""Stored windows as the page draws them: few digits, compressed, within a budget of bytes.

An explanation matrix is kept relative to its maximum as half-precision floats: three significant digits, which is
what the page shows under the pointer. The two bytes of all values stand apart, since the upper ones compress.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.audit.ledger.store import Ledger, StoredExample
from hrx.reports.heatmap import COLOURS, row_steps
from hrx.reports.page.data import Json

Floats = npt.NDArray[np.floating]
BUDGET = 16_000_000
"""Bytes that the matrices of one page may take, so that the page stays below 30 MB."""


class Chosen(NamedTuple):
    """The windows that a page shows, and how many the ledger holds."""

    shown: list[Json]
    stored: int


def choose(ledger: Ledger, frame: pd.DataFrame, models: Sequence[str], budget: int = BUDGET) -> Chosen:
    """Stored windows of the runs, as many of every model as the budget holds; `models` names the model of each run."""
    runs = {str(key): run for run, key in enumerate(frame["key"])}
    waiting: dict[str, list[str]] = {}
    for key in ledger.example_keys():
        if key in runs:
            waiting.setdefault(models[runs[key]], []).append(key)
    held = sum(map(len, waiting.values()))
    shown: list[Json] = []
    spent = 0
    for key in _in_turns(list(waiting.values())):
        stored = ledger.examples([key])[0]
        scored = frame["scored_steps"].iloc[runs[key]]
        item = window(stored) | {"run": runs[key], "steps": row_steps(stored, {"scored_steps": scored}).tolist()}
        spent += len(str(item["matrix"]))
        if spent > budget:
            break
        shown.append(item)
    shown.sort(key=lambda item: int(str(item["run"])))
    return Chosen(shown, held)


def _in_turns(queues: list[list[str]]) -> Iterator[str]:
    for place in range(max(map(len, queues), default=0)):
        yield from (queue[place] for queue in queues if place < len(queue))


def window(stored: StoredExample) -> Json:
    """One window: its values, forecast and truth, the packed matrix, and the deletion curves if they were kept."""
    matrix = np.nan_to_num(np.asarray(stored.matrix, dtype=np.float64))
    largest = float(matrix.max(initial=0.0))
    return {
        "x": rounded(stored.x),
        "truth": rounded(stored.truth),
        "forecast": rounded(stored.forecast),
        "rows": len(matrix),
        "largest": largest,
        "matrix": pack(matrix / largest if largest > 0 else matrix),
        "curves": None if stored.curves is None else [[rounded(line) for line in pair] for pair in stored.curves],
    }


def pack(values: Floats) -> str:
    """Numbers from 0 to 1 `(R, L)` as base64 of deflated halves: all upper bytes, then all lower ones."""
    halves = np.ascontiguousarray(values, dtype="<f2").view(np.uint8).reshape(-1, 2)
    planes = np.concatenate([halves[:, 1], halves[:, 0]])
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def rounded(values: Floats) -> list[float | None]:
    """Five significant digits, which is more than a line on a screen shows."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def palette() -> str:
    """The 256 colours of a heat map as hexadecimal digits, the least important first: readable in grey too."""
    import matplotlib

    colours = matplotlib.colormaps[COLOURS](np.arange(256), bytes=True)[:, :3]
    return bytes(colours.astype(np.uint8).tobytes()).hex()
