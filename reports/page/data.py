"""The data of a report page: runs column by column, the statistics of every group that it can show, and examples.

Python computes every number; the page's script filters and counts runs, and looks groups up. Texts stand once and are
referred to by number, so that 16,729 runs stay small. Names are cleaned here.
"""

import base64
import math
import zlib
from collections.abc import Iterable, Sequence
from itertools import combinations, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.audit.ledger.record import DONE
from hrx.audit.ledger.store import Ledger, StoredExample
from hrx.reports.figures import bin_medians, central_limits
from hrx.reports.heatmap import COLOURS, row_steps
from hrx.reports.runs import (
    CONFIGURATION,
    SEEDS,
    beats_naive,
    finite,
    fraction_positive,
    mask_impossible,
    median,
    median_interval,
)
from hrx.reports.summary import GAINS
from hrx.reports.text import clean, number_or_none

GROUPINGS = ("model", "dataset", "domain", "setting", "estimator", "leakage")
"""The columns that runs can be filtered and grouped by."""
NUMBERS = (
    *(column for gain in GAINS for column in (gain, f"{gain}_se")),
    *("rank", "effective_lookback", "mse", "mse_zero", "mse_last", "mse_seasonal", "parity"),
)
KEY_DIGITS = 16
"""Digits of a run's key on the page: enough to find it in the ledger."""
BUDGET = 16_000_000
"""Bytes that the matrices of one page may take, so that the page stays below 30 MB."""
BRIGHT = 0.99
"""Quantile of the matrix that the brightened colours end at."""
_UNKNOWN = "(unknown)"

Json = dict[str, object]
Floats = npt.NDArray[np.floating]


class CodedColumn(NamedTuple):
    """A column of texts: each distinct one once, and its number for every run."""

    values: list[str]
    codes: list[int]


class PageRuns(NamedTuple):
    """The runs of a ledger, ready for the page."""

    frame: pd.DataFrame
    texts: dict[str, CodedColumn]

    def as_json(self) -> Json:
        """Every column that the page shows or filters by; null for a missing number, a text for an infinite one."""
        frame = self.frame
        return {
            "count": len(frame),
            "key": [str(key)[:KEY_DIGITS] for key in frame["key"]],
            "texts": {name: coded._asdict() for name, coded in self.texts.items()},
            "numbers": {name: numbers(frame[name]) for name in NUMBERS},
            "beats_naive": numbers(frame["beats_naive"]),
            "seed": numbers(frame["seed"]),
            "groupings": list(GROUPINGS),
        }


def arrange(frame: pd.DataFrame) -> PageRuns:
    """The runs of `read` without impossible numbers, and with their texts coded."""
    frame = mask_impossible(frame).reset_index(drop=True)
    settings = [f"{lookback}x{horizon}" for lookback, horizon in zip(frame["lookback"], frame["horizon"], strict=True)]
    columns: dict[str, Iterable[object]] = {"model": model_labels(frame), "setting": settings}
    columns |= {
        name: frame[name] for name in ("dataset", "domain", "estimator", "leakage", "series", "status", "reason")
    }
    return PageRuns(frame, {name: code(column) for name, column in columns.items()})


def model_labels(frame: pd.DataFrame) -> list[str]:
    """The model of each run: its name, with a prefix of its weights' hash where several weights share the name.

    The prefix has at least eight characters, and as many as make the hashes distinct.
    """
    pairs = list(zip(frame["model"].astype(str), frame["fingerprint"].astype(str), strict=True))
    weights: dict[str, set[str]] = {}
    for model, fingerprint in pairs:
        weights.setdefault(model, set()).add(fingerprint)
    digits = {
        model: next(n for n in (8, 16, max(map(len, hashes))) if len({one[:n] for one in hashes}) == len(hashes))
        for model, hashes in weights.items()
    }
    return [f"{model} ({weight[: digits[model]]})" if len(weights[model]) > 1 else model for model, weight in pairs]


