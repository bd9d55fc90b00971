"""Runs that the tables summarise, groups of them as rows, and the columns that tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.records.quantities import DISTANCES, TRUNCATIONS
from hrx.records.record import DECLARED, DONE
from hrx.reports.cells import COUNT, GAIN, INTERVAL, SHARE, Basis, Cell, P, Span, TableColumn, TableRow, Value
from hrx.reports.published import backbone_name, benchmark_name, dataset_name, domain_name, model_name
from hrx.reports.runs import (
    CONFIGURATION,
    SEEDS,
    beats_seasonal,
    fold_seeds,
    impossible_remark,
    mask_impossible,
    mask_short,
    pooled,
    remarks,
)
from hrx.reports.statistics import (
    FEWEST_INTERVAL,
    FEWEST_SIGN,
    LEVEL,
    Evidence,
    GroupStatistics,
    describe,
    evidence,
    holm,
)
from hrx.reports.text import counted, listed

DEFAULT_ESTIMATOR = "input_gradient"
ESTIMATORS = {
    "saliency": "Saliency", "gradient_x_input": "Gradient × input", "integrated_gradients": "Integrated gradients",
    "occlusion": "Occlusion", "dynamask": "Dynamask", "extremalmask": "ExtremalMask", "contralsp": "ContraLSP",
    "input_gradient": "Input gradient", "tsr": "TSR", "smoothgrad": "SmoothGrad",
}  # fmt: skip
"""Published names of the estimators, in the paper's order."""
SWEPT_RANKS = tuple(f"g_own_rank_{r}" for r in TRUNCATIONS)
SWEPT_DISTANCES = tuple(f"g_distance_{d}" for d in DISTANCES)
_MEASURED = (
    "g_own", "g_shuffled", "g_margin", "comprehensiveness", "aopc", "sufficiency", "insertion", "rank", "gap_shared",
    "g_own_channel", "rank_channel", "mse", "mse_zero", "mse_last", "mse_seasonal", "mase", "naive_mase",
    "seasonal_mase", *SWEPT_RANKS, *SWEPT_DISTANCES,
)  # fmt: skip
FOLDED_VERDICTS = ("beats_naive", "beats_seasonal", "leaked")
"""What every table shows beside its quantities."""
FOLDED = (*_MEASURED, *FOLDED_VERDICTS, "cost")
_FACTS = ("checkpoint", "domain", "leakage", "beats_naive", "matrix_seconds", "forward_seconds", "padded",
          "channel_effects", "channels_left_out")  # fmt: skip
_TRAINING = ("backbone", "depth", "training_seed")
_PUBLISHED_PROTOCOL = {"estimator": DEFAULT_ESTIMATOR, "area": "gap", "channels": 1}
"""Published value of the columns that a row must share with the paper's; univariate runs have no channels."""
_BEATS = (
    "Beats naive: share with a squared error below both naive forecasts; a gain is meaningful only there. "
    "Beats season: share below seasonal naive."
)
NONE_DECLARED = "none declared"
_SHOWN_APART = ("estimator", "estimator_settings", "estimator_package", "axis")
"""Settings that a table about them has one row each for."""


