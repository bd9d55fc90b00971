"""Numbers of the paper as data: its names of models, datasets and domains, and its cells beside those of a table.

The files in `published/` hold facts only, each with the table that it is from. A model is matched by its fingerprint or
hub id, never by the name of a directory; a dataset by its name. A name that the paper does not have stays unchanged.
"""

import csv
import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from hrx.reports.statistics import FEW_TEXT
from hrx.reports.table import Basis, Cell, ReportTable, Span, TableColumn, TableRow, Value
from hrx.reports.text import clean, counted, listed, shorten

ALL_MODELS = "All zero-shot TSFMs"
TRAINED = "Trained backbones"
"""Row of the zero-shot tables over the runs of trained backbones."""
_MOST_NAMES = 8
_LONGEST_NAME = 60

Fields = dict[str, object]


class PublishedTable(NamedTuple):
    """One table of the paper."""

    label: str
    of: str
    """Models and data that it was measured on."""
    rows: dict[tuple[str, str], Fields]
    """Cells by column, by section and name of the row."""


class GroundTruthTable(NamedTuple):
    """One table of the paper on its synthetic data."""

    label: str
    of: str
    rows: dict[str, dict[str, float]]


class PublishedDataset(NamedTuple):
    """A dataset of the paper."""

    name: str
    dataset: str
    """Its name here, where that is another."""
    domain: str
    """Its domain in the paper, empty where it has none."""
    source: str


def _text(name: str) -> str:
    return (files("hrx.reports") / "published" / name).read_text(encoding="utf-8")


@cache
def facts() -> dict[str, float]:
    """Single figures of the paper."""
    return dict(json.loads(_text("tables.json"))["facts"])


@cache
def published_tables() -> dict[str, PublishedTable]:
    """Every table by its name here."""
    stored = json.loads(_text("tables.json"))["tables"]
    return {
        name: PublishedTable(
            table["label"], table["of"], {(row.get("section", ""), row["row"]): row for row in table["rows"]}
        )
        for name, table in stored.items()
    }


@cache
def published_ground_truth() -> dict[str, GroundTruthTable]:
    """Published tables on the paper's synthetic data, by name."""
    stored = json.loads(_text("ground_truth.json"))
    return {name: GroundTruthTable(**table) for name, table in stored.items() if name != "source"}


@cache
def datasets() -> dict[str, PublishedDataset]:
    """Datasets by their name in records, and those outside GIFT-Eval by the paper's name."""
    rows = [PublishedDataset(**row) for row in csv.DictReader(_text("datasets.csv").splitlines())]
    return {(row.dataset or row.name).casefold(): row for row in rows}


@cache
def models() -> dict[str, str]:
    """Published names of models by hub id in lower case, and by the fingerprint of the weights where it is known."""
    rows = csv.DictReader(_text("models.csv").splitlines())
    return {mark.casefold(): row["name"] for row in rows for mark in (row["checkpoint"], row["fingerprint"]) if mark}


@cache
def backbones() -> dict[str, str]:
    """Published names of trained backbones by the name of a class in lower case."""
    return {row["class"].casefold(): row["name"] for row in csv.DictReader(_text("backbones.csv").splitlines())}


@cache
def benchmarks() -> frozenset[str]:
    """Datasets on which the paper trains its backbones."""
    return frozenset(name for _, name in published_tables()["benchmarks"].rows)


def backbone_name(backbone: str) -> str:
    """`VanillaTransformer` as the paper writes it, `Transformer`; any other class unchanged."""
    return backbones().get(backbone.casefold(), backbone)


def benchmark_name(dataset: str, domain: str) -> str:
    """Published name of the dataset of a trained run, marked where it was not opened as `tslib:`.

    Only those have the splits of the benchmark, and they alone have these domains.
    """
    name = dataset_name(dataset)
    return f"{name} (not the official split)" if name in benchmarks() and domain not in _OFFICIAL else name


def dataset_name(dataset: str) -> str:
    """`us_births/D` as the paper writes it, `Us_births_D`; any other name unchanged."""
    found = datasets().get(dataset.casefold())
    return found.name if found else dataset


