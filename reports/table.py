"""Tables as people get them: text for a terminal, Markdown, LaTeX, CSV, HTML and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pandas as pd
from rich.cells import cell_len

from hrx.reports import latex, text
from hrx.reports.cells import MISSING, ShownColumn, Span, TableData, TableRow, Value, difference_text, plain, short_name
from hrx.reports.page import render, render_macro
from hrx.reports.text import clean, escape_csv, escape_markdown, number_or_none, wrap

_NARROWEST = 28
"""Terminal columns that a name keeps, so that numbers are never cut."""


class ReportTable(TableData):
    """A table that writes itself in each format."""

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Table {self.name}: {text.counted(len(self.rows), 'row')} × {len(self.columns)} columns>"

    def to_text(self, width: int = 80) -> str:
        """For a terminal, in at most `width` columns where the numbers fit."""
        names = [shown.title("paper", "diff.") for shown in self.shown]
        rows = self._grid(lambda section: f"{short_name(section)}:", lambda shown, row: shown.write(row, short_name))
        widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
        needed = min(widths[0], _NARROWEST) + sum(2 + min(width, _NARROWEST) for width in widths[1:])
        body = text.render_table(names, rows, max(width, needed)).rstrip("\n")
        note = ["", *wrap(clean(self.note), width)] if self.note else []
        return "\n".join([*wrap(clean(self.title), width), "", body, *note]) + "\n"

    def to_markdown(self) -> str:
        """A pipe table with its title above and its note below."""

        def name(shown: str) -> str:
            return escape_markdown(short_name(shown))

        def written(shown: ShownColumn, row: TableRow) -> str:
            field = shown.write(row, name, lambda number: number.replace("<", "&lt;"))
            return f"**{field}**" if shown.part == "own" and row.cells[shown.place].bold else field

        lines = [
            [name(shown.title()) for shown in self.shown],
            ["---:" if shown.is_number else "---" for shown in self.shown],
            *self._grid(lambda section: f"*{name(section)}*", written),
        ]
        note = ["", escape_markdown(self.note)] if self.note else []
        body = [f"| {' | '.join(fields)} |" for fields in lines]
        return "\n".join([f"**{name(self.title)}**", "", *body, *note]) + "\n"

    def _grid(self, section: Callable[[str], str], written: Callable[[ShownColumn, TableRow], str]) -> list[list[str]]:
        """Text of every row and shown column; the name of a section stands alone in its row."""
        empty = [""] * (len(self.shown) - 1)
        return [
            [section(row), *empty] if isinstance(row, str) else [written(shown, row) for shown in self.shown]
            for row in self.sectioned()
        ]

    def to_frame(self) -> pd.DataFrame:
        """Values in full precision under the columns' names. An interval takes two columns."""
        return pd.DataFrame({name: list(map(_json_value, values)) for name, values in self._fields().items()})

    def to_csv(self) -> str:
        """The same as text. A name that a spreadsheet would compute is quoted."""
        frame = pd.DataFrame(self._fields(), dtype=object)
        written = frame.map(lambda value: escape_csv(value) if isinstance(value, str) else _json_value(value))
        return written.to_csv(index=False, lineterminator="\n")

    def _fields(self) -> dict[str, list[Value]]:
        fields: dict[str, list[Value]] = {}
        if any(row.section for row in self.rows):
            fields["section"] = [row.section for row in self.rows]
        for shown in self.shown:
            name = shown.column.name if shown.part == "own" else f"{shown.column.name}_{shown.part}"
            values = [row.cells[shown.place].part(shown.part) for row in self.rows]
            if shown.column.format.kind == "span":
                for end in ("low", "high"):
                    fields[f"{name}_{end}"] = [getattr(value, end, None) for value in values]
            else:
                fields[name] = values
        fields["few"] = [int(any(cell.few for cell in row.cells)) for row in self.rows]
        return fields

    def to_json(self) -> str:
        """Object of `as_json`, written."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    def as_json(self) -> dict[str, object]:
        """Everything: values as numbers, with null for a missing one, and the text of the other formats."""
        heads = [{"name": c.name, "heading": c.heading, "kind": c.format.kind, "unit": c.unit} for c in self.columns]
        about = {name: getattr(self, name) for name in ("name", "title", "note", "label")}
        rows = []
        for row in self.rows:
            cells: dict[str, dict[str, object]] = {}
            for column, cell, compared in zip(self.columns, row.cells, self.compared, strict=True):
                cells[column.name] = {"value": _json_value(cell.value), "text": cell.text, "bold": cell.bold}
                if compared:
                    there = plain(cell.published, cell.format)
                    cells[column.name]["published"] = {
                        "value": _json_value(cell.published),
                        "text": there,
                        "difference": number_or_none(cell.difference),
                        "difference_text": difference_text(cell) if there != MISSING else MISSING,
                    }
            few = any(cell.few for cell in row.cells)
            about_row = {"section": row.section, "total": row.total, "where": dict(row.where), "few": few}
            rows.append({**about_row, "cells": cells})
        return {**about, "columns": heads, "rows": rows}

    def to_latex(self) -> str:
        """A `table` with booktabs rules, in the colours of the paper, never wider than the text.

        A table that is longer than a page becomes several. `hrx.reports.latex.latex_document` makes a document of them.
        """
        return latex.to_latex(self)

    def to_html(self) -> str:
        """A `<table>` with its caption and note, to be put into a page."""
        return str(render_macro("table.html", "shown", self))

    def _repr_html_(self) -> str:
        return str(render_macro("table.html", "in_notebook", self))


class ReportTables(list[ReportTable]):
    """A list of tables that shows itself in a notebook."""

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self)


def _json_value(value: Value) -> object:
    if isinstance(value, Span):
        return [number_or_none(end) for end in value]
    return value if isinstance(value, (str, int)) else number_or_none(value)


def html_page(tables: Sequence[ReportTable]) -> str:
    """A page of the tables that is readable on a screen and on a phone, where wide tables scroll by themselves."""
    return render("tables.html", tables=tables)
