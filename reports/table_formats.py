"""A table as terminal text, Markdown, CSV, JSON, LaTeX and HTML: the same numbers in each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator

from rich.cells import cell_len

from hrx.reports.runs import FEW_TEXT
from hrx.reports.table import (
    MISSING,
    Cell,
    Format,
    ReportTable,
    Span,
    TableColumn,
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

PUBLISHED, DIFFERENCE = "published", "difference"
_NARROWEST_NAME = 28
"""Terminal columns that a name keeps, so that numbers are never cut."""
_SYMBOLS = {
    "g_own": r"$g_{\text{own}}$",
    "g_shuffled": r"$g_{\text{shuffled}}$",
    "g_margin": r"$g_{\text{margin}}$",
    "n": "$n$",
}
_PREAMBLE = (
    r"% needs \usepackage{booktabs,xcolor,amsmath}",
    r"\providecolor{hred}{RGB}{168,26,38}\providecolor{hblue}{RGB}{26,62,148}",
)


def _is_number(column: TableColumn) -> bool:
    return column.format.kind != "text"


def _name(text: object) -> str:
    return shorten(clean(text), LONGEST)


def _published(cell: Cell) -> str:
    return plain(cell.published, cell.format)


def text(table: ReportTable, width: int) -> str:
    """For a terminal: title, table, note."""
    names = table.per_column(lambda c: c.title, "paper", "diff.")
    rows: list[list[str]] = []
    for row in table.sectioned():
        if isinstance(row, str):
            rows.append([f"{_name(row)}:", *[""] * (len(names) - 1)])
        else:
            rows.append(table.per_cell(row, lambda c, _: _text_cell(c), _published, difference_text))
    body = render_table(names, rows, max(width, _needed(names, rows))).rstrip("\n")
    note = ["", *wrap(clean(table.note), width)] if table.note else []
    return "\n".join([*wrap(clean(table.title), width), "", body, *note]) + "\n"


def _needed(names: list[str], rows: list[list[str]]) -> int:
    """Terminal columns below which a number or a short name would be cut."""
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    return min(widths[0], _NARROWEST_NAME) + sum(2 + min(width, _NARROWEST_NAME) for width in widths[1:])


def _text_cell(cell: Cell) -> str:
    if not isinstance(cell.value, str):
        return cell.text
    return f"{_name(cell.value)} ({FEW_TEXT})" if cell.few else _name(cell.value)


def markdown(table: ReportTable) -> str:
    """A pipe table."""
    names = table.per_column(lambda c: c.title, PUBLISHED, DIFFERENCE)
    right = table.per_column(_is_number, True, True)
    lines = [
        f"**{escape_markdown(_name(table.title))}**",
        "",
        _piped(escape_markdown(_name(name)) for name in names),
        _piped("---:" if one else "---" for one in right),
    ]
    for row in table.sectioned():
        if isinstance(row, str):
            lines.append(_piped([f"*{escape_markdown(_name(row))}*", *[""] * (len(names) - 1)]))
        else:
            lines.append(_piped(table.per_cell(row, _markdown_cell, _markdown_published, difference_text)))
    note = ["", escape_markdown(table.note)] if table.note else []
    return "\n".join([*lines, *note]) + "\n"


def _piped(fields: Iterable[str]) -> str:
    return f"| {' | '.join(fields)} |"


def _markdown_cell(cell: Cell, _: TableColumn) -> str:
    is_name = isinstance(cell.value, str)
    shown = escape_markdown(_name(cell.value)) if is_name else cell.text.replace("<", "&lt;")
    if cell.few and cell.format.kind == "text":
        shown += f" ({FEW_TEXT.replace('<', '&lt;')})"
    return f"**{shown}**" if cell.bold else shown


def _markdown_published(cell: Cell) -> str:
    return escape_markdown(_name(cell.published)) if isinstance(cell.published, str) else _published(cell)


def csv_file(table: ReportTable) -> str:
    """Values in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    sections = any(row.section for row in table.rows)
    writer.writerow([*(["section"] if sections else []), *_csv_names(table), "few"])
    for row in table.rows:
        fields: list[str] = [escape_csv(row.section)] if sections else []
        for cell, column, compared in zip(row.cells, table.columns, table.compared, strict=True):
            fields += _csv_fields(cell.value, column)
            fields += _csv_fields(cell.published, column) if compared else []
            fields += [_csv_number(cell.difference)] if compared and column.differs else []
        writer.writerow([*fields, int(any(cell.few for cell in row.cells))])
    return out.getvalue()


def _csv_names(table: ReportTable) -> Iterator[str]:
    for column, compared in zip(table.columns, table.compared, strict=True):
        ends = ("_low", "_high") if column.format.kind == "span" else ("",)
        for suffix in ("", f"_{PUBLISHED}") if compared else ("",):
            yield from (column.name + suffix + end for end in ends)
        if compared and column.differs:
            yield f"{column.name}_{DIFFERENCE}"


def _csv_fields(value: Value, column: TableColumn) -> list[str]:
    if column.format.kind == "span":
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
    about = {name: getattr(table, name) for name in ("name", "title", "note", "label")}
    return {**about, "columns": heads, "rows": rows}


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