class ScoredRuns:
    """Scored runs of a ledger: those of one estimator, those of all, and those without the horizon axis."""

    def __init__(self, frame: pd.DataFrame, estimator: str = DEFAULT_ESTIMATOR, fold: bool = True):
        self.frame, self.estimator, self.fold = frame, estimator, fold
        # Records that were exported by an earlier hrx have fewer columns.
        stored = frame[frame["status"] == DONE].reindex(
            columns=[*CONFIGURATION, *SEEDS, *_MEASURED, *_FACTS, *_TRAINING, "training", "variance_span", "sparse"]
        )
        said = {"impossible": impossible_remark(stored)} | remarks(stored)
        self._unknown_rows = said.pop("rows", "")
        self._remarks = tuple(said[name] for name in ("padded", "impossible", "short", "sparse") if name in said)
        done = mask_short(mask_impossible(stored)).copy()
        # Unknown is not zero: nothing is declared, or not which parts of the benchmark were seen.
        done["leaked"] = done["leakage"].map({DECLARED: 1.0, NONE_DECLARED: 0.0}).astype("float64")
        done["beats_seasonal"] = beats_seasonal(done)
        done["cost"] = done["matrix_seconds"] / done["forward_seconds"].where(done["forward_seconds"] > 0)
        done["beats_naive"] = done["beats_naive"].astype("float64")
        self._done = done
        self._whole = (done["axis"] == "whole").to_numpy(dtype=bool)

    @cached_property
    def scored(self) -> pd.DataFrame:
        """Before folding: the runs of the chosen estimator, with a row per forecast step."""
        return self._done[~self._whole & (self._done["estimator"] == self.estimator).to_numpy(dtype=bool)]

    @cached_property
    def configurations(self) -> pd.DataFrame:
        """Return the same with their seeds folded, and with the names of the paper."""
        return self.named(self.scored)

    @cached_property
    def every_estimator(self) -> pd.DataFrame:
        """Configurations of all estimators, with a row per forecast step."""
        return self.named(self._done[~self._whole])

    @cached_property
    def whole(self) -> pd.DataFrame:
        """Configurations of all estimators without the horizon axis."""
        return self.named(self._done[self._whole])

    def named(self, runs: pd.DataFrame, *, fold: bool = False, also: Sequence[str] = ()) -> pd.DataFrame:
        """Configurations of the runs with the paper's names of models, datasets and domains, and `also` folded."""
        named = fold_seeds(runs, (*FOLDED, *also)) if fold or self.fold else runs.copy()
        checkpoints = dict(zip(runs["fingerprint"], runs["checkpoint"], strict=True))
        domains = dict(zip(runs["dataset"], runs["domain"].fillna(""), strict=True))
        datasets = named["dataset"].astype(str)
        named["dataset_name"] = [dataset_name(name) for name in datasets]
        named["domain_name"] = [domain_name(name, str(domains.get(name, ""))) for name in datasets]
        named["checkpoint"] = [str(checkpoints.get(weights, "")) for weights in named["fingerprint"]]
        about = (named[name].astype(str) for name in ("model", "checkpoint", "fingerprint"))
        named["model_name"] = list(map(model_name, *about))
        # A record of an earlier hrx has none of these; another one of the same weights may.
        training = runs.groupby("fingerprint", dropna=False)[list(_TRAINING)].first().reindex(named["fingerprint"])
        named["backbone"] = training["backbone"].fillna("").to_numpy()
        named["depth"], named["training_seed"] = (training[name].to_numpy() for name in ("depth", "training_seed"))
        named["backbone_name"] = [backbone_name(str(name)) for name in named["backbone"]]
        trained = (named["backbone"] != "").to_numpy()
        # One name may stand for the official set and for a file of the user.
        keys = ["fingerprint", "dataset", "series_fingerprint"]
        opened = dict(zip(runs[keys].itertuples(index=False, name=None), runs["domain"], strict=True))
        places = named.loc[trained, keys].itertuples(index=False, name=None)
        named.loc[trained, "dataset_name"] = [benchmark_name(str(key[1]), str(opened.get(key, ""))) for key in places]
        return named

    @cached_property
    def trained(self) -> pd.DataFrame:
        """Configurations of trained backbones."""
        return self.configurations[self.configurations["backbone"] != ""]

    @cached_property
    def zero_shot(self) -> pd.DataFrame:
        """Configurations of other models; all of them in a ledger of trained backbones only."""
        others = self.configurations[self.configurations["backbone"] == ""]
        return self.configurations if others.empty else others

    @property
    def left_out(self) -> str:
        """How many configurations are not among the zero-shot ones, as a sentence; empty where none is left out."""
        count = len(self.configurations) - len(self.zero_shot)
        return f"Without {counted(count, 'configuration')} of trained backbones." if count else ""

    def note(self, group: pd.DataFrame, *sentences: str) -> str:
        """Sentences below a table: its own, then what counts, what beats naive, leakage and pooling mean."""
        what = "n counts runs: every seed is one."
        if "seeds" in group:
            every = int(group["seeds"].sum())
            folded = f"seeds folded to their mean ({counted(every, 'run')})" if every > len(group) else "one seed each"
            what = f"n counts configurations, {folded}."
        leaked, unknown = int((group["leaked"] > 0).sum()), int(group["leaked"].isna().sum())
        known = f"{leaked:,} of {len(group):,}" + (f", {unknown:,} unknown" if unknown else "")
        differing = pooled(group, but=_SHOWN_APART)
        pools = f"Pools runs that differ in {listed(differing)}." if differing else ""
        leakage = f"Leakage: on a dataset that the model is declared to have seen ({known})."
        return " ".join(filter(None, (*sentences, what, _BEATS, leakage, pools, *self._remarks)))

    def note_of_trained(self, group: pd.DataFrame, *sentences: str) -> str:
        """Write the same below a table of trained models, and where the rows of their training are unknown."""
        return self.note(group, *sentences, "A training seed makes a model of its own.", self._unknown_rows)

    def holdings(self) -> str:
        """What the ledger holds, for an error message."""
        counts = self.frame["status"].value_counts().items()
        estimators = sorted({str(name) for name in self._done["estimator"]})
        of = f", scored ones of {listed(estimators)}" if estimators else ""
        return f"The ledger holds {listed(f'{count} {status}' for status, count in counts) or 'no runs'}{of}."


