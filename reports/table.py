"""Tables as data, and as text for a terminal, Markdown, LaTeX, CSV, HTML and JSON.

Signs, decimals and percentages follow the published tables. A column in which any cell has a published value is shown
beside that value, and beside the difference where one is meaningful: not for counts, intervals and p values. The
content of the tables is made in `hrx.reports.tables`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import pandas as pd
from rich.cells import cell_len

from hrx.reports import text
from hrx.reports.page import render, render_macro
from hrx.reports.statistics import FEW, FEW_TEXT, is_few
from hrx.reports.text import clean, escape_csv, escape_latex, escape_markdown, number_or_none, wrap

MISSING = "-"
_TINY_P = 1e-12
_NARROWEST_NAME = 28
"""Terminal columns that a name keeps, so that numbers are never cut."""
_SYMBOLS = {
    "g_own": r"$g_{\text{own}}$", "g_shuffled": r"$g_{\text{shuffled}}$", "g_margin": r"$g_{\text{margin}}$",
    "n": "$n$", "<10^-12": "$<10^{-12}$",
}  # fmt: skip
_LATEX_LINES = 42
"""Lines of a LaTeX table that fit on a page."""
PACKAGES = "adjustbox,amsmath,array,booktabs,xcolor"
_PREAMBLE = (
    rf"% needs \usepackage{{{PACKAGES}}}",
    r"\providecolor{hred}{RGB}{168,26,38}\providecolor{hblue}{RGB}{26,62,148}",
)
_DOCUMENT = (r"\documentclass{article}", r"\usepackage[margin=2cm]{geometry}", rf"\usepackage{{{PACKAGES}}}")


class Span(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


Value = str | int | float | Span | None
Kind = Literal["text", "count", "number", "share", "span", "p", "times"]
Part = Literal["own", "published", "difference"]
Hue = Literal["", "red", "blue"]


@dataclass(frozen=True)
class Format:
    """How a value is written; `plus` shows the sign of a positive number."""

    kind: Kind = "text"
    decimals: int = 3
    plus: bool = True


TEXT = Format()
COUNT = Format("count")
SHARE = Format("share")
"""From 0 to 1; written in whole percent."""
P = Format("p")
TIMES = Format("times")
GAIN = Format("number")
FINE_GAIN = Format("number", decimals=4)
INTERVAL = Format("span")


@dataclass(frozen=True)
class Cell:
    """One value, its format, and the published value beside it."""

    value: Value = None
    format: Format = TEXT
    bold: bool = False
    """Significant: one value per cluster decides the sign, over at least ten runs. Nothing else is bold."""
    hue: Hue = ""
    """Published colour: of a bold value in the direction that the paper calls ideal."""
    faint: bool = False
    few: bool = False
    """Over fewer than ten runs."""
    published: Value = None
    difference: float | None = None
    """This value less the published one, both as printed, in the unit of `value`."""

    @property
    def text(self) -> str:
        """Value in plain text; a name is not cleaned yet."""
        return plain(self.value, self.format)

    def part(self, part: Part) -> Value:
        return {"own": self.value, "published": self.published, "difference": self.difference}[part]

    def beside(self, published: Value) -> Cell:
        """Return the same cell with the published value and the difference of the printed values."""
        here, there = printed(self.value, self.format), printed(published, self.format)
        difference = None if here is None or there is None else round(here - there, 10)
        return replace(self, published=published, difference=difference)


@dataclass(frozen=True)
class TableColumn:
    """A column with its name in files and its heading for people."""

    name: str
    heading: str
    format: Format = TEXT
    unit: str = ""
    prose: bool = False
    """Words that may be broken into lines, in LaTeX and HTML."""
    hue: Hue = ""
    """Which values the paper prints in colour: above zero in red, below zero in blue."""

    def cell(self, value: Value, *, n: int = FEW, significant: bool = False) -> Cell:
        """A cell over `n` runs: bold only where it is significant, and never with fewer than ten."""
        number = value if isinstance(value, (int, float)) else math.nan
        few = is_few(n)
        bold = significant and not few
        ideal = bold and (number > 0 if self.hue == "red" else number < 0)
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        return Cell(value, self.format, bold, self.hue if ideal else "", faint=few or missing, few=few)


class ShownColumn(NamedTuple):
    """A column of a rendered table: the values of a column, their published ones, or the differences."""

    place: int
    """Of the column in its table."""
    column: TableColumn
    part: Part = "own"

    @property
    def is_number(self) -> bool:
        return self.part != "own" or self.column.format.kind != "text"

    def title(self, published: str = "published", difference: str = "difference") -> str:
        unit = f" ({self.column.unit})" if self.column.unit else ""
        return {"own": self.column.heading + unit, "published": published, "difference": difference}[self.part]

    def write(self, row: TableRow, name: Callable[[str], str] = str, number: Callable[[str], str] = str) -> str:
        """This column's text of a row, with its names and its numbers escaped by these functions."""
        cell = row.cells[self.place]
        value = cell.part(self.part)
        if self.part == "difference":
            return number(difference_text(cell))
        if not isinstance(value, str):
            return number(plain(value, cell.format))
        return name(value) + (name(f" ({FEW_TEXT})") if cell.few and not self.is_number else "")

    def compared(
        self, row: TableRow, part: Part, name: Callable[[str], str] = str, number: Callable[[str], str] = str
    ) -> str:
        """Text of the published value or the difference of a row; empty where there is none."""
        known = row.cells[self.place].part(part) is not None
        return self._replace(part=part).write(row, name, number) if known else ""


