"""Numbers of the paper as data: its names of models, datasets and domains, and its cells beside those of a table.

The files in `published/` hold facts only, each with the table that it is from. A model is matched by its fingerprint or
hub id, never by the name of a directory; a dataset by its name. A name that the paper does not have stays unchanged.
"""

import csv
import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from hrx.reports.cells import Basis, Cell, Span, TableColumn, TableRow
from hrx.reports.statistics import FEW_TEXT
from hrx.reports.table import ReportTable
from hrx.reports.text import clean, counted, listed, shorten

ALL_MODELS = "All zero-shot TSFMs"
TRAINED = "Trained backbones"
"""Row of the zero-shot tables over the runs of trained backbones."""
_MOST_NAMES = 8
_LONGEST_NAME = 60

Fields = dict[str, Any]


class PublishedTable(NamedTuple):
    """One table of the paper."""

    label: str
    of: str
    """Models and data that it was measured on."""
    rows: dict[Any, Fields]
    """Cells by column, by section and name of the row; on synthetic data by the name alone."""


class PublishedDataset(NamedTuple):
    """A dataset of the paper."""

    name: str
    dataset: str
    """Its name here, where that is another."""
    domain: str
    """Its domain in the paper, empty where it has none."""
    source: str


def _stored(name: str) -> Any:
    """Content of a file: an object, or a list of rows by column."""
    text = (files("hrx.reports") / "published" / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else list(csv.DictReader(text.splitlines()))


@cache
def published_tables() -> dict[str, PublishedTable]:
    """Every table by its name here."""
    found = {}
    for name, table in _stored("tables.json")["tables"].items():
        rows = {(row.get("section", ""), row["row"]): row for row in table["rows"]}
        found[name] = PublishedTable(table["label"], table["of"], rows)
    return found


@cache
def published_ground_truth() -> dict[str, PublishedTable]:
    """Published tables on the paper's synthetic data, by name."""
    stored = _stored("ground_truth.json")
    return {name: PublishedTable(**table) for name, table in stored.items() if name != "source"}


@cache
def datasets() -> dict[str, PublishedDataset]:
    """Datasets by their name in records, and those outside GIFT-Eval by the paper's name."""
    return {(row["dataset"] or row["name"]).casefold(): PublishedDataset(**row) for row in _stored("datasets.csv")}


@cache
def models() -> dict[str, str]:
    """Published names of models by hub id in lower case, and by the fingerprint of the weights where it is known."""
    marks = ("checkpoint", "fingerprint")
    return {row[mark].casefold(): row["name"] for row in _stored("models.csv") for mark in marks if row[mark]}


@cache
def backbones() -> dict[str, str]:
    """Published names of trained backbones by the name of a class in lower case."""
    return {row["class"].casefold(): row["name"] for row in _stored("backbones.csv")}


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
    names, there = frozenset(models().values()), datasets().values()
    found = Basis(names, frozenset(one.name for one in there), STAR)
    if table not in ZERO_SHOT or row == TRAINED:
        found = Basis(frozenset(), benchmarks(), SWEPT, backbones=frozenset(backbones().values()))
    if table in ("axes", "trained_axes") and section[-1] in "LH":  # the row is a level of it, or two
        at, level = "LH".index(section[-1]), row.split()[-1]
        return found._replace(settings=frozenset(one for one in found.settings if one.split("x")[at] == level))
    if table == "domains":
        return found._replace(datasets=frozenset(one.name for one in there if one.domain == row))
    if table == "trained_domains":
        return found._replace(datasets=frozenset(name for name in benchmarks() if section in sections(name)))
    if table in ("datasets", "benchmarks"):
        return found._replace(datasets=frozenset({row}))
    if table == "backbones":
        return found._replace(backbones=frozenset({row}))
    return found._replace(models=frozenset({row})) if row in names and found.models else found


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
    first = ("backbone", own.backbones, there.backbones) if there.backbones else ("model", own.models, there.models)
    second = ("benchmark" if there.backbones else "dataset", own.datasets, there.datasets)
    parts, comparable = [], True
    for noun, mine, theirs in (first, second, ("setting", own.settings, there.settings)):
        shared, other = len(mine & theirs), len(mine - theirs) + (len(others) if noun == first[0] else 0)
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
    cells = []
    for cell, column in zip(row.cells, table.columns, strict=True):
        if column.name in fields:
            cell = _beside(cell, fields[column.name])
        cells.append(cell if comparable else replace(cell, difference=None))
    return replace(row, cells=(*cells, IN_COMMON.cell(words)))


def _beside(cell: Cell, stored: object) -> Cell:
    if isinstance(stored, list):
        return cell.beside(Span(*stored))
    if isinstance(stored, (int, float)):
        return cell.beside(stored / 100 if cell.format.kind == "share" else stored)
    return cell.beside(str(stored))


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
