"""The table: one frozen object that renders to the terminal, Markdown, LaTeX, CSV, HTML and JSON.

A column in which any cell has a published value is shown beside that value, and beside the difference where one is
meaningful: not for counts, intervals and p values. Its cells are in `hrx.reports.cells`, the content of the tables in
`hrx.reports.tables`.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from rich.cells import cell_len

from hrx.reports import text
from hrx.reports.cells import (
    COUNT,
    FINE_GAIN,
    GAIN,
    INTERVAL,
    MISSING,
    SHARE,
    TEXT,
    TIMES,
    Basis,
    Cell,
    Format,
    P,
    Part,
    ShownColumn,
    Span,
    TableColumn,
    TableRow,
    Value,
    difference_text,
    plain,
)
from hrx.reports.statistics import FEW_TEXT
from hrx.reports.text import clean, escape_csv, escape_html, escape_latex, escape_markdown, number_or_none, wrap

__all__ = [
    "COUNT", "FINE_GAIN", "GAIN", "INTERVAL", "SHARE", "TEXT", "TIMES", "Basis", "Cell", "Format", "P", "ReportTable",
    "ReportTables", "Span", "TableColumn", "TableRow", "Value", "html_page", "latex_document", "latex_frame",
    "latex_number", "plain",
]  # fmt: skip
_NARROWEST_NAME = 28
"""Terminal columns that a name keeps, so that numbers are never cut."""
_SYMBOLS = {
    "g_own": r"$g_{\text{own}}$", "g_shuffled": r"$g_{\text{shuffled}}$", "g_margin": r"$g_{\text{margin}}$",
    "n": "$n$", "<10^-12": "$<10^{-12}$",
}  # fmt: skip
_LATEX_LINES = 42
"""Lines of a LaTeX table that fit on a page."""
PACKAGES = "adjustbox,amsmath,array,booktabs,xcolor"
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>hrx tables</title>
<style>
{style}</style>
<main>
{body}</main>
</html>
"""
_PREAMBLE = (
    rf"% needs \usepackage{{{PACKAGES}}}",
    r"\providecolor{hred}{RGB}{168,26,38}\providecolor{hblue}{RGB}{26,62,148}",
)


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
            differs = any(row.cells[index].difference is not None for row in self.rows)
            found += [ShownColumn(index, column, part) for part in parts[: 1 + compared * (1 + differs)]]
        return found

    @property
    def stacked(self) -> list[ShownColumn]:
        """The columns of LaTeX and HTML, where published values and differences stand below the own ones: side by side
        they would be too wide for a page. Words on a comparison stand below too.
        """
        return [ShownColumn(at, column, "own") for at, column in enumerate(self.columns) if not column.prose]

    def remark(self, row: TableRow) -> str:
        """The words of a row in the columns of prose."""
        return "; ".join(
            cell.text for cell, column in zip(row.cells, self.columns, strict=True) if column.prose and cell.value
        )

    def sectioned(self) -> Iterator[TableRow | str]:
        """The rows, with the name of each section before its first row."""
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
        """A `table` with booktabs rules, in the colours of the paper, never wider than the text.

        A table that is longer than a page becomes several. `latex_document` makes a document of tables.
        """
        kinds = "".join("c" if shown.is_number else "l" for shown in self.stacked)
        pages = _latex_pages(_latex_rows(self))
        lines = list(_PREAMBLE)
        for index, rows in enumerate(pages):
            part = f" (part {index + 1} of {len(pages)})" if len(pages) > 1 else ""
            lines += [
                *(r"\begin{table}[htbp]", r"\centering"),
                rf"\caption{{\textbf{{{escape_latex(self.title + part)}.}}}}",
                *([rf"\label{{{self.label}}}"] if self.label and not index else []),
                *(r"\begin{adjustbox}{max width=\textwidth}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"),
                " & ".join(map(_latex_heading, self.stacked)) + r" \\",
                *(r"\midrule", *(rows[1:] if rows[:1] == [r"\midrule"] else rows)),
                *(r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"),
            ]
            if self.note and index == len(pages) - 1:
                lines += [r"\par\medskip", rf"{{\footnotesize\raggedright {escape_latex(self.note)}\par}}"]
            lines.append(r"\end{table}")
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """For a notebook, whose own style is left alone: the numbers to the right, bold and faint cells as such."""
        rules = (
            "caption { font-weight: 600; text-align: left }",
            "th, .hrx-notebook td { padding: 2px 10px; text-align: left }",
            "tbody th { font-weight: 400 }",
            ".number { text-align: right }",
            ".bold { font-weight: 700 }",
            ".faint, .hrx-notebook .hrx-note { opacity: .75 }",
        )
        style = "".join(f".hrx-notebook {rule} " for rule in rules)
        return f'<style>{style}</style><div class="hrx-notebook">{self.to_html()}</div>'

    def to_html(self) -> str:
        """A `<table>` with its caption and note, to be put into a page.

        The classes of a cell are text or number, bold with its hue, faint, few.
        """
        heads = (
            f'<th scope="col" class="{"number" if shown.is_number else "text"}">{escape_html(shown.title())}</th>'
            for shown in self.stacked
        )
        lines = [
            '<div class="hrx-scroll">',
            f'<table class="hrx-table" data-table="{escape_html(self.name)}">',
            f"<caption>{escape_html(self.title)}</caption>",
            f"<thead><tr>{''.join(heads)}</tr></thead>",
            "<tbody>",
        ]
        for row in self.sectioned():
            if isinstance(row, str):
                head = f'<th colspan="{len(self.stacked)}" scope="rowgroup">{escape_html(row)}</th>'
                lines.append(f'<tr class="section">{head}</tr>')
            else:
                cells = "".join(_html_cell(shown, row) for shown in self.stacked)
                lines.append(('<tr class="total">' if row.total else "<tr>") + cells + "</tr>")
                lines += _html_compared(self, row)
        note = [f'<p class="hrx-note">{escape_html(self.note)}</p>'] if self.note else []
        return "\n".join([*lines, "</tbody>", "</table>", "</div>", *note]) + "\n"


class ReportTables(list[ReportTable]):
    """A list of tables that shows itself in a notebook."""

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self)


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
            "difference_text": difference_text(cell) if published != MISSING else MISSING,
        }
    return shown


