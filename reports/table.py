"""The table: one frozen object that renders to the terminal, Markdown, LaTeX, CSV, HTML and JSON.

Signs, decimals and percentages follow the published tables. A column in which any cell has a published value is shown
beside that value, and beside the difference where one is meaningful: not for counts, intervals and p values. The
content of the tables is in `hrx.reports.tables`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rich.cells import cell_len

from hrx.reports import text
from hrx.reports.runs import FEW, FEW_TEXT, is_few
from hrx.reports.text import clean, escape_csv, escape_html, escape_latex, escape_markdown, number_or_none, wrap

MISSING = "-"
_TINY_P = 1e-12
_NARROWEST_NAME = 28
"""Terminal columns that a name keeps, so that numbers are never cut."""
_SYMBOLS = {
    "g_own": r"$g_{\text{own}}$", "g_shuffled": r"$g_{\text{shuffled}}$", "g_margin": r"$g_{\text{margin}}$",
    "n": "$n$", "<10^-12": "$<10^{-12}$",
}  # fmt: skip
_PREAMBLE = (
    r"% needs \usepackage{booktabs,xcolor,amsmath}",
    r"\providecolor{hred}{RGB}{168,26,38}\providecolor{hblue}{RGB}{26,62,148}",
)


class Span(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


Value = str | int | float | Span | None
Kind = Literal["text", "count", "number", "share", "span", "p", "times"]
Part = Literal["own", "published", "difference"]


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
    """In the direction that the paper calls ideal, over at least ten runs."""
    faint: bool = False
    few: bool = False
    """Over fewer than ten runs."""
    published: Value = None
    difference: float | None = None
    """This value less the published one, both as printed, in the unit of `value`."""

    @property
    def text(self) -> str:
        """The value in plain text; a name is not cleaned yet."""
        return plain(self.value, self.format)

    def beside(self, published: Value) -> Cell:
        """The same cell with the published value and the difference of the printed values."""
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
    hue: Literal["", "red", "blue"] = ""
    """Which values the paper prints in colour: above zero in red, below zero in blue."""

    def cell(self, value: Value, *, n: int = FEW) -> Cell:
        """A cell over `n` runs: bold only in the ideal direction, and never with fewer than ten."""
        number = value if isinstance(value, (int, float)) else math.nan
        ideal = number > 0 if self.hue == "red" else number < 0 if self.hue == "blue" else False
        few = is_few(n)
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        return Cell(value, self.format, bold=ideal and not few, faint=few or missing, few=few)


class ShownColumn(NamedTuple):
    """A column of a rendered table: the values of a column, their published ones, or the differences."""

    place: int
    """Of the column in its table."""
    column: TableColumn
    part: Part

    @property
    def is_number(self) -> bool:
        return self.part != "own" or self.column.format.kind != "text"

    def title(self, published: str = "published", difference: str = "difference") -> str:
        unit = f" ({self.column.unit})" if self.column.unit else ""
        return {"own": self.column.heading + unit, "published": published, "difference": difference}[self.part]

    def value(self, cell: Cell) -> Value:
        return {"own": cell.value, "published": cell.published, "difference": cell.difference}[self.part]

    def write(self, row: TableRow, name: Callable[[str], str], number: Callable[[str], str] = str) -> str:
        """This column's text of a row, with its names and its numbers escaped by these functions."""
        cell = row.cells[self.place]
        if self.part == "difference":
            return number(_difference(cell))
        value = self.value(cell)
        if not isinstance(value, str):
            return number(plain(value, cell.format))
        return name(value) + (name(f" ({FEW_TEXT})") if cell.few and not self.is_number else "")


