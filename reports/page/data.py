"""Data of a report page: runs column by column, the statistics of every selection, and examples.

A selection is any combination of the page's filters. Combinations that select the same runs are stored once: a filter
on the domain adds nothing to one on the dataset, which has one domain.

Python computes every number; the page's script filters and counts runs, and looks groups up. Texts stand once and are
referred to by number. What the first screens need is one object each, `runs`, `statistics` and `examples`; everything
else is in parts that the page loads when they are first read. Names are cleaned here.
"""

import base64
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from hrx.records.ledger import Ledger, StoredCheck
from hrx.records.quantities import GAINS, Floats
from hrx.records.record import DONE
from hrx.reports.figures import bin_medians, central_limits
from hrx.reports.heatmap import BRIGHT, COLOURS, row_steps
from hrx.reports.runs import (
    CONFIGURATION,
    SEEDS,
    beats_naive,
    beats_seasonal,
    mask_impossible,
    too_short,
    trained_by_hrx,
)
from hrx.reports.statistics import evidence, median
from hrx.reports.summary import equivalence_bound
from hrx.reports.text import clean, file_stem, listed, number_or_none, shorten
from hrx.reports.verdict import Finding

GROUPINGS = ("model", "dataset", "domain", "setting", "estimator", "leakage")
"""Columns that runs can be filtered and grouped by."""
NUMBERS = (
    *(column for gain in GAINS for column in (gain, f"{gain}_se")),
    *("rank", "effective_lookback", "mse", "mse_zero", "mse_last", "mse_seasonal", "parity", "padded"),
)
_TEXTS = ("dataset", "domain", "estimator", "leakage", "series", "status", "reason")
KEY_DIGITS = 16
"""Digits of a run's key on the page: enough to find it in the ledger."""
RECORDS = 5_000
"""Runs of a part with full numbers."""
BUDGET = 14_000_000
"""Bytes that the matrices of one page may take, all parts together."""
_UNKNOWN = "(unknown)"

MOST_GROUPS = 20_000
"""Groups of one page. A combination of filters that would exceed it is not computed, and the page says so."""
FIRST_GROUPS = 2_000
"""Groups that the page has at once; further combinations of filters are a part."""
MOST_POINTS = 20_000
"""Configurations that the plot against rank draws."""
DIGITS = 9
"""Significant digits of a statistic on the page, which prints three."""
QUANTITIES = ("g_own", "g_shuffled", "g_margin", "rank")
CLUSTERS = ("cluster_dataset", "cluster_series", "cluster_short")
"""What a verdict needs of a configuration: its clusters, and whether it is left out."""
JUDGED = frozenset({"model", "backbone"})
"""Groupings whose groups have a verdict."""

Names = tuple[str, ...]
Json = dict[str, object]


class CodedColumn(NamedTuple):
    """A column of texts: each distinct one once, and its number for every run."""

    values: list[str]
    codes: list[int]


class PageRuns(NamedTuple):
    """Runs of a ledger, ready for the page."""

    frame: pd.DataFrame
    texts: dict[str, CodedColumn]

    @property
    def groupings(self) -> tuple[str, ...]:
        """Columns to filter and group by: the backbone first, where models were trained."""
        return ("backbone", *GROUPINGS) if "backbone" in self.texts else GROUPINGS

    def as_json(self) -> Json:
        """Columns that the page filters by and counts; `part` runs are in each of the parts `records-0`, …"""
        return {
            "count": len(self.frame),
            "part": RECORDS,
            "names": NUMBERS,
            "texts": {name: coded._asdict() for name, coded in self.texts.items()},
            "beats_naive": numbers(self.frame["beats_naive"]),
            "beats_seasonal": numbers(pd.Series(beats_seasonal(self.frame))),
            "groupings": list(self.groupings),
        }

    def parts(self, commands: Sequence[int]) -> dict[str, Json]:
        """Full records by part; null for a missing number, a text for an infinite one."""
        found: dict[str, Json] = {}
        for number, start in enumerate(range(0, len(self.frame), RECORDS)):
            frame = self.frame[start : start + RECORDS]
            found[f"records-{number}"] = {
                "key": [str(key)[:KEY_DIGITS] for key in frame["key"]],
                "seed": numbers(frame["seed"]),
                "command": commands[start : start + RECORDS],
                "numbers": {name: numbers(frame[name]) for name in NUMBERS},
            }
        return found


