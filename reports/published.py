"""The paper's numbers as data: its names of models, datasets and domains, and its cells beside those of a table.

The files in `published/` hold facts only, each with the table that it is from. Names are matched by the checkpoint or
dataset of a record; a name that the paper does not have stays unchanged.
"""

import csv
import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from hrx.reports.runs import FEW_TEXT
from hrx.reports.table import Cell, ReportTable, Span, Value
from hrx.reports.text import clean, listed, shorten

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
    """The paper's names of models by hub id, by the last part of it, and by short name, all in lower case."""
    return {
        name.casefold(): row["name"]
        for row in csv.DictReader(_text("models.csv").splitlines())
        for name in (row["checkpoint"], row["checkpoint"].rpartition("/")[2], row["short_name"])
    }


def dataset_name(dataset: str) -> str:
    """`us_births/D` as the paper writes it, `Us_births_D`; any other name unchanged."""
    found = datasets().get(dataset.casefold())
    return found.name if found else dataset


def domain_name(dataset: str, domain: str) -> str:
    """The dataset's domain in the paper, else the domain of the record."""
    found = datasets().get(dataset.casefold())
    return found.domain if found and found.domain else domain


def model_name(model: str, checkpoint: str) -> str:
    """The paper's name of a checkpoint, else the user's name."""
    return models().get(checkpoint.casefold()) or models().get(model.casefold()) or model


def beside(table: ReportTable) -> ReportTable:
    """The table with the published value and the difference where the paper has one, and a note on the rest."""
    published = published_tables().get(table.name)
    if published is None:
        return replace(table, note=f"{table.note} The paper has no such table.".strip())
    rows = []
    for row in table.rows:
        fields = published.rows.get((row.section, row.key), {})
        cells = (
            cell.beside(_value(fields[column.name], cell)) if column.name in fields else cell
            for cell, column in zip(row.cells, table.columns, strict=True)
        )
        rows.append(replace(row, cells=tuple(cells)))
    return replace(table, rows=tuple(rows), note=" ".join(filter(None, [table.note, *_remarks(table, published)])))


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
        f"Published: {published.label} of the paper, {published.of}, where every seed counts as a run; differences are "
        "those of the printed values.",
        f"Published rows without runs here: {_some(missing)}." if missing else "",
        f"Rests on too few runs to compare ({FEW_TEXT}): {_some(few)}." if few else "",
    ]


def _some(names: list[str]) -> str:
    names = [shorten(clean(name), _LONGEST_NAME) for name in names]
    rest = len(names) - _MOST_NAMES
    return listed([*names[:_MOST_NAMES], f"{rest} more"] if rest > 0 else names)