@dataclass(frozen=True)
class TableGroup:
    """Runs of one row: its label, the quantity that its row is about, and its place in the table."""

    label: str
    runs: pd.DataFrame
    quantity: str = "g_own"
    key: str = ""
    """Its name in the published table, where that is not the label."""
    section: str = ""
    where: tuple[tuple[str, str | int], ...] = ()
    total: bool = False
    corrected: Mapping[str, float] = field(default_factory=dict)
    """P values by quantity, where they are corrected for the other rows."""
    _described: dict[str, GroupStatistics] = field(default_factory=dict, compare=False)
    _found: dict[str, Evidence] = field(default_factory=dict, compare=False)

    def statistics(self, quantity: str = "") -> GroupStatistics:
        """Statistics of a quantity, by default that of the row, with each run as independent."""
        name = quantity or self.quantity
        if name not in self._described:
            self._described[name] = describe(self.runs[name].to_numpy(dtype=np.float64))
        return self._described[name]

    def evidence(self, quantity: str = "") -> Evidence:
        """One value of a quantity per cluster."""
        name = quantity or self.quantity
        if name not in self._found:
            self._found[name] = evidence(self.runs[name], self.runs["dataset"], self.runs["series"])
        return self._found[name]

    def p(self, quantity: str = "") -> float | None:
        """P of the sign test over clusters, corrected where the table is; none from fewer than six."""
        found = self.evidence(quantity)
        return self.corrected.get(quantity or self.quantity, found.p) if found.n >= FEWEST_SIGN else None

    def side(self, quantity: str = "") -> int:
        """1 or -1 where the clusters decide that a quantity lies above or below zero, else 0."""
        p, side = self.p(quantity), {"above": 1, "below": -1, "undecided": 0}[self.evidence(quantity).side]
        return side if p is not None and p <= LEVEL else 0

    def row(self, label: TableColumn, figures: Sequence[Figure]) -> TableRow:
        """Cells of the group, with what the runs that have a value of its quantity were measured on."""
        cells = (label.cell(self.label, n=self.statistics().n), *(figure.cell(self) for figure in figures))
        runs = self.runs[self.runs[self.quantity].notna()]
        trained = runs["backbone"] != ""
        basis = Basis(
            frozenset(runs.loc[~trained, "model_name"]),
            frozenset(runs["dataset_name"]),
            frozenset(f"{x}x{h}" for x, h in zip(runs["lookback"], runs["horizon"], strict=True)),
            frozenset(runs.loc[trained, "backbone_name"]),
            frozenset(
                ("variates" if name == "channels" else name, str(value))
                for name, published in _PUBLISHED_PROTOCOL.items()
                for value in runs[name].dropna().unique()
                if value != published
            ),
        )
        return TableRow(cells, self.key or self.label, self.section, self.total, self.where, basis)