def code(column: Iterable[Any]) -> CodedColumn:
    """Numbers for the distinct texts of a column, in the order of their first use."""
    known: dict[object, int] = {}
    codes = [known.setdefault(None if pd.isna(value) or value == "" else value, len(known)) for value in column]
    names: list[str] = []
    uses: dict[str, int] = {}
    for value in known:
        name = _UNKNOWN if value is None else clean(value)
        uses[name] = uses.get(name, 0) + 1
        # Cleaning can make two names alike, and the page finds groups by name.
        names.append(name if uses[name] == 1 else f"{name} ({uses[name]})")
    return CodedColumn(names, codes)


def numbers(column: pd.Series) -> list[float | str | None]:
    """A column for JSON, which has no infinite number: that is a text."""
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return [None if math.isnan(value) else str(value) if math.isinf(value) else value for value in values.tolist()]


class PageStatistics:
    """The statistics of every group that the page can show: of all runs, and by one or two groupings.

    A group is given for three scopes, the values of the page's filter: runs that beat naive (`yes`), all scored runs
    (`all`) and runs that do not beat naive (`no`). Seeds are folded within a group and scope, as in every table.
    """

    QUANTITIES = ("g_own", "g_shuffled", "g_margin", "rank")

    def __init__(self, runs: PageRuns):
        frame = runs.frame
        table = frame[list(self.QUANTITIES)].astype("float64")
        table = table.assign(
            beats=beats_naive(frame),
            once=~frame.duplicated([*CONFIGURATION, *SEEDS]),  # a run can be stored with a sweep and without
            configuration=frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup(),
            everything="",
            **{name: runs.texts[name].codes for name in GROUPINGS},
        )
        scored = table[(frame["status"] == DONE).to_numpy(dtype=bool)]
        self._scopes = {"yes": scored[scored["beats"]], "all": scored, "no": scored[~scored["beats"]]}
        self._useful = [name for name in GROUPINGS if len(runs.texts[name].values) > 1]

    def groups(self) -> dict[str, Json]:
        """`{groupings: {codes: [share that beats naive, yes, all, no]}}`; groupings and codes joined by spaces.

        Each scope is `[n, median g_own, g_shuffled, g_margin, low, high and share above zero of g_margin, median
        rank]`, or null without runs. A grouping with one value is not used: it cannot narrow anything.
        """
        chosen = [*((name,) for name in self._useful), *combinations(self._useful, 2)]
        return {"": self._by("everything")} | {" ".join(names): self._by(*names) for names in chosen}

    def _by(self, *names: str) -> Json:
        scopes = [
            {group: _statistics(part) for group, part in _fold(runs, *names).reset_index().groupby(list(names))}
            for runs in self._scopes.values()
        ]
        return {
            " ".join(map(str, group)): [float(runs["beats"].mean()), *(scope.get(group) for scope in scopes)]
            for group, runs in self._scopes["all"].groupby(list(names))
        }

    def rank_points(self) -> Json:
        """For each scope, rank and `g_margin` of every configuration, a run of each, limits of the gain's axis, and
        the medians of bins by rank: of all runs, and of each value of each grouping (`{grouping: {code: bins}}`)."""
        return {name: self._rank_points(runs) for name, runs in self._scopes.items()}

    def _rank_points(self, runs: pd.DataFrame) -> Json:
        folded = _fold(runs)[["rank", "g_margin"]].dropna()
        rank, gain = folded.to_numpy(dtype=np.float64).T
        first = runs[~runs["configuration"].duplicated()].reset_index(names="run").set_index("configuration")
        shown = first.loc[folded.index]
        bins: dict[str, dict[str, list[list[float]]]] = {"": {"": bin_medians(rank, gain).tolist()}}
        for name in GROUPINGS:
            codes = shown[name].to_numpy()
            found = {str(code): bin_medians(rank[codes == code], gain[codes == code]) for code in np.unique(codes)}
            bins[name] = {code: medians.tolist() for code, medians in found.items() if len(medians)}
        limits = list(central_limits(gain)) if len(gain) else None
        run = shown["run"].tolist()
        return {"run": run, "rank": rounded(rank), "gain": rounded(gain), "limits": limits, "bins": bins}