class Basis(NamedTuple):
    """Models, datasets and settings that a row rests on, models and datasets by the paper's names."""

    models: frozenset[str]
    """Zero-shot models."""
    datasets: frozenset[str]
    settings: frozenset[str]
    backbones: frozenset[str] = frozenset()
    """Trained backbones."""
    unlike: frozenset[tuple[str, str]] = frozenset()
    """Settings of the protocol that are not the published ones: estimator, area, variates; each with its value."""


@dataclass(frozen=True)
class TableRow:
    """Cells of one group of runs."""

    cells: tuple[Cell, ...]
    key: str = ""
    """Name of this row in the published table."""
    section: str = ""
    """Rows of one section stand together below its name."""
    total: bool = False
    """Stands apart from the rows above, over all of them."""
    where: tuple[tuple[str, str | int], ...] = ()
    """Which records these are: columns of the ledger and the value that each has in all of them."""
    basis: Basis | None = None
    """What the row was measured on, where that can be compared with the published row."""

    @property
    def compared(self) -> list[Part]:
        """Parts that are shown below its own values."""
        parts: list[Part] = ["published"] if any(cell.published is not None for cell in self.cells) else []
        return [*parts, "difference"] if any(cell.difference is not None for cell in self.cells) else parts

    @classmethod
    def of(cls, columns: Sequence[TableColumn], values: Sequence[Value], key: str = "", section: str = "") -> TableRow:
        """A row of plain values, one for each column."""
        return cls(tuple(column.cell(value) for column, value in zip(columns, values, strict=True)), key, section)


def printed(value: Value, format: Format) -> float | None:
    """Number that a reader sees: rounded as it is written."""
    if value is None or isinstance(value, (str, Span)) or not math.isfinite(value):
        return None
    if format.kind == "share":
        return round(100 * value) / 100
    if format.kind == "times":
        return float(_times(value))
    return round(value, format.decimals) if format.kind == "number" else None