def arrange(frame: pd.DataFrame) -> PageRuns:
    """Runs of `read` without impossible numbers, and with their texts coded."""
    frame = mask_impossible(frame).reset_index(drop=True)
    settings = [f"{lookback}x{horizon}" for lookback, horizon in zip(frame["lookback"], frame["horizon"], strict=True)]
    columns: dict[str, Iterable[object]] = {"model": model_labels(frame), "setting": settings}
    columns |= {name: frame[name] for name in _TEXTS}
    trained = (frame["backbone"].fillna("") != "").tolist()
    if any(trained):
        # Models of a backbone that hrx did not train have cards of their own, so they do not count in its card.
        backbones, by_hrx = frame["backbone"], trained_by_hrx(frame)
        elsewhere = backbones.isin(backbones[by_hrx].unique()) & ~by_hrx
        labelled = frame.assign(backbone=backbones.mask(elsewhere, backbones + ", trained elsewhere"))
        # A dash: a model that is not of a known class has neither of them, which is not unknown.
        columns |= {
            name: [value if known else "–" for value, known in zip(labelled[name], trained, strict=True)]
            for name in ("backbone", "training")
        }
    return PageRuns(frame, {name: code(column) for name, column in columns.items()})


def model_labels(frame: pd.DataFrame) -> list[str]:
    """Model of each run: its name, with a prefix of its weights' hash where several weights share the name.

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


def obstacle(run: Any, checks: Iterable[StoredCheck]) -> str:
    """Why the picture of a run (a row of the frame) must not be interpreted; empty where it may be."""
    if run.status != DONE:
        return f"the run is not scored ({run.status})"
    about = (run.fingerprint, run.library, run.adapter_version, run.torch_version)
    setting = f"{run.lookback}x{run.horizon}"
    failed = [check.check for check in checks if not check.passed and (*check[:4], check.setting) == (*about, setting)]
    if failed:
        return f"the model fails admission at {setting} ({listed(failed)})"
    if pd.isna(run.beats_naive):
        return "it is unknown whether the run beats naive, so its gains are not meaningful"
    return "" if run.beats_naive == 1 else "the run does not beat naive, so its gains are not meaningful"


def choose_examples(
    ledger: Ledger, frame: pd.DataFrame, models: Sequence[str], checks: Sequence[StoredCheck], budget: int = BUDGET
) -> tuple[list[Json], int]:
    """Examples taken in turns from every model up to the budget, and how many the ledger holds.

    Those that may be interpreted come first. `models` names the model of each run.
    """
    runs = {str(key): run for run, key in enumerate(frame["key"])}
    keys = [key for key in ledger.example_keys() if key in runs]
    rows = frame.iloc[[runs[key] for key in keys]].itertuples()
    why = {key: obstacle(row, checks) for key, row in zip(keys, rows, strict=True)}
    waiting: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: bool(why[key])):
        waiting.setdefault(models[runs[key]], []).append(key)
    shown: list[Json] = []
    spent = 0
    for key in (key for turn in zip_longest(*waiting.values()) for key in turn if key is not None):
        stored = ledger.examples([key])
        if not stored:  # it is damaged: the ledger's warning names it
            continue
        example, at = stored[0], runs[key]
        row = frame.iloc[at]
        names = (models[at], row["dataset"], row["series"], f"{row['lookback']}x{row['horizon']}")
        steps = row_steps(example, row["scored_steps"]).tolist()
        about = {"run": at, "steps": steps, "why": shorten(clean(why[key]), 200), "file": file_stem(*names)}
        said = {name: number_or_none(row[name]) for name in ("effective_lookback", "g_own", "g_margin")}
        about |= said | {"padded": 0 if pd.isna(row["padded"]) else int(row["padded"])}
        item = example_json(example.x, example.truth, example.forecast, example.matrix, example.curves) | about
        spent += len(str(item["matrix"]))
        if spent > budget:
            break
        shown.append(item)
    shown.sort(key=lambda item: (bool(item["why"]), int(str(item["run"]))))
    return shown, len(keys)


def example_json(x: Floats, truth: Floats, forecast: Floats, matrix: Floats, curves: Floats | None = None) -> Json:
    """One example: its values, truth and forecast, its matrix, and its curves `(3, 2, K)` if there are some."""
    return {
        "x": rounded(x),
        "truth": rounded(truth),
        "forecast": rounded(forecast),
        "curves": None if curves is None else [[rounded(line) for line in pair] for pair in curves],
        **matrix_json(np.asarray(matrix, dtype=np.float64)),
    }


def matrix_json(matrix: Floats) -> Json:
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
    """256 colours of a heat map as hexadecimal digits, the least important first."""
    import matplotlib

    colours = matplotlib.colormaps[COLOURS](np.arange(256), bytes=True)[:, :3]
    return bytes(colours.astype(np.uint8).tobytes()).hex()


class PageStatistics:
    """Statistics of the groups of all runs, and of every combination of groupings.

    A group is given for three scopes: runs that beat naive (`yes`), all scored runs (`all`) and runs that do not beat
    naive (`no`). Seeds are folded within a group and scope, as in every table.
    """

    def __init__(self, runs: PageRuns, most_groups: int | None = None):
        frame = runs.frame
        self._codes = pd.DataFrame({name: runs.texts[name].codes for name in runs.groupings}, dtype="int64")
        table = frame[list(QUANTITIES)].astype("float64")
        table = table.assign(
            beats=beats_naive(frame),
            seasonal=beats_seasonal(frame),
            once=~frame.duplicated([*CONFIGURATION, *SEEDS]),  # a run can be stored with a sweep and without
            configuration=frame.groupby(list(CONFIGURATION), sort=False, dropna=False).ngroup(),
            cluster_dataset=frame["dataset"].astype(str).to_numpy(dtype=object),
            cluster_series=frame["series"].astype(str).to_numpy(dtype=object),
            cluster_short=too_short(frame),
            **self._codes,
        )
        scored = table[(frame["status"] == DONE).to_numpy(dtype=bool)]
        self._scopes = {"yes": scored[scored["beats"]], "all": scored, "no": scored[~scored["beats"]]}
        self._computed = _reduce(self._codes, MOST_GROUPS if most_groups is None else most_groups)
        # A verdict is one of a model or of a backbone: other groups have none, which saves their computation.
        self._judged = {found for names, found in self._computed.items() if not JUDGED.isdisjoint(names)}
        self._findings: dict[tuple[str, str], int] = {}
        self._bound = equivalence_bound(frame)
        self._figures: dict[str, int] = {}

    def as_json(self) -> Json:
        """`computed`, `groups`, `findings` and `figures`.

        - `computed`: for each combination of groupings the smaller one that has the same groups, or null where the
          page would become too large. Groupings are joined by spaces.
        - `groups`: `{groupings: {codes: [share that beats naive, share that beats the season, yes, all, no]}}`. Each
          scope is `[n, g_own, low, high, g_shuffled, g_margin, low, high, share of g_margin above zero, rank, bins,
          clusters, verdict]`, or null without runs: gains of the median source with their intervals and the share of
          sources above zero, the medians `[rank, g_margin]` of bins by rank, the number of sources in words, and for
          runs of a model that beat naive the verdict `[finding, figures]`. With one source its series are meant.
        - `findings`: `[tone, headline]` of each verdict; `figures`: the sentences behind it.
        """
        names = [one for one in dict.fromkeys(self._computed.values()) if one is not None]
        return {
            "computed": {" ".join(a): None if b is None else " ".join(b) for a, b in self._computed.items()},
            "groups": {" ".join(one): self._by(one) for one in names},
            "findings": [list(one) for one in self._findings],
            "figures": list(self._figures),
        }

    def points(self) -> dict[str, Json]:
        """A part for each scope: the points of the plot of gain against rank."""
        return {f"rank-{name}": _rank_points(runs) for name, runs in self._scopes.items()}

    def _by(self, names: Names) -> Json:
        """Groups by some groupings, each with its shares and scopes."""
        scored = self._scopes["all"]
        judged = ("yes",) if names in self._judged else ()
        scopes = [
            {
                codes: self._statistics(values, clusters, judged=name in judged)
                for codes, values, clusters in _folded(part, names)
            }
            for name, part in self._scopes.items()
        ]
        by = scored.groupby(list(names) or np.zeros(len(scored), dtype=np.int64))
        shares = by[["beats", "seasonal"]].mean()
        rows = zip(_joined(shares.reset_index()[list(names)]), shares.to_numpy(dtype=np.float64), strict=True)
        return {codes: [*map(_short, both), *(scope.get(codes) for scope in scopes)] for codes, both in rows}

    def _statistics(self, values: Floats, clusters: npt.NDArray[np.object_], *, judged: bool) -> list[object]:
        own, shuffled, margin, rank = values.T
        kept = ~clusters[:, 2].astype(bool)
        of = clusters[kept, :2].T
        of_own, of_shuffled, of_margin = (evidence(one[kept], *of) for one in (own, shuffled, margin))
        n = int(np.isfinite(margin[kept]).sum())
        share = of_margin.positive / of_margin.n if of_margin.n else math.nan
        figures = (*of_own.known, of_shuffled.interval.point, *of_margin.known, share, median(rank))
        both = np.isfinite(rank) & np.isfinite(margin)
        bins = [[_short(a), _short(b)] for a, b in bin_medians(rank[both], margin[both])]
        verdict = None
        if judged:
            said = Finding(of_own, of_margin, int((~kept).sum()), self._bound)
            number = self._findings.setdefault(said.headline, len(self._findings))
            verdict = [number, self._figures.setdefault(said.figures, len(self._figures))]
        return [n, *map(_short, figures), bins, of_margin.counted, verdict]


def split_groups(statistics: Json) -> tuple[Json, dict[str, Json]]:
    """Statistics with the first groups and the sentences of their verdicts, and a part with all others."""
    first: dict[str, Any] = {}
    later: dict[str, Any] = {}
    every: Any = statistics["groups"]
    for names, groups in every.items():
        small = not later and sum(map(len, first.values())) + len(groups) <= FIRST_GROUPS
        (first if small else later)[names] = groups
    if not later:
        return statistics, {}
    judged = [yes[-1][1] for groups in first.values() for _, _, yes, *_ in groups.values() if yes and yes[-1]]
    known, figures = max(judged, default=-1) + 1, list(statistics["figures"])  # type: ignore[call-overload]
    here = statistics | {"groups": first, "figures": figures[:known]}
    return here, {"further-groups": {"groups": later, "figures": figures[known:]}}


def _reduce(codes: pd.DataFrame, most_groups: int) -> dict[Names, Names | None]:
    """For each combination of columns the smallest one with the same groups; None beyond `most_groups` in total."""
    sizes: dict[Names, int] = {(): 1}
    found: dict[Names, Names | None] = {(): ()}
    total = 1
    for count in range(1, len(codes.columns) + 1):
        for names in combinations(codes.columns, count):
            sizes[names] = len(codes.drop_duplicates(list(names)))
            # A column that splits none of the groups of the others can be left out.
            fewer = (part for part in combinations(names, count - 1) if sizes[part] == max(1, sizes[names]))
            same = next(fewer, None)
            if same is not None:
                found[names] = found[same]
                continue
            total += sizes[names]
            found[names] = names if total <= most_groups else None
    return found


def _joined(codes: pd.DataFrame) -> list[str]:
    """Codes of each row, joined by spaces; without columns, the empty text of the group of all runs."""
    return [" ".join(map(str, one)) for one in codes.to_numpy()]


def _folded(runs: pd.DataFrame, names: Names) -> Iterator[tuple[str, Floats, npt.NDArray[np.object_]]]:
    """Groups of some runs with their seeds folded: codes joined by spaces, values `(n, 4)` and clusters `(n, 3)`.

    Clusters are the names of dataset and series, and whether the forecasts span too little of the series.
    """
    if runs.empty:
        return
    by_configuration = runs[runs["once"]].groupby([*names, "configuration"])
    folded = by_configuration[list(QUANTITIES)].mean()
    clusters = by_configuration[list(CLUSTERS)].first().to_numpy(dtype=object)  # a configuration has one series
    groups = folded.reset_index()[list(names)]
    starts = np.flatnonzero(~groups.duplicated()) if names else np.array([0])
    parts = (np.split(rows, starts[1:]) for rows in (folded.to_numpy(dtype=np.float64), clusters))
    yield from zip(_joined(groups.iloc[starts]), *parts, strict=True)


def _rank_points(runs: pd.DataFrame) -> Json:
    """Rank and `g_margin` of every configuration, a run of each, and the limits of the gain's axis.

    Of more than `MOST_POINTS` every second, third, … one; `of` is their number.
    """
    folded = runs[runs["once"]].groupby("configuration")[["rank", "g_margin"]].mean().dropna()
    limits = list(central_limits(folded["g_margin"].to_numpy())) if len(folded) else None
    drawn = folded[:: max(1, math.ceil(len(folded) / MOST_POINTS))]
    rank, gain = drawn.to_numpy(dtype=np.float64).T
    first = runs[~runs["configuration"].duplicated()].reset_index(names="run").set_index("configuration")
    shown = first.loc[drawn.index, "run"].tolist()
    return {"run": shown, "rank": rounded(rank), "gain": rounded(gain), "limits": limits, "of": len(folded)}


def _short(value: float) -> float | None:
    known = number_or_none(value)
    return None if known is None else float(f"{known:.{DIGITS}g}")