class Figure(NamedTuple):
    """A column of a table, and the cell of a group in it."""

    column: TableColumn
    cell: Callable[[TableGroup], Cell]


def corrected(groups: Sequence[TableGroup], *quantities: str) -> list[TableGroup]:
    """Return the groups with the p values of these quantities after Holm's correction over the rows."""
    found: dict[str, dict[str, float]] = {group.label: {} for group in groups}
    for name in quantities:
        tested = {group.label: p for group in groups if (p := group.p(name)) is not None}
        for label, p in zip(tested, holm(list(tested.values())), strict=True):
            found[label][name] = p
    return [replace(group, corrected=found[group.label]) for group in groups]


def median_of(column: TableColumn, quantity: str = "") -> Figure:
    """Median of a quantity, by default that of the row; bold in a coloured column where clusters decide its sign."""

    def cell(group: TableGroup) -> Cell:
        found = group.statistics(quantity)
        decided = bool(column.hue) and group.side(quantity) * found.median > 0
        return column.cell(found.median, n=found.n, significant=decided)

    return Figure(column, cell)


def interval_of(column: TableColumn, quantity: str = "") -> Figure:
    """Plain bootstrap of that median, which takes each run as independent: for columns beside published cells only."""

    def cell(group: TableGroup) -> Cell:
        found = group.statistics(quantity)
        return column.cell(Span(found.low, found.high), n=found.n)

    return Figure(column, cell)


def value_of(column: TableColumn, value: Callable[[TableGroup], Value]) -> Figure:
    """Any other value over the runs of the row's quantity."""
    return Figure(column, lambda group: column.cell(value(group), n=group.statistics().n))


def count_of(column: TableColumn, value: Callable[[TableGroup], Value]) -> Figure:
    """A value that is meaningful for any number of runs: a count, a name, a p value."""
    return Figure(column, lambda group: column.cell(value(group)))


def _positive(group: TableGroup) -> Cell:
    """Share of runs above zero; bold where the clusters decide the sign of the median, red where that is positive."""
    found = group.statistics()
    cell = POSITIVE.column.cell(found.positive, n=found.n, significant=group.side() * found.median > 0)
    return cell if found.median > 0 else replace(cell, hue="")


def _interval(group: TableGroup) -> Value:
    """From five clusters on; that of five covers 94 %."""
    found = group.evidence()
    return Span(*found.interval[1:]) if found.n >= FEWEST_INTERVAL else None


def _above(group: TableGroup) -> Value:
    found = group.evidence()
    return f"{found.positive} of {found.counted}" if found.n else None


def _leaked(group: TableGroup) -> Value:
    """How many are on a dataset that the model is declared to have seen; unknown ones are counted apart."""
    leaked = group.runs["leaked"]
    known, unknown = int((leaked > 0).sum()), int(leaked.isna().sum())
    if not unknown:
        return known
    return "unknown" if unknown == len(leaked) else f"{known:,} ({unknown:,} unknown)"