def _fold(runs: pd.DataFrame, *names: str) -> pd.DataFrame:
    """One row per group and configuration, in the order of the groups."""
    by = runs[runs["once"]].groupby([*names, "configuration"])
    return by[list(PageStatistics.QUANTITIES)].mean()


def _statistics(folded: pd.DataFrame) -> list[object]:
    own, shuffled, margin, rank = folded[list(PageStatistics.QUANTITIES)].to_numpy().T
    figures = (median(own), median(shuffled), *median_interval(margin), fraction_positive(margin), median(rank))
    return [len(finite(margin)), *map(number_or_none, figures)]


def choose_examples(
    ledger: Ledger, frame: pd.DataFrame, models: Sequence[str], budget: int = BUDGET
) -> tuple[list[Json], int]:
    """Examples of the runs, taken in turns from every model up to the budget, and how many the ledger holds.

    `models` names the model of each run.
    """
    runs = {str(key): run for run, key in enumerate(frame["key"])}
    waiting: dict[str, list[str]] = {}
    for key in ledger.example_keys():
        if key in runs:
            waiting.setdefault(models[runs[key]], []).append(key)
    shown: list[Json] = []
    spent = 0
    for key in (key for turn in zip_longest(*waiting.values()) for key in turn if key is not None):
        stored = ledger.examples([key])
        if not stored:  # it is damaged: the ledger's warning names it
            continue
        example = stored[0]
        steps = row_steps(example, frame["scored_steps"].iloc[runs[key]]).tolist()
        item = example_json(example) | {"run": runs[key], "steps": steps}
        spent += len(str(item["matrix"]))
        if spent > budget:
            break
        shown.append(item)
    shown.sort(key=lambda item: int(str(item["run"])))
    return shown, sum(map(len, waiting.values()))


def example_json(example: StoredExample) -> Json:
    """One example: its values, truth and forecast, its matrix, and its curves `(3, 2, K)` if they are stored."""
    curves = example.curves
    return {
        "x": rounded(example.x),
        "truth": rounded(example.truth),
        "forecast": rounded(example.forecast),
        "curves": None if curves is None else [[rounded(line) for line in pair] for pair in curves],
        **matrix_json(np.asarray(example.matrix, dtype=np.float64)),
    }


def matrix_json(matrix: npt.NDArray[np.float64]) -> Json:
    """A matrix `(R, L)` and its shared vector relative to its maximum, and where the colours of both end.

    `tops` holds the maximum and the `BRIGHT` quantile of the matrix, then of the shared vector.
    """
    matrix = np.nan_to_num(matrix)
    largest = float(matrix.max(initial=0.0))
    relative = matrix / largest if largest > 0 else matrix
    shared = relative.mean(axis=0, keepdims=True)
    tops = [[float(f"{np.quantile(part, q, method='lower'):.4g}") for q in (1, BRIGHT)] for part in (relative, shared)]
    packed = {"matrix": pack(relative), "shared": pack(shared)}
    return {"rows": len(matrix), "largest": largest, **packed, "tops": tops}


def pack(values: Floats) -> str:
    """Numbers from 0 to 1 `(R, L)` as base64 of deflated half-precision floats, to three significant digits.

    All upper bytes stand first, then all lower ones, since the upper bytes compress.
    """
    halves = np.ascontiguousarray(values, dtype="<f2").view(np.uint8).reshape(-1, 2)
    planes = np.concatenate([halves[:, 1], halves[:, 0]])
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode()


def rounded(values: Floats) -> list[float | None]:
    """Five significant digits, which is more than a line on a screen shows."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def palette() -> str:
    """The 256 colours of a heat map as hexadecimal digits, the least important first."""
    import matplotlib

    colours = matplotlib.colormaps[COLOURS](np.arange(256), bytes=True)[:, :3]
    return bytes(colours.astype(np.uint8).tobytes()).hex()