@dataclass(frozen=True)
class TableRow:
    """The cells of one group of runs."""

    cells: tuple[Cell, ...]
    key: str = ""
    """The name of this row in the published table."""
    section: str = ""
    """Rows of one section stand together below its name."""
    total: bool = False
    """Stands apart from the rows above, over all of them."""
    where: tuple[tuple[str, str | int], ...] = ()
    """Which records these are: columns of the ledger and the value that each has in all of them."""

    @classmethod
    def of(cls, columns: Sequence[TableColumn], values: Sequence[Value], key: str = "", section: str = "") -> TableRow:
        """A row of plain values, one for each column."""
        return cls(tuple(column.cell(value) for column, value in zip(columns, values, strict=True)), key, section)


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
        """The columns as people see them, published values and differences beside a column that has them."""
        found = []
        parts: tuple[Part, ...] = ("own", "published", "difference")
        for index, (column, compared) in enumerate(zip(self.columns, self.compared, strict=True)):
            differs = column.format.kind in ("number", "share", "times")
            found += [ShownColumn(index, column, part) for part in parts[: 1 + compared * (1 + differs)]]
        return found

    def sectioned(self) -> Iterator[TableRow | str]:
        """The rows, with the name of each section before its first row."""
        section = ""
        for row in self.rows:
            if row.section and row.section != section:
                yield row.section
            section = row.section
            yield row

    def to_text(self, width: int = 80) -> str:
        """For a terminal, in at most `width` columns where the numbers fit."""
        names = [shown.title("paper", "diff.") for shown in self.shown]
        rows = [
            [f"{_name(row)}:", *[""] * (len(names) - 1)]
            if isinstance(row, str)
            else [shown.write(row, _name) for shown in self.shown]
            for row in self.sectioned()
        ]
        widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
        needed = min(widths[0], _NARROWEST_NAME) + sum(2 + min(width, _NARROWEST_NAME) for width in widths[1:])
        body = text.render_table(names, rows, max(width, needed)).rstrip("\n")
        note = ["", *wrap(clean(self.note), width)] if self.note else []
        return "\n".join([*wrap(clean(self.title), width), "", body, *note]) + "\n"

    def to_markdown(self) -> str:
        """A pipe table with its title above and its note below."""

        def written(shown: ShownColumn, row: TableRow) -> str:
            field = shown.write(row, lambda name: escape_markdown(_name(name)), lambda n: n.replace("<", "&lt;"))
            return f"**{field}**" if shown.part == "own" and row.cells[shown.place].bold else field

        lines = [
            [escape_markdown(_name(shown.title())) for shown in self.shown],
            ["---:" if shown.is_number else "---" for shown in self.shown],
        ]
        for row in self.sectioned():
            if isinstance(row, str):
                lines.append([f"*{escape_markdown(_name(row))}*", *[""] * (len(self.shown) - 1)])
            else:
                lines.append([written(shown, row) for shown in self.shown])
        note = ["", escape_markdown(self.note)] if self.note else []
        body = [f"| {' | '.join(fields)} |" for fields in lines]
        return "\n".join([f"**{escape_markdown(_name(self.title))}**", "", *body, *note]) + "\n"

    def to_csv(self) -> str:
        """Values in full precision under the columns' names. An interval takes two fields."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        sections = any(row.section for row in self.rows)
        names = [name for shown in self.shown for name in _csv_names(shown)]
        writer.writerow([*(["section"] if sections else []), *names, "few"])
        for row in self.rows:
            fields = [field for shown in self.shown for field in _csv_fields(shown, row.cells[shown.place])]
            few = int(any(cell.few for cell in row.cells))
            writer.writerow([*([escape_csv(row.section)] if sections else []), *fields, few])
        return out.getvalue()

    def to_json(self) -> str:
        """The object of `as_json`, written."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    def as_json(self) -> dict[str, object]:
        """Everything: values as numbers, with null for a missing one, and the text of the other formats."""
        heads = [{"name": c.name, "heading": c.heading, "kind": c.format.kind, "unit": c.unit} for c in self.columns]
        about = {name: getattr(self, name) for name in ("name", "title", "note", "label")}
        rows = []
        for row in self.rows:
            columns = zip(self.columns, row.cells, self.compared, strict=True)
            rows.append(
                {
                    "section": row.section,
                    "total": row.total,
                    "where": dict(row.where),
                    "few": any(cell.few for cell in row.cells),
                    "cells": {column.name: _json_cell(cell, compared) for column, cell, compared in columns},
                }
            )
        return {**about, "columns": heads, "rows": rows}

    def to_latex(self) -> str:
        """A `table` with booktabs rules, in the colours of the paper."""
        kinds = "".join("c" if shown.is_number else "l" for shown in self.shown)
        lines = [
            *_PREAMBLE,
            r"\begin{table}[h]",
            rf"\caption{{\textbf{{{escape_latex(self.title)}.}} {escape_latex(self.note)}}}",
            *([rf"\label{{{self.label}}}"] if self.label else []),
            *(r"\begin{center}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"),
            " & ".join(map(_latex_heading, self.shown)) + r" \\",
            r"\midrule",
            *_latex_body(self),
            *(r"\bottomrule", r"\end{tabular}", r"\end{center}", r"\end{table}"),
        ]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """A `<table>` with its caption and note, to be put into a page.

        The classes of a cell are text or number, bold with its hue, faint, few.
        """
        heads = (
            f'<th scope="col" class="{"number" if shown.is_number else "text"}">{escape_html(shown.title())}</th>'
            for shown in self.shown
        )
        lines = [
            f'<table class="hrx-table" data-table="{escape_html(self.name)}">',
            f"<caption>{escape_html(self.title)}</caption>",
            f"<thead><tr>{''.join(heads)}</tr></thead>",
            "<tbody>",
        ]
        for row in self.sectioned():
            if isinstance(row, str):
                head = f'<th colspan="{len(self.shown)}" scope="rowgroup">{escape_html(row)}</th>'
                lines.append(f'<tr class="section">{head}</tr>')
            else:
                cells = "".join(_html_cell(shown, row) for shown in self.shown)
                lines.append(('<tr class="total">' if row.total else "<tr>") + cells + "</tr>")
        note = [f'<p class="hrx-note">{escape_html(self.note)}</p>'] if self.note else []
        return "\n".join([*lines, "</tbody>", "</table>", *note]) + "\n"