def domain_name(dataset: str, domain: str) -> str:
    """Dataset's domain in the paper, else the domain of the record."""
    found = datasets().get(dataset.casefold())
    return found.domain if found and found.domain else domain


def model_name(model: str, checkpoint: str, fingerprint: str) -> str:
    """Published name of a checkpoint, else the user's name, marked where the paper has another model of that name."""
    if found := models().get(fingerprint) or models().get(checkpoint.casefold()):
        return found
    return f"{model} (not the published one)" if model in models().values() else model


STAR = frozenset({"96x96", "192x96", "320x96", "512x96", "512x24", "512x48", "512x192"})
"""Settings of the paper's zero-shot tables."""
SWEPT = frozenset(f"{x}x{h}" for x in (48, 96, 192, 252, 336, 512) for h in (24, 48, 96, 192, 336, 720))
"""Lookbacks and horizons of the trained backbones. The paper does not list the pairs that it ran."""
_OFFICIAL = ("General", "Finance")
ZERO_SHOT = ("models", "models_full", "metrics", "axes", "domains", "datasets")
"""Tables of released models. The others are of backbones that the authors trained."""
TRAINED_TABLES = ("backbones", "benchmarks", "trained_axes", "trained_domains")
"""Tables whose rows hold runs of trained backbones only, each beside a published cell of the same kind or of none."""
_OF_ESTIMATORS = ("estimators", "estimators_plain", "cost")
IN_COMMON = TableColumn("in_common", "In common", prose=True)


def published_basis(table: str, section: str, row: str) -> Basis:
    """What a published row rests on."""
    if table not in ZERO_SHOT or row == TRAINED:
        return _trained_basis(table, section, row)
    names, there = frozenset(models().values()), datasets().values()
    found = Basis(names, frozenset(one.name for one in there), STAR)
    if section:
        return found._replace(settings=_at(STAR, "HL".index(section[-1]), row))
    if table == "domains":
        return found._replace(datasets=frozenset(one.name for one in there if one.domain == row))
    if table == "datasets":
        return found._replace(datasets=frozenset({row}))
    return found._replace(models=frozenset({row})) if row in names else found


def _trained_basis(table: str, section: str, row: str) -> Basis:
    found = Basis(frozenset(), benchmarks(), SWEPT, backbones=frozenset(backbones().values()))
    if table == "backbones":
        return found._replace(backbones=frozenset({row}))
    if table == "benchmarks":
        return found._replace(datasets=frozenset({row}))
    if table == "trained_axes" and section[-1] in "HL":
        return found._replace(settings=_at(SWEPT, "HL".index(section[-1]), row.split()[-1]))
    if table == "trained_domains":
        return found._replace(datasets=frozenset(name for name in benchmarks() if section in sections(name)))
    return found


def _at(settings: frozenset[str], axis: int, level: str) -> frozenset[str]:
    """Settings at a level of the horizon (0) or the lookback (1)."""
    return frozenset(one for one in settings if one.split("x")[1 - axis] == level)


def sections(benchmark: str) -> tuple[str, ...]:
    """Sections of the paper's table of domains that a benchmark belongs to."""
    if benchmark in _FINANCE:
        return ("Financial", _FINANCE[benchmark])
    return ("General",) if benchmark in benchmarks() else ()


_FINANCE = {"Finance": "Log price", "Finance_ret": "Log return"}


class InCommon(NamedTuple):
    """What two rows share, in words, and whether a difference of them means anything."""

    words: str
    comparable: bool