def latex(table: ReportTable) -> str:
    """A `table` with booktabs rules."""
    names = table.per_column(_latex_heading, PUBLISHED, DIFFERENCE)
    kinds = table.per_column(lambda c: "c" if _is_number(c) else "l", "c", "c")
    lines = [
        *_PREAMBLE,
        r"\begin{table}[h]",
        rf"\caption{{\textbf{{{escape_latex(table.title)}.}} {escape_latex(table.note)}}}",
        *([rf"\label{{{table.label}}}"] if table.label else []),
        r"\begin{center}",
        rf"\begin{{tabular}}{{{''.join(kinds)}}}",
        r"\toprule",
        " & ".join(names) + r" \\",
        r"\midrule",
        *_latex_body(table, len(names)),
        *(r"\bottomrule", r"\end{tabular}", r"\end{center}", r"\end{table}"),
    ]
    return "\n".join(lines) + "\n"


def _latex_body(table: ReportTable, width: int) -> list[str]:
    lines: list[str] = []
    totals = False
    for row in table.sectioned():
        if isinstance(row, str):
            lines += [r"\midrule"] if lines else []
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape_latex(_name(row))}}}}} \\")
            continue
        if row.total and lines and not totals:
            lines.append(r"\midrule")
            totals = True
        shown = table.per_cell(row, _latex_cell, _latex_published, _latex_difference)
        lines.append((r"\quad " if row.section else "") + " & ".join(shown) + r" \\")
    return lines


def _latex_heading(column: TableColumn) -> str:
    symbol = _SYMBOLS.get(column.heading) or escape_latex(_name(column.heading))
    unit = f" ({escape_latex(column.unit)})" if column.unit else ""
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


def _latex_cell(cell: Cell, column: TableColumn) -> str:
    if isinstance(cell.value, str):
        few = f" ({escape_latex(FEW_TEXT)})" if cell.few else ""
        return (_SYMBOLS.get(cell.value) or escape_latex(_name(cell.value))) + few
    shown = latex_value(cell.value, cell.format)
    if not cell.bold:
        return shown
    heavy = rf"$\mathbf{{{shown[1:-1]}}}$" if shown.startswith("$") else rf"\textbf{{{shown}}}"
    return rf"\textcolor{{h{column.hue}}}{{{heavy}}}" if column.hue else heavy


def _latex_published(cell: Cell) -> str:
    if isinstance(cell.published, str):
        return "$<10^{-12}$" if cell.published == "<10^-12" else escape_latex(_name(cell.published))
    return latex_value(cell.published, cell.format)


def _latex_difference(cell: Cell) -> str:
    shown = difference_text(cell)
    return "--" if shown == MISSING else f"${shown.replace(' pt', '')}$" + (" pt" if shown.endswith(" pt") else "")


def html(table: ReportTable) -> str:
    """A `<table>`; the classes of a cell are text or number, bold with its hue, faint, few."""
    names = table.per_column(
        lambda c: _html_head(c.title, "number" if _is_number(c) else "text"),
        _html_head(PUBLISHED),
        _html_head(DIFFERENCE),
    )
    lines = [
        f'<table class="hrx-table" data-table="{escape_html(table.name)}">',
        f"<caption>{escape_html(table.title)}</caption>",
        f"<thead><tr>{''.join(names)}</tr></thead>",
        "<tbody>",
        *(_html_row(table, row, len(names)) for row in table.sectioned()),
        "</tbody>",
        "</table>",
    ]
    if table.note:
        lines.append(f'<p class="hrx-note">{escape_html(table.note)}</p>')
    return "\n".join(lines) + "\n"


def _html_row(table: ReportTable, row: TableRow | str, width: int) -> str:
    if isinstance(row, str):
        return f'<tr class="section"><th colspan="{width}" scope="rowgroup">{escape_html(row)}</th></tr>'
    first = table.columns[0]
    shown = table.per_cell(
        row,
        lambda cell, column: _html_cell(cell, column, column is first),
        lambda cell: f'<td class="number published">{escape_html(_published(cell))}</td>',
        lambda cell: f'<td class="number difference">{escape_html(difference_text(cell))}</td>',
    )
    return ('<tr class="total">' if row.total else "<tr>") + "".join(shown) + "</tr>"


def _html_head(name: str, kind: str = "number") -> str:
    return f'<th scope="col" class="{kind}">{escape_html(name)}</th>'


def _html_cell(cell: Cell, column: TableColumn, is_head: bool) -> str:
    is_text = cell.format.kind == "text"
    classes = ["text" if is_text else "number"]
    classes += ["bold", column.hue] if cell.bold else []
    classes += ["faint"] if cell.faint else []
    classes += ["few"] if cell.few else []
    few = f" <small>({escape_html(FEW_TEXT)})</small>" if cell.few and is_text else ""
    # A name may run from right to left: it must not reorder what stands beside it.
    shown = f"<bdi>{escape_html(cell.text)}</bdi>" if isinstance(cell.value, str) else escape_html(cell.text)
    tag, scope = ("th", ' scope="row"') if is_head else ("td", "")
    return f'<{tag}{scope} class="{" ".join(filter(None, classes))}">{shown}{few}</{tag}>'