def printed(value: Value, format: Format) -> float | None:
    """The number that a reader sees: rounded as it is written."""
    if value is None or isinstance(value, (str, Span)) or not math.isfinite(value):
        return None
    if format.kind == "share":
        return round(100 * value) / 100
    if format.kind == "times":
        return float(_times(value))
    return round(value, format.decimals) if format.kind == "number" else None


def plain(value: Value, format: Format) -> str:
    """The value in plain text, a dash where there is none."""
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


def _difference(cell: Cell) -> str:
    """The difference with its sign, shares in points."""
    if cell.difference is None:
        return MISSING
    if cell.format.kind == "share":
        return f"{100 * cell.difference:+.0f} pt"
    return f"{cell.difference:+.{1 if cell.format.kind == 'times' else cell.format.decimals}f}"


def _name(name: str) -> str:
    return text.shorten(clean(name), text.LONGEST)


def _csv_names(shown: ShownColumn) -> list[str]:
    name = shown.column.name if shown.part == "own" else f"{shown.column.name}_{shown.part}"
    return [f"{name}_low", f"{name}_high"] if shown.column.format.kind == "span" else [name]


def _csv_fields(shown: ShownColumn, cell: Cell) -> list[str]:
    value = shown.value(cell)
    if shown.column.format.kind == "span" and not isinstance(value, Span):
        return ["", ""]
    ends = value if isinstance(value, Span) else (value,)
    return [
        escape_csv(end) if isinstance(end, str) else "" if number_or_none(end) is None else repr(end) for end in ends
    ]


def _json_cell(cell: Cell, compared: bool) -> dict[str, object]:
    shown: dict[str, object] = {"value": _json_value(cell.value), "text": cell.text, "bold": cell.bold}
    if compared:
        published = plain(cell.published, cell.format)
        shown["published"] = {
            "value": _json_value(cell.published),
            "text": published,
            "difference": number_or_none(cell.difference),
            "difference_text": _difference(cell) if published != MISSING else MISSING,
        }
    return shown


def _json_value(value: Value) -> object:
    if isinstance(value, Span):
        return [number_or_none(end) for end in value]
    return value if isinstance(value, (str, int)) else number_or_none(value)


def _latex_heading(shown: ShownColumn) -> str:
    if shown.part != "own":
        return shown.title()
    unit = f" ({escape_latex(shown.column.unit)})" if shown.column.unit else ""
    return rf"\textbf{{{_latex_name(shown.column.heading)}}}{unit}"


def _latex_body(table: ReportTable) -> list[str]:
    lines: list[str] = []
    totals = False
    for row in table.sectioned():
        if isinstance(row, str):
            lines += [r"\midrule"] if lines else []
            lines.append(rf"\multicolumn{{{len(table.shown)}}}{{l}}{{\textit{{{escape_latex(_name(row))}}}}} \\")
            continue
        if row.total and lines and not totals:
            lines.append(r"\midrule")
            totals = True
        written = " & ".join(_latex_cell(shown, row) for shown in table.shown)
        lines.append((r"\quad " if row.section else "") + written + r" \\")
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
    if shown.part != "own" or not row.cells[shown.place].bold:
        return written
    heavy = rf"$\mathbf{{{written[1:-1]}}}$" if written.startswith("$") else rf"\textbf{{{written}}}"
    return rf"\textcolor{{h{shown.column.hue}}}{{{heavy}}}" if shown.column.hue else heavy


def _html_cell(shown: ShownColumn, row: TableRow) -> str:
    if shown.part != "own":
        return f'<td class="number {shown.part}">{shown.write(row, escape_html, escape_html)}</td>'
    cell = row.cells[shown.place]
    classes = ["number" if shown.is_number else "text"]
    classes += ["bold", shown.column.hue] if cell.bold else []
    classes += ["faint"] if cell.faint else []
    classes += ["few"] if cell.few else []
    few = f" <small>({escape_html(FEW_TEXT)})</small>" if cell.few and not shown.is_number else ""
    # A name may run from right to left: it must not reorder what stands beside it.
    written = f"<bdi>{escape_html(cell.text)}</bdi>" if isinstance(cell.value, str) else escape_html(cell.text)
    tag, scope = ("th", ' scope="row"') if shown.place == 0 else ("td", "")
    return f'<{tag}{scope} class="{" ".join(filter(None, classes))}">{written}{few}</{tag}>'
