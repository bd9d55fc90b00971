"""The paper's numbers as data: its names of models, datasets and domains, and its cells beside those of a table.

The files in `published/` hold facts only, each with the table that it is from. A model is matched by its fingerprint or
hub id, never by the name of a directory; a dataset by its name. A name that the paper does not have stays unchanged.
"""

import csv
import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from hrx.reports.cells import Basis, Cell, Span, TableColumn, Value
from hrx.reports.runs import FEW_TEXT
from hrx.reports.table import ReportTable
from hrx.reports.text import clean, counted, listed, shorten

ALL_MODELS = "All zero-shot TSFMs"
_MOST_NAMES = 8
_LONGEST_NAME = 60

Fields = dict[str, object]


class PublishedTable(NamedTuple):
    """One table of the paper."""

    label: str
    of: str
    """The models and data that it was measured on."""
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
    """Its name here, empty where GIFT-Eval does not have it."""
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
    """The paper's tables on its synthetic data, by name."""
    stored = json.loads(_text("ground_truth.json"))
    return {name: GroundTruthTable(**table) for name, table in stored.items() if name != "source"}


@cache
def datasets() -> dict[str, PublishedDataset]:
    """Datasets by their name in records, and those outside GIFT-Eval by the paper's name."""
    rows = [PublishedDataset(**row) for row in csv.DictReader(_text("datasets.csv").splitlines())]
    return {(row.dataset or row.name).casefold(): row for row in rows}


@cache
def models() -> dict[str, str]:
    """The paper's names of models by hub id in lower case, and by the fingerprint of the weights where it is known."""
    rows = csv.DictReader(_text("models.csv").splitlines())
    return {mark.casefold(): row["name"] for row in rows for mark in (row["checkpoint"], row["fingerprint"]) if mark}


def dataset_name(dataset: str) -> str:
    """`us_births/D` as the paper writes it, `Us_births_D`; any other name unchanged."""
    found = datasets().get(dataset.casefold())
    return found.name if found else dataset


def domain_name(dataset: str, domain: str) -> str:
    """The dataset's domain in the paper, else the domain of the record."""
    found = datasets().get(dataset.casefold())
    return found.domain if found and found.domain else domain


def model_name(model: str, checkpoint: str, fingerprint: str) -> str:
    """The paper's name of a checkpoint, else the user's name, marked where the paper has another model of that name."""
    if found := models().get(fingerprint) or models().get(checkpoint.casefold()):
        return found
    return f"{model} (not the published one)" if model in models().values() else model


STAR = frozenset({"96x96", "192x96", "320x96", "512x96", "512x24", "512x48", "512x192"})
"""The settings of the paper's zero-shot tables."""
ZERO_SHOT = ("models", "models_full", "metrics", "axes", "domains", "datasets")
"""Tables of released models. The others are of backbones that the authors trained."""
IN_COMMON = TableColumn("in_common", "In common", prose=True)


def published_basis(table: str, section: str, row: str) -> Basis | None:
    """What a published row rests on; None where the paper's models are not released ones."""
    if table not in ZERO_SHOT:
        return None
    names, there = frozenset(models().values()), datasets().values()
    found = Basis(names, frozenset(one.name for one in there), STAR)
    if section:
        place = 1 if section == "Horizon H" else 0
        return found._replace(settings=frozenset(one for one in STAR if one.split("x")[place] == row))
    if table == "domains":
        return found._replace(datasets=frozenset(one.name for one in there if one.domain == row))
    if table == "datasets":
        return found._replace(datasets=frozenset({row}))
    return found._replace(models=frozenset({row})) if row in names else found


def in_common(own: Basis, there: Basis | None) -> tuple[str, bool]:
    """What two rows share, as `1/8 models +2`, and whether a difference of them means anything.

    That is: one of the eight published models, and two others. A difference needs something shared in every part.
    """
    if there is None:
        return "no model: trained backbones", False
    parts, comparable = [], True
    for noun, mine, theirs in zip(("model", "dataset", "setting"), own, there, strict=True):
        shared, other = len(mine & theirs), len(mine - theirs)
        comparable &= shared > 0
        if mine != theirs:
            more = f" +{other}" if other else ""
            parts.append(f"{shared}/{counted(len(theirs), noun)}{more}")
    return ", ".join(parts) or "all", comparable


def beside(table: ReportTable) -> ReportTable:
    """The table with the published value where the paper has one, what the two rest on in common, and the difference.

    There is a difference only where own runs and published ones share a model, a dataset and a setting.
    """
    published = published_tables().get(table.name)
    if published is None:
        return replace(table, note=f"{table.note} The paper has no such table.".strip())
    rows = []
    for row in table.rows:
        fields = published.rows.get((row.section, row.key))
        if fields is None or row.basis is None:
            rows.append(replace(row, cells=(*row.cells, IN_COMMON.cell(None))))
            continue
        words, comparable = in_common(row.basis, published_basis(table.name, row.section, row.key))
        cells = (
            _beside(cell, fields[column.name], comparable) if column.name in fields else cell
            for cell, column in zip(row.cells, table.columns, strict=True)
        )
        rows.append(replace(row, cells=(*cells, IN_COMMON.cell(words))))
    note = " ".join(filter(None, [table.note, *_remarks(table, published)]))
    return replace(table, columns=(*table.columns, IN_COMMON), rows=tuple(rows), note=note)


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
    """The source of the published numbers, which of them have no runs here, and which rows rest on too few."""
    here = {(row.section, row.key) for row in table.rows}
    missing = [f"{section} {name}".strip() for section, name in published.rows if (section, name) not in here]
    few = [f"{row.section} {row.cells[0].value}".strip() for row in table.rows if row.cells[0].few]
    return [
        f"Published: {published.label} of the paper, {published.of}, where every seed counts as a run. In common: how "
        "much of what the published row rests on these runs cover, and how much else (1/8 models +2). Differences are "
        "those of the printed values, and are given where the rows share models, datasets and settings.",
        f"Published rows without runs here: {_some(missing)}." if missing else "",
        f"Rests on too few runs to compare ({FEW_TEXT}): {_some(few)}." if few else "",
    ]


def _some(names: list[str]) -> str:
    names = [shorten(clean(name), _LONGEST_NAME) for name in names]
    rest = len(names) - _MOST_NAMES
    return listed([*names[:_MOST_NAMES], f"{rest} more"] if rest > 0 else names)
