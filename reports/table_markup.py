"""A table as LaTeX and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hrx.reports import cells, escape
from hrx.reports.cells import MISSING, Cell, Column, Row, difference_text, plain
from hrx.reports.statistics import FEW_TEXT

if TYPE_CHECKING:
    from hrx.reports.table import Table

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


def latex(table: Table) -> str:
    names = table.per_column(_latex_heading, lambda c: "published", lambda c: "difference")
    kinds = table.per_column(lambda c: "l" if c.format.kind == "text" else "c", lambda c: "c", lambda c: "c")
    lines = [
        *_PREAMBLE,
        r"\begin{table}[h]",
        rf"\caption{{\textbf{{{escape.latex_prose(table.title)}.}} {escape.latex_prose(table.note)}}}",
        *([rf"\label{{{table.label}}}"] if table.label else []),
        r"\begin{center}",
        rf"\begin{{tabular}}{{{''.join(kinds)}}}",
        r"\toprule",
        " & ".join(names) + r" \\",
        r"\midrule",
    ]
    lines += _latex_body(table, len(names))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{center}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_body(table: Table, width: int) -> list[str]:
    lines: list[str] = []
    totals = False
    for row in table.sectioned():
        if isinstance(row, str):
            lines += [r"\midrule"] if lines else []
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape.latex(row)}}}}} \\")
            continue
        if row.total and lines and not totals:
            lines.append(r"\midrule")
            totals = True
        shown = table.per_cell(row, _latex_cell, _latex_published, _latex_difference)
        lines.append((r"\quad " if row.section else "") + " & ".join(shown) + r" \\")
    return lines


def _latex_heading(column: Column) -> str:
    symbol = _SYMBOLS.get(column.heading) or escape.latex(column.heading)
    unit = f" ({escape.latex(column.unit)})" if column.unit else ""
    return rf"\textbf{{{symbol}}}{unit}"


def _latex_cell(cell: Cell, column: Column) -> str:
    if isinstance(cell.value, str):
        few = f" ({escape.latex(FEW_TEXT)})" if cell.few else ""
        return (_SYMBOLS.get(cell.value) or escape.latex(cell.value)) + few
    shown = cells.latex(cell.value, cell.format)
    if not cell.bold:
        return shown
    heavy = rf"$\mathbf{{{shown[1:-1]}}}$" if shown.startswith("$") else rf"\textbf{{{shown}}}"
    return rf"\textcolor{{h{column.hue}}}{{{heavy}}}" if column.hue else heavy


def _latex_published(cell: Cell) -> str:
    if isinstance(cell.published, str):
        return "$<10^{-12}$" if cell.published == "<10^-12" else escape.latex(cell.published)
    return cells.latex(cell.published, cell.format)


def _latex_difference(cell: Cell) -> str:
    shown = difference_text(cell)
    return "--" if shown == MISSING else f"${shown.replace(' pt', '')}$" + (" pt" if shown.endswith(" pt") else "")


def html(table: Table) -> str:
    names = table.per_column(_html_heading, lambda c: _html_head("published"), lambda c: _html_head("difference"))
    lines = [
        f'<table class="hrx-table" data-table="{escape.markup(table.name)}">',
        f"<caption>{escape.markup(table.title)}</caption>",
        f"<thead><tr>{''.join(names)}</tr></thead>",
        "<tbody>",
        *(_html_row(table, row, len(names)) for row in table.sectioned()),
        "</tbody>",
        "</table>",
    ]
    if table.note:
        lines.append(f'<p class="hrx-note">{escape.markup(table.note)}</p>')
    return "\n".join(lines) + "\n"


def _html_row(table: Table, row: Row | str, width: int) -> str:
    if isinstance(row, str):
        return f'<tr class="section"><th colspan="{width}" scope="rowgroup">{escape.markup(row)}</th></tr>'
    first = table.columns[0]
    shown = table.per_cell(
        row, lambda cell, column: _html_cell(cell, column, column is first), _html_published, _html_difference
    )
    opening = '<tr class="total">' if row.total else "<tr>"
    return opening + "".join(shown) + "</tr>"


def _html_heading(column: Column) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return _html_head(column.heading + unit, "text" if column.format.kind == "text" else "number")


def _html_head(name: str, kind: str = "number") -> str:
    return f'<th scope="col" class="{kind}">{escape.markup(name)}</th>'


def _html_cell(cell: Cell, column: Column, is_head: bool) -> str:
    """A cell. Its classes say what it is: text or number, bold with its hue, faint, few."""
    is_text = cell.format.kind == "text"
    classes = ["text" if is_text else "number"]
    classes += ["bold", column.hue] if cell.bold else []
    classes += ["faint"] if cell.faint else []
    classes += ["few"] if cell.few else []
    few = f" <small>({escape.markup(FEW_TEXT)})</small>" if cell.few and is_text else ""
    # A name may run from right to left: it must not pull what stands beside it along.
    shown = f"<bdi>{escape.markup(cell.text)}</bdi>" if isinstance(cell.value, str) else escape.markup(cell.text)
    tag, scope = ("th", ' scope="row"') if is_head else ("td", "")
    return f'<{tag}{scope} class="{" ".join(filter(None, classes))}">{shown}{few}</{tag}>'


def _html_published(cell: Cell) -> str:
    return f'<td class="number published">{escape.markup(plain(cell.published, cell.format))}</td>'


def _html_difference(cell: Cell) -> str:
    return f'<td class="number difference">{escape.markup(difference_text(cell))}</td>'
