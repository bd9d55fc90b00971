"""A table as terminal text, Markdown, CSV, JSON, LaTeX and HTML: the same numbers in each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable

from rich.cells import cell_len

from hrx.reports.runs import FEW_TEXT
from hrx.reports.table import (
    MISSING,
    Cell,
    Format,
    ReportTable,
    ShownColumn,
    Span,
    TableRow,
    Value,
    difference_text,
    plain,
)
from hrx.reports.text import (
    LONGEST,
    clean,
    escape_csv,
    escape_html,
    escape_latex,
    escape_markdown,
    number_or_none,
    render_table,
    shorten,
    wrap,
)

_NARROWEST_NAME = 28
"""Terminal columns that a name keeps, so that numbers are never cut."""
_SYMBOLS = {
    "g_own": r"$g_{\text{own}}$", "g_shuffled": r"$g_{\text{shuffled}}$", "g_margin": r"$g_{\text{margin}}$", "n": "$n$"
}  # fmt: skip
_PREAMBLE = (
    r"% needs \usepackage{booktabs,xcolor,amsmath}",
    r"\providecolor{hred}{RGB}{168,26,38}\providecolor{hblue}{RGB}{26,62,148}",
)


def _name(text: object) -> str:
    return shorten(clean(text), LONGEST)


def _value(cell: Cell, shown: ShownColumn) -> Value:
    return cell.published if shown.part == "published" else cell.value


def text(table: ReportTable, width: int) -> str:
    """For a terminal: title, table, note."""
    names = [shown.title("paper", "diff.") for shown in table.shown]
    rows = [
        [f"{_name(row)}:", *[""] * (len(names) - 1)]
        if isinstance(row, str)
        else [_text_cell(row.cells[shown.place], shown) for shown in table.shown]
        for row in table.sectioned()
    ]
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    needed = min(widths[0], _NARROWEST_NAME) + sum(2 + min(width, _NARROWEST_NAME) for width in widths[1:])
    body = render_table(names, rows, max(width, needed)).rstrip("\n")
    note = ["", *wrap(clean(table.note), width)] if table.note else []
    return "\n".join([*wrap(clean(table.title), width), "", body, *note]) + "\n"


def _text_cell(cell: Cell, shown: ShownColumn) -> str:
    if shown.part == "difference":
        return difference_text(cell)
    value = _value(cell, shown)
    if not isinstance(value, str):
        return plain(value, cell.format)
    return f"{_name(value)} ({FEW_TEXT})" if cell.few and shown.part == "own" else _name(value)


def markdown(table: ReportTable) -> str:
    """A pipe table."""
    columns = table.shown
    lines = [
        f"**{escape_markdown(_name(table.title))}**",
        "",
        _piped(escape_markdown(_name(shown.title())) for shown in columns),
        _piped("---:" if shown.is_number else "---" for shown in columns),
    ]
    for row in table.sectioned():
        if isinstance(row, str):
            lines.append(_piped([f"*{escape_markdown(_name(row))}*", *[""] * (len(columns) - 1)]))
        else:
            lines.append(_piped(_markdown_cell(row.cells[shown.place], shown) for shown in columns))
    note = ["", escape_markdown(table.note)] if table.note else []
    return "\n".join([*lines, *note]) + "\n"


def _piped(fields: Iterable[str]) -> str:
    return f"| {' | '.join(fields)} |"


def _markdown_cell(cell: Cell, shown: ShownColumn) -> str:
    if shown.part == "difference":
        return difference_text(cell)
    value = _value(cell, shown)
    written = (
        escape_markdown(_name(value)) if isinstance(value, str) else plain(value, cell.format).replace("<", "&lt;")
    )
    if shown.part == "published":
        return written
    if cell.few and cell.format.kind == "text":
        written += f" ({FEW_TEXT.replace('<', '&lt;')})"
    return f"**{written}**" if cell.bold else written


def csv_file(table: ReportTable) -> str:
    """Values in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    sections = any(row.section for row in table.rows)
    names = [name for shown in table.shown for name in _csv_names(shown)]
    writer.writerow([*(["section"] if sections else []), *names, "few"])
    for row in table.rows:
        fields = [field for shown in table.shown for field in _csv_fields(row.cells[shown.place], shown)]
        few = int(any(cell.few for cell in row.cells))
        writer.writerow([*([escape_csv(row.section)] if sections else []), *fields, few])
    return out.getvalue()


def _csv_names(shown: ShownColumn) -> list[str]:
    name = shown.column.name if shown.part == "own" else f"{shown.column.name}_{shown.part}"
    return [f"{name}_low", f"{name}_high"] if shown.column.format.kind == "span" else [name]


def _csv_fields(cell: Cell, shown: ShownColumn) -> list[str]:
    value = cell.difference if shown.part == "difference" else _value(cell, shown)
    if shown.column.format.kind == "span":
        return [_csv_number(end) for end in value] if isinstance(value, Span) else ["", ""]
    if isinstance(value, str):
        return [escape_csv(value)]
    return [_csv_number(value if not isinstance(value, Span) else None)]


def _csv_number(value: float | None) -> str:
    return "" if number_or_none(value) is None else repr(value)


def json_file(table: ReportTable) -> str:
    """The object of `as_json`, written."""
    return json.dumps(as_json(table), indent=1, allow_nan=False) + "\n"