def _json_value(value: Value) -> object:
    if isinstance(value, Span):
        return [number_or_none(end) for end in value]
    return value if isinstance(value, (str, int)) else number_or_none(value)


def _latex_heading(shown: ShownColumn) -> str:
    unit = f" ({escape_latex(shown.column.unit)})" if shown.column.unit else ""
    return rf"\textbf{{{_latex_name(shown.column.heading)}}}{unit}"


def _latex_rows(table: ReportTable) -> Iterator[list[str]]:
    """The lines of each row, and of each section's name with the rule above it."""
    width = len(table.stacked)
    first, totals = True, False
    for row in table.sectioned():
        if isinstance(row, str):
            name = rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape_latex(_name(row))}}}}} \\"
            yield [name] if first else [r"\midrule", name]
        else:
            rule = [r"\midrule"] if row.total and not totals and not first else []
            totals = totals or row.total
            yield rule + _latex_row(table, row, width)
        first = False


def _latex_row(table: ReportTable, row: TableRow, width: int) -> list[str]:
    """The row, then what was published and the difference, each in a line below it."""
    written = " & ".join(_latex_cell(shown, row) for shown in table.stacked)
    indent = r"\quad " if row.section else ""
    # After `\\` and a rule, LaTeX would take a bracket for an option and an asterisk for a variant.
    guard = "{}" if not indent and written[:1] in ("[", "*") else ""
    lines = [indent + guard + written + r" \\"]
    for part in _compared_parts(row):
        cells = (
            shown._replace(part=part).write(row, _latex_name, latex_number)
            if _has(row.cells[shown.place], part)
            else ""
            for shown in table.stacked[1:]
        )
        lines.append(rf"{indent}\quad \textit{{{part}}} & {' & '.join(cells)} \\")
    if remark := table.remark(row):
        words = rf"{indent}\quad {{\footnotesize \textit{{in common:}} {escape_latex(remark)}}}"
        lines.append(rf"\multicolumn{{{width}}}{{l}}{{{words}}} \\")
    return lines


def _latex_pages(rows: Iterator[list[str]]) -> list[list[str]]:
    """The lines of each page; a row stays together."""
    pages: list[list[str]] = [[]]
    for lines in rows:
        if pages[-1] and len(pages[-1]) + len(lines) > _LATEX_LINES:
            pages.append([])
        pages[-1] += lines
    return pages


def _compared_parts(row: TableRow) -> list[Part]:
    parts: tuple[Part, ...] = ("published", "difference")
    return [part for part in parts if any(_has(cell, part) for cell in row.cells)]


def _has(cell: Cell, part: Part) -> bool:
    return (cell.published if part == "published" else cell.difference) is not None


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


def _html_compared(table: ReportTable, row: TableRow) -> Iterator[str]:
    """What was published and the difference, each in a row below that of the own values, and the words on both."""
    for part in _compared_parts(row):
        cells = (
            f'<td class="number">{shown._replace(part=part).write(row, escape_html, escape_html)}</td>'
            if _has(row.cells[shown.place], part)
            else "<td></td>"
            for shown in table.stacked[1:]
        )
        yield f'<tr class="{part}"><th scope="row" class="text">{part}</th>{"".join(cells)}</tr>'
    if remark := table.remark(row):
        words = f"<small>in common: {escape_html(remark)}</small>"
        yield f'<tr class="common"><td colspan="{len(table.stacked)}">{words}</td></tr>'


def _html_cell(shown: ShownColumn, row: TableRow) -> str:
    cell = row.cells[shown.place]
    classes = ["number" if shown.is_number else "text"]
    classes += ["bold", cell.hue] if cell.bold else []
    classes += ["faint"] if cell.faint else []
    classes += ["few"] if cell.few else []
    few = f" <small>({escape_html(FEW_TEXT)})</small>" if cell.few and not shown.is_number else ""
    # A name may run from right to left: it must not reorder what stands beside it.
    written = f"<bdi>{escape_html(cell.text)}</bdi>" if isinstance(cell.value, str) else escape_html(cell.text)
    tag, scope = ("th", ' scope="row"') if shown.place == 0 else ("td", "")
    return f'<{tag}{scope} class="{" ".join(filter(None, classes))}">{written}{few}</{tag}>'


def latex_document(tables: Sequence[ReportTable]) -> str:
    """A document of the tables that `pdflatex` compiles as it stands."""
    return latex_frame("\n".join(table.to_latex() + "\\clearpage\n" for table in tables))


def latex_frame(body: str) -> str:
    """A document around LaTeX tables, or commands that read them."""
    packages = (r"\usepackage[margin=2cm]{geometry}", rf"\usepackage{{{PACKAGES}}}")
    lines = (r"\documentclass{article}", *packages, r"\begin{document}", body.rstrip("\n"), r"\end{document}")
    return "\n".join(lines) + "\n"


def html_page(tables: Sequence[ReportTable]) -> str:
    """A page of the tables that is readable on a screen and on a phone, where wide tables scroll by themselves."""
    style = (files("hrx.reports") / "tables.css").read_text(encoding="utf-8")
    body = "\n".join(table.to_html() for table in tables)
    return _PAGE.format(style=style, body=body)