G_OWN = TableColumn("g_own", "g_own", GAIN, hue="red")
G_SHUFFLED = TableColumn("g_shuffled", "g_shuffled", GAIN, hue="blue")
G_MARGIN = TableColumn("g_margin", "g_margin", GAIN, hue="red")
GAIN_COLUMNS = (G_OWN, G_SHUFFLED, G_MARGIN)
POSITIVE = Figure(TableColumn("positive", "Positive", SHARE, hue="red"), _positive)
N = count_of(TableColumn("n", "n", COUNT), lambda group: group.statistics().n)
SIGN_TEST = count_of(TableColumn("p", "Sign test over runs", P), lambda group: group.statistics().p)
EVIDENCE = (
    count_of(TableColumn("evidence_median", "Median cluster", GAIN), lambda group: group.evidence().interval.point),
    count_of(TableColumn("evidence_interval", "95% interval", INTERVAL), _interval),
    count_of(TableColumn("evidence_positive", "Above 0"), _above),
    count_of(TableColumn("evidence_p", "p", P), lambda group: group.p()),
)
"""One value per cluster: the median of them, its interval from five on, and the sign test from six on."""
EVIDENCE_NOTE = (
    "Median cluster, interval, count above 0 and p rest on one value per source, the name of a dataset before the "
    "slash, or per series where a row has one source; the interval of five covers 94 %. Bold is what they decide. A "
    "share of runs, and an interval or test over runs, takes each run as independent, as the paper does."
)
BEATS_NAIVE = count_of(
    TableColumn("beats_naive", "Beats naive", SHARE), lambda group: float(group.runs["beats_naive"].mean())
)
BEATS_SEASONAL = count_of(
    TableColumn("beats_seasonal", "Beats season", SHARE), lambda group: float(group.runs["beats_seasonal"].mean())
)
LEAKED = count_of(TableColumn("leaked", "Leakage", COUNT), _leaked)
MARGIN_OF_MEDIANS = value_of(
    TableColumn("margin_of_medians", "g_own − g_shuffled", GAIN),
    lambda group: group.statistics("g_own").median - group.statistics("g_shuffled").median,
)
MARGIN_NOTE = "g_own − g_shuffled is the difference of the two medians, which is what the paper prints as its margin."


def shared_note(frame: pd.DataFrame) -> str:
    """Which rows make the shared vectors of estimators that stand side by side; empty where all are made alike."""
    if "input_gradient" not in (every := set(frame["estimator"])) or len(every) == 1:
        return ""
    return (
        "The shared vector of input_gradient is the mean of all rows, that of the others the mean of the scored rows: "
        "the row to compare them with is saliency, input gradient at the scored steps."
    )


def by_estimator(frame: pd.DataFrame, quantity: str, *where: tuple[str, str]) -> list[TableGroup]:
    """Runs of each estimator, in the paper's order, others after them by name."""
    groups = {str(name): group for name, group in frame.groupby("estimator", sort=True)}
    names = [*(name for name in ESTIMATORS if name in groups), *(name for name in groups if name not in ESTIMATORS)]
    label = {**dict(zip(names, names, strict=True)), **ESTIMATORS}
    return [TableGroup(label[name], groups[name], quantity, where=(("estimator", name), *where)) for name in names]


SCORED = "scored runs of that estimator with one row per forecast step"
Content = tuple[Iterable[TableGroup], Sequence[Figure], str]
"""Groups of the rows, the columns after the row's label, and the sentences of the note."""
Maker = Callable[[ScoredRuns], Content]


class TableRecipe(NamedTuple):
    """What a table is called, the function that makes its content, and what the ledger must hold for it."""

    title: str
    label: TableColumn
    content: Maker
    needs: str
    descending: bool
    keep_empty: bool
    evidence: bool


RECIPES: dict[str, TableRecipe] = {}
"""Tables by name, in order."""


def table(
    title: str, label: str, needs: str = SCORED, *, name: str = "", descending: bool = False, keep_empty: bool = False,
    evidence: bool = True,
) -> Callable[[Maker], Maker]:  # fmt: skip
    """List a table under its function's name.

    `descending`: by falling median; `keep_empty`: empty rows stay; `evidence`: with the columns of `EVIDENCE`.
    """

    def add(content: Maker) -> Maker:
        column = TableColumn(name or label.lower(), label)
        RECIPES[content.__name__] = TableRecipe(title, column, content, needs, descending, keep_empty, evidence)
        return content

    return add