def plain(value: Value, format: Format) -> str:
    """Value in plain text, a dash where there is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Span):
        low, high = (plain(end, Format("number", format.decimals, format.plus)) for end in value)
        return MISSING if MISSING in (low, high) else f"[{low}, {high}]"
    if value is None or not math.isfinite(value):
        return MISSING
    if format.kind == "count":
        return f"{int(value):,}"
    if format.kind == "share":
        return f"{100 * value:.0f}%"
    if format.kind == "p":
        return "<10^-12" if value < _TINY_P else f"{value:.1e}" if value < 0.001 else f"{value:.3f}"
    if format.kind == "times":
        return f"{_times(value)}×"
    # Adding zero turns a negative zero into zero: an exact zero has no direction.
    return f"{value + 0.0:{'+' if format.plus else ''}.{format.decimals}f}"


def _times(value: float) -> str:
    """At least two digits: `3.1`, `98`, `592`."""
    return f"{value:.1f}" if round(value, 1) < 10 else f"{value:.0f}"


def difference_text(cell: Cell) -> str:
    """Difference with its sign, shares in points."""
    if cell.difference is None:
        return MISSING
    if cell.format.kind == "share":
        return f"{100 * cell.difference:+.0f} pt"
    return f"{cell.difference:+.{1 if cell.format.kind == 'times' else cell.format.decimals}f}"


@dataclass(frozen=True)
class ReportTable:
    """A table as data. Every row has a cell for every column."""

    name: str
    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    note: str = ""
    label: str = ""
    """Its LaTeX label in the paper, where it has one."""

    def __post_init__(self) -> None:
        if any(len(row.cells) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: a row has more or fewer cells than there are columns")

    @property
    def compared(self) -> tuple[bool, ...]:
        """For each column, whether published values stand beside it."""
        return tuple(any(row.cells[i].published is not None for row in self.rows) for i in range(len(self.columns)))

    @property
    def shown(self) -> list[ShownColumn]:
        """Columns as people see them, published values and differences beside a column that has them."""
        found = []
        parts: tuple[Part, ...] = ("own", "published", "difference")
        for index, (column, compared) in enumerate(zip(self.columns, self.compared, strict=True)):
            differs = any(row.cells[index].difference is not None for row in self.rows)
            found += [ShownColumn(index, column, part) for part in parts[: 1 + compared * (1 + differs)]]
        return found

    @property
    def stacked(self) -> list[ShownColumn]:
        """Columns of LaTeX and HTML, where published values and differences stand below the own ones: side by side
        they would be too wide for a page. Words on a comparison stand below too.
        """
        return [ShownColumn(at, column) for at, column in enumerate(self.columns) if not column.prose]

    def remark(self, row: TableRow) -> str:
        """Words of a row in the columns of prose."""
        return "; ".join(
            cell.text for cell, column in zip(row.cells, self.columns, strict=True) if column.prose and cell.value
        )

    def sectioned(self) -> Iterator[TableRow | str]:
        """Rows, with the name of each section before its first row."""
        section = ""
        for row in self.rows:
            if row.section and row.section != section:
                yield row.section
            section = row.section
            yield row

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int = 80) -> str:
        """For a terminal, in at most `width` columns where the numbers fit."""
        names = [shown.title("paper", "diff.") for shown in self.shown]
        rows = self._grid(lambda section: f"{_name(section)}:", lambda shown, row: shown.write(row, _name))
        widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
        needed = min(widths[0], _NARROWEST_NAME) + sum(2 + min(width, _NARROWEST_NAME) for width in widths[1:])
        body = text.render_table(names, rows, max(width, needed)).rstrip("\n")
        note = ["", *wrap(clean(self.note), width)] if self.note else []
        return "\n".join([*wrap(clean(self.title), width), "", body, *note]) + "\n"

    def to_markdown(self) -> str:
        """A pipe table with its title above and its note below."""

        def name(shown: str) -> str:
            return escape_markdown(_name(shown))

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

    def to_csv(self) -> str:
        """Values in full precision under the columns' names. An interval takes two fields."""
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
        frame = pd.DataFrame(fields, dtype=object)
        written = frame.map(lambda value: escape_csv(value) if isinstance(value, str) else _json_value(value))
        return written.to_csv(index=False, lineterminator="\n")

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

        A table that is longer than a page becomes several. `latex_document` makes a document of tables.
        """
        kinds = "".join("c" if shown.is_number else "l" for shown in self.stacked)
        units = (f" ({escape_latex(shown.column.unit)})" if shown.column.unit else "" for shown in self.stacked)
        names = (rf"\textbf{{{_latex_name(shown.column.heading)}}}" for shown in self.stacked)
        heads = " & ".join(name + unit for name, unit in zip(names, units, strict=True)) + r" \\"
        pages = _latex_pages(self)
        lines = list(_PREAMBLE)
        for index, rows in enumerate(pages):
            part = f" (part {index + 1} of {len(pages)})" if len(pages) > 1 else ""
            lines += [
                *(r"\begin{table}[htbp]", r"\centering"),
                rf"\caption{{\textbf{{{escape_latex(self.title + part)}.}}}}",
                *([rf"\label{{{self.label}}}"] if self.label and not index else []),
                *(r"\begin{adjustbox}{max width=\textwidth}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", heads),
                *(r"\midrule", *(rows[1:] if rows[:1] == [r"\midrule"] else rows)),
                *(r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"),
            ]
            if self.note and index == len(pages) - 1:
                lines += [r"\par\medskip", rf"{{\footnotesize\raggedright {escape_latex(self.note)}\par}}"]
            lines.append(r"\end{table}")
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """A `<table>` with its caption and note, to be put into a page."""
        return str(render_macro("table.html", "shown", self))

    def _repr_html_(self) -> str:
        return str(render_macro("table.html", "in_notebook", self))


class ReportTables(list[ReportTable]):
    """A list of tables that shows itself in a notebook."""

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self)


def _name(name: str) -> str:
    return text.shorten(clean(name), text.LONGEST)


def _json_value(value: Value) -> object:
    if isinstance(value, Span):
        return [number_or_none(end) for end in value]
    return value if isinstance(value, (str, int)) else number_or_none(value)


def _latex_pages(table: ReportTable) -> list[list[str]]:
    """Lines of each page. A row stays together, and a section's name has a rule above it."""
    pages: list[list[str]] = [[]]
    totals = False
    for row in table.sectioned():
        first = pages == [[]]
        if isinstance(row, str):
            name = rf"\multicolumn{{{len(table.stacked)}}}{{l}}{{\textit{{{escape_latex(_name(row))}}}}} \\"
            lines = [name] if first else [r"\midrule", name]
        else:
            lines = [r"\midrule"] if row.total and not totals and not first else []
            lines += _latex_row(table, row)
            totals = totals or row.total
        if pages[-1] and len(pages[-1]) + len(lines) > _LATEX_LINES:
            pages.append([])
        pages[-1] += lines
    return pages