def in_common(own: Basis, there: Basis, but: tuple[str, ...] = ()) -> InCommon:
    """What two rows share, as `1/8 models +2`: one of the eight published models, and two others.

    A difference needs something shared in every part, and the published protocol except for `but`.
    """
    if there.backbones and not own.backbones:
        return InCommon("no model: trained backbones", False)
    others = own.models if there.backbones else own.backbones
    nouns = ("backbone", "benchmark", "setting") if there.backbones else ("model", "dataset", "setting")
    first = (own.backbones, there.backbones) if there.backbones else (own.models, there.models)
    parts, comparable = [], True
    for noun, (mine, theirs) in zip(
        nouns, (first, (own.datasets, there.datasets), (own.settings, there.settings)), strict=True
    ):
        shared, other = len(mine & theirs), len(mine - theirs) + (len(others) if noun == nouns[0] else 0)
        comparable &= shared > 0
        if mine != theirs or other:
            more = f" +{other}" if other else ""
            parts.append(f"{shared}/{counted(len(theirs), noun)}{more}")
    unlike = sorted(f"{name} {value}" for name, value in own.unlike if name not in but)
    if unlike:
        parts.append(f"other protocol: {listed(unlike)}")
    return InCommon(", ".join(parts) or "all", comparable and not unlike)


def beside(table: ReportTable) -> ReportTable:
    """Table with the published value where the paper has one, what the two rest on in common, and the difference.

    There is a difference only where own runs and published ones share a model, a dataset and a setting. A row of
    trained backbones that does not has no published value beside it either.
    """
    published = published_tables().get(table.name)
    if published is None:
        return replace(table, note=f"{table.note} The paper has no such table.".strip())
    rows = tuple(_row_beside(row, table, published) for row in table.rows)
    note = " ".join(filter(None, [table.note, *_remarks(table, published)]))
    return replace(table, columns=(*table.columns, IN_COMMON), rows=rows, note=note)


def _row_beside(row: TableRow, table: ReportTable, published: PublishedTable) -> TableRow:
    fields = published.rows.get((row.section, row.key))
    if fields is None or row.basis is None:
        why = "not in the paper" if table.name in TRAINED_TABLES else None
        return replace(row, cells=(*row.cells, IN_COMMON.cell(why)))
    but = ("estimator",) if table.name in _OF_ESTIMATORS else ("variates",) if table.name == "channels" else ()
    words, comparable = in_common(row.basis, published_basis(table.name, row.section, row.key), but)
    if not comparable and (table.name in TRAINED_TABLES or row.key == TRAINED):
        return replace(row, cells=(*row.cells, IN_COMMON.cell(f"not comparable: {words}")))
    cells = (
        _beside(cell, fields[column.name], comparable) if column.name in fields else cell
        for cell, column in zip(row.cells, table.columns, strict=True)
    )
    return replace(row, cells=(*cells, IN_COMMON.cell(words)))


def _beside(cell: Cell, stored: object, comparable: bool) -> Cell:
    found = cell.beside(_value(stored, cell))
    return found if comparable else replace(found, difference=None)


def _value(stored: object, cell: Cell) -> Value:
    if isinstance(stored, list):
        return Span(*stored)
    if isinstance(stored, (int, float)):
        return stored / 100 if cell.format.kind == "share" else stored
    return str(stored)


def _remarks(table: ReportTable, published: PublishedTable) -> list[str]:
    """Source of the published numbers, which of them have no runs here, and which rows rest on too few."""
    here = {(row.section, row.key) for row in table.rows}
    missing = [f"{section} {name}".strip() for section, name in published.rows if (section, name) not in here]
    few = [f"{row.section} {row.cells[0].value}".strip() for row in table.rows if row.cells[0].few]
    trained = (
        "A backbone is the published one by the name of its class, whichever library it is from; those of the paper "
        "were trained on the benchmark that they forecast."
    )
    return [
        f"Published: {published.label} of the paper, {published.of}, where every seed counts as a run. In common: how "
        "much of what the published row rests on these runs cover, and how much else (1/8 models +2). Differences are "
        "those of the printed values, and are given where the rows share models, datasets and settings.",
        trained if table.name in TRAINED_TABLES else "",
        f"Published rows without runs here: {_some(missing)}." if missing else "",
        f"Rests on too few runs to compare ({FEW_TEXT}): {_some(few)}." if few else "",
    ]


def _some(names: list[str]) -> str:
    names = [shorten(clean(name), _LONGEST_NAME) for name in names]
    rest = len(names) - _MOST_NAMES
    return listed([*names[:_MOST_NAMES], f"{rest} more"] if rest > 0 else names)
