"""A table as plain text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hrx.reports import escape
from hrx.reports.cells import MISSING, Cell, Column, Span, Value, difference_text, plain
from hrx.reports.layout import clean, columns, wrap
from hrx.reports.statistics import FEW_TEXT
from hrx.reports.text import render_table
from hrx.reports.words import number_or_none

if TYPE_CHECKING:
    from hrx.reports.table import Table

PUBLISHED, DIFFERENCE = "published", "difference"
_NARROWEST_NAME = 28
"""Columns that a name keeps on a terminal, so that numbers never give way."""


def is_number(column: Column) -> bool:
    return column.format.kind != "text"


def _heading(column: Column) -> str:
    return f"{column.heading} ({column.unit})" if column.unit else column.heading


def text(table: Table, width: int) -> str:
    names = table.per_column(_heading, lambda c: "paper", lambda c: "diff.")
    rows: list[list[str]] = []
    for row in table.sectioned():
        if isinstance(row, str):
            rows.append([f"{row}:", *[""] * (len(names) - 1)])
        else:
            rows.append(table.per_cell(row, lambda c, _: _with_few(c), _published, difference_text))
    body = render_table(names, rows, max(width, _needed(names, rows))).rstrip("\n")
    note = ["", *wrap(clean(table.note), width)] if table.note else []
    return "\n".join([*wrap(clean(table.title), width), "", body, *note]) + "\n"


def _needed(names: list[str], rows: list[list[str]]) -> int:
    """Terminal columns below which numbers would be cut: all of every column but the first."""
    widths = [max(columns(clean(text)) for text in column) for column in zip(names, *rows, strict=True)]
    return min(widths[0], _NARROWEST_NAME) + sum(2 + min(width, _NARROWEST_NAME) for width in widths[1:])


def _with_few(cell: Cell) -> str:
    """A name says when its row rests on few runs."""
    return f"{cell.text} ({FEW_TEXT})" if cell.few and cell.format.kind == "text" else cell.text


def _published(cell: Cell) -> str:
    return plain(cell.published, cell.format)


def markdown(table: Table) -> str:
    names = table.per_column(_heading, lambda c: PUBLISHED, lambda c: DIFFERENCE)
    right = table.per_column(is_number, lambda c: True, lambda c: True)
    lines = [
        f"**{escape.markdown(table.title)}**",
        "",
        _piped(map(escape.markdown, names)),
        _piped("---:" if one else "---" for one in right),
    ]
    for row in table.sectioned():
        if isinstance(row, str):
            lines.append(_piped([f"*{escape.markdown(row)}*", *[""] * (len(names) - 1)]))
        else:
            lines.append(_piped(table.per_cell(row, _markdown_cell, _markdown_published, difference_text)))
    note = ["", escape.markdown_prose(table.note)] if table.note else []
    return "\n".join([*lines, *note]) + "\n"


def _piped(fields: Iterable[str]) -> str:
    return f"| {' | '.join(fields)} |"


def _markdown_cell(cell: Cell, _: Column) -> str:
    shown = escape.markdown(cell.text) if isinstance(cell.value, str) else cell.text.replace("<", "&lt;")
    if cell.few and cell.format.kind == "text":
        shown += f" ({FEW_TEXT.replace('<', '&lt;')})"
    return f"**{shown}**" if cell.bold else shown


def _markdown_published(cell: Cell) -> str:
    return escape.markdown(_published(cell)) if isinstance(cell.published, str) else _published(cell)


def csv_file(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    sections = any(row.section for row in table.rows)
    writer.writerow([*(["section"] if sections else []), *_csv_names(table), "few"])
    for row in table.rows:
        fields: list[str] = [escape.csv_text(row.section)] if sections else []
        for cell, column, compared in zip(row.cells, table.columns, table.compared, strict=True):
            fields += _csv_fields(cell.value, column)
            fields += _csv_fields(cell.published, column) if compared else []
            fields += [_csv_number(cell.difference)] if compared and column.differs else []
        writer.writerow([*fields, int(any(cell.few for cell in row.cells))])
    return out.getvalue()


def _csv_names(table: Table) -> Iterator[str]:
    for column, compared in zip(table.columns, table.compared, strict=True):
        ends = ("_low", "_high") if column.format.kind == "span" else ("",)
        for suffix in ("", f"_{PUBLISHED}") if compared else ("",):
            yield from (column.name + suffix + end for end in ends)
        if compared and column.differs:
            yield f"{column.name}_{DIFFERENCE}"


def _csv_fields(value: Value, column: Column) -> list[str]:
    if column.format.kind == "span":
        return [_csv_number(end) for end in value] if isinstance(value, Span) else ["", ""]
    if isinstance(value, str):
        return [escape.csv_text(value)]
    return [_csv_number(value if not isinstance(value, Span) else None)]


def _csv_number(value: float | None) -> str:
    return "" if number_or_none(value) is None else repr(value)


def json_file(table: Table) -> str:
    return json.dumps(as_json(table), indent=1, allow_nan=False) + "\n"


def as_json(table: Table) -> dict[str, object]:
    heads = [{"name": c.name, "heading": c.heading, "kind": c.format.kind, "unit": c.unit} for c in table.columns]
    rows = [
        {
            "section": row.section,
            "total": row.total,
            "where": dict(row.where),
            "few": any(cell.few for cell in row.cells),
            "cells": {
                column.name: _json_cell(cell, compared)
                for column, cell, compared in zip(table.columns, row.cells, table.compared, strict=True)
            },
        }
        for row in table.rows
    ]
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "label": table.label,
        "columns": heads,
        "rows": rows,
    }


def _json_cell(cell: Cell, compared: bool) -> dict[str, object]:
    shown: dict[str, object] = {"value": _json_value(cell.value), "text": cell.text, "bold": cell.bold}
    if compared:
        published = _published(cell)
        shown[PUBLISHED] = {
            "value": _json_value(cell.published),
            "text": published,
            "difference": number_or_none(cell.difference),
            "difference_text": difference_text(cell) if published != MISSING else MISSING,
        }
    return shown


def _json_value(value: Value) -> object:
    if isinstance(value, Span):
        return [number_or_none(end) for end in value]
    return value if isinstance(value, (str, int)) else number_or_none(value)