def as_json(table: ReportTable) -> dict[str, object]:
    """Values as numbers, with null for a missing one, and their text."""
    heads = [{"name": c.name, "heading": c.heading, "kind": c.format.kind, "unit": c.unit} for c in table.columns]
    about = {name: getattr(table, name) for name in ("name", "title", "note", "label")}
    return {**about, "columns": heads, "rows": [_json_row(table, row) for row in table.rows]}


def _json_row(table: ReportTable, row: TableRow) -> dict[str, object]:
    cells = {
        column.name: _json_cell(cell, compared)
        for column, cell, compared in zip(table.columns, row.cells, table.compared, strict=True)
    }
    few = any(cell.few for cell in row.cells)
    return {"section": row.section, "total": row.total, "where": dict(row.where), "few": few, "cells": cells}


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


def latex(table: ReportTable) -> str:
    """A `table` with booktabs rules."""
    kinds = "".join("c" if shown.is_number else "l" for shown in table.shown)
    lines = [
        *_PREAMBLE,
        r"\begin{table}[h]",
        rf"\caption{{\textbf{{{escape_latex(table.title)}.}} {escape_latex(table.note)}}}",
        *([rf"\label{{{table.label}}}"] if table.label else []),
        *(r"\begin{center}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"),
        " & ".join(map(_latex_heading, table.shown)) + r" \\",
        r"\midrule",
        *_latex_body(table),
        *(r"\bottomrule", r"\end{tabular}", r"\end{center}", r"\end{table}"),
    ]
    return "\n".join(lines) + "\n"


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
        written = " & ".join(_latex_cell(row.cells[shown.place], shown) for shown in table.shown)
        lines.append((r"\quad " if row.section else "") + written + r" \\")
    return lines


def _latex_heading(shown: ShownColumn) -> str:
    if shown.part != "own":
        return shown.title()
    symbol = _SYMBOLS.get(shown.column.heading) or escape_latex(_name(shown.column.heading))
    unit = f" ({escape_latex(shown.column.unit)})" if shown.column.unit else ""
    return rf"\textbf{{{symbol}}}{unit}"


def latex_value(value: Value, format: Format) -> str:
    """A number in LaTeX, as the paper prints it; a dash for anything else."""
    shown = plain(value, format)
    if shown == MISSING or isinstance(value, str):
        return "--"
    if format.kind == "count":
        return shown.replace(",", "{,}")
    if format.kind == "share":
        return shown.replace("%", r"\%")
    if format.kind == "p" and shown.startswith("<"):
        return "$<10^{-12}$"
    return "$" + shown.replace("×", r"\times") + "$"


def _latex_cell(cell: Cell, shown: ShownColumn) -> str:
    if shown.part == "difference":
        number, _, unit = difference_text(cell).partition(" ")
        return "--" if number == MISSING else f"${number}$" + (f" {unit}" if unit else "")
    value = _value(cell, shown)
    if isinstance(value, str):
        few = f" ({escape_latex(FEW_TEXT)})" if cell.few and shown.part == "own" else ""
        symbol = "$<10^{-12}$" if value == "<10^-12" else _SYMBOLS.get(value)
        return (symbol or escape_latex(_name(value))) + few
    written = latex_value(value, cell.format)
    if shown.part == "published" or not cell.bold:
        return written
    heavy = rf"$\mathbf{{{written[1:-1]}}}$" if written.startswith("$") else rf"\textbf{{{written}}}"
    return rf"\textcolor{{h{shown.column.hue}}}{{{heavy}}}" if shown.column.hue else heavy


def html(table: ReportTable) -> str:
    """A `<table>`; the classes of a cell are text or number, bold with its hue, faint, few."""
    heads = (
        f'<th scope="col" class="{"number" if shown.is_number else "text"}">{escape_html(shown.title())}</th>'
        for shown in table.shown
    )
    lines = [
        f'<table class="hrx-table" data-table="{escape_html(table.name)}">',
        f"<caption>{escape_html(table.title)}</caption>",
        f"<thead><tr>{''.join(heads)}</tr></thead>",
        "<tbody>",
        *(_html_row(table, row) for row in table.sectioned()),
        "</tbody>",
        "</table>",
        *([f'<p class="hrx-note">{escape_html(table.note)}</p>'] if table.note else []),
    ]
    return "\n".join(lines) + "\n"


def _html_row(table: ReportTable, row: TableRow | str) -> str:
    if isinstance(row, str):
        return f'<tr class="section"><th colspan="{len(table.shown)}" scope="rowgroup">{escape_html(row)}</th></tr>'
    cells = "".join(_html_cell(row.cells[shown.place], shown) for shown in table.shown)
    return ('<tr class="total">' if row.total else "<tr>") + cells + "</tr>"


def _html_cell(cell: Cell, shown: ShownColumn) -> str:
    if shown.part != "own":
        value = difference_text(cell) if shown.part == "difference" else plain(cell.published, cell.format)
        return f'<td class="number {shown.part}">{escape_html(value)}</td>'
    classes = ["number" if shown.is_number else "text"]
    classes += ["bold", shown.column.hue] if cell.bold else []
    classes += ["faint"] if cell.faint else []
    classes += ["few"] if cell.few else []
    few = f" <small>({escape_html(FEW_TEXT)})</small>" if cell.few and not shown.is_number else ""
    # A name may run from right to left: it must not reorder what stands beside it.
    written = f"<bdi>{escape_html(cell.text)}</bdi>" if isinstance(cell.value, str) else escape_html(cell.text)
    tag, scope = ("th", ' scope="row"') if shown.place == 0 else ("td", "")
    return f'<{tag}{scope} class="{" ".join(filter(None, classes))}">{written}{few}</{tag}>'