def _latex_row(table: ReportTable, row: TableRow) -> list[str]:
    """Row, then what was published and the difference, each in a line below it."""
    written = " & ".join(_latex_cell(shown, row) for shown in table.stacked)
    indent = r"\quad " if row.section else ""
    # After `\\` and a rule, LaTeX would take a bracket for an option and an asterisk for a variant.
    guard = "{}" if not indent and written[:1] in ("[", "*") else ""
    lines = [indent + guard + written + r" \\"]
    for part in row.compared:
        cells = (shown.compared(row, part, _latex_name, latex_number) for shown in table.stacked[1:])
        lines.append(rf"{indent}\quad \textit{{{part}}} & {' & '.join(cells)} \\")
    if remark := table.remark(row):
        words = rf"{indent}\quad {{\footnotesize \textit{{in common:}} {escape_latex(remark)}}}"
        lines.append(rf"\multicolumn{{{len(table.stacked)}}}{{l}}{{{words}}} \\")
    return lines


def _latex_name(name: str) -> str:
    return _SYMBOLS.get(name) or escape_latex(_name(name))


def latex_number(shown: str) -> str:
    """A number of `plain` in LaTeX, as the paper prints it."""
    if shown == MISSING:
        return "--"
    if shown.endswith(" pt"):
        return f"${shown[:-3]}$ pt"
    if shown.endswith("%"):
        return shown.replace("%", r"\%")
    if re.fullmatch(r"[\d,]+", shown):
        return shown.replace(",", "{,}")
    return "$" + shown.replace("×", r"\times").replace("^-12", "^{-12}") + "$"


def _latex_cell(shown: ShownColumn, row: TableRow) -> str:
    written = shown.write(row, _latex_name, latex_number)
    if not row.cells[shown.place].bold:
        return written
    heavy = rf"$\mathbf{{{written[1:-1]}}}$" if written.startswith("$") else rf"\textbf{{{written}}}"
    hue = row.cells[shown.place].hue
    return rf"\textcolor{{h{hue}}}{{{heavy}}}" if hue else heavy


def latex_document(parts: Iterable[str]) -> str:
    """A document of tables in LaTeX, or of commands that read them, that `pdflatex` compiles as it stands."""
    body = "\n".join(f"{part}\\clearpage\n" for part in parts).rstrip("\n")
    return "\n".join((*_DOCUMENT, r"\begin{document}", body, r"\end{document}")) + "\n"


def html_page(tables: Sequence[ReportTable]) -> str:
    """A page of the tables that is readable on a screen and on a phone, where wide tables scroll by themselves."""
    return render("tables.html", tables=tables)
