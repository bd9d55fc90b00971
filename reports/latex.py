"""Tables in LaTeX: booktabs rules, the colours of the paper, a table longer than a page as several."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from hrx.reports.cells import MISSING, ShownColumn, TableData, TableRow, short_name
from hrx.reports.text import clean
from hrx.text import REPLACEMENT

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
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "`": r"\textasciigrave{}", "×": r"$\times$", "−": "$-$",
    "∞": r"$\infty$", "Δ": r"$\Delta$", "π": r"$\pi$", "Ē": r"$\bar{E}$", "ŷ": r"$\hat{y}$", "…": r"\ldots{}",
    REPLACEMENT: "?", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ø": r"\o{}",
    "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}", "–": "--", "—": "---", "’": "'", "‘": "`", "“": "``",
    "”": "''", "±": r"$\pm$", "≥": r"$\geq$", "≤": r"$\leq$", "µ": r"$\mu$", "°": r"$^\circ$",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0323": "d", "\u0327": "c",
}  # fmt: skip
"""LaTeX's accents by combining mark."""
_BELOW = ("\u0323", "\u0327")


def escape_latex(text: object) -> str:
    """A sentence as text that `pdflatex` sets in any encoding: a character that it does not have becomes `?`."""
    shown = []
    for character in clean(text):
        base, *marks = list(unicodedata.normalize("NFD", character))
        mark = "".join(marks)
        if character not in _LATEX and base.isascii() and base.isalpha() and mark in _ACCENTS:
            # An accent takes the place of the dot.
            under = base if mark in _BELOW else {"i": r"\i", "j": r"\j"}.get(base, base)
            shown.append(rf"\{_ACCENTS[mark]}{{{under}}}")
        else:
            shown.append(_LATEX.get(character, character if character.isascii() else "?"))
    return "".join(shown)


def to_latex(table: TableData) -> str:
    """A `table` with booktabs rules, in the colours of the paper, never wider than the text.

    A table that is longer than a page becomes several. `latex_document` makes a document of tables.
    """
    kinds = "".join("c" if shown.is_number else "l" for shown in table.stacked)
    units = (f" ({escape_latex(shown.column.unit)})" if shown.column.unit else "" for shown in table.stacked)
    names = (rf"\textbf{{{_name(shown.column.heading)}}}" for shown in table.stacked)
    heads = " & ".join(name + unit for name, unit in zip(names, units, strict=True)) + r" \\"
    pages = _pages(table)
    lines = list(_PREAMBLE)
    for index, rows in enumerate(pages):
        part = f" (part {index + 1} of {len(pages)})" if len(pages) > 1 else ""
        lines += [
            *(r"\begin{table}[htbp]", r"\centering"),
            rf"\caption{{\textbf{{{escape_latex(table.title + part)}.}}}}",
            *([rf"\label{{{table.label}}}"] if table.label and not index else []),
            *(r"\begin{adjustbox}{max width=\textwidth}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", heads),
            *(r"\midrule", *(rows[1:] if rows[:1] == [r"\midrule"] else rows)),
            *(r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"),
        ]
        if table.note and index == len(pages) - 1:
            lines += [r"\par\medskip", rf"{{\footnotesize\raggedright {escape_latex(table.note)}\par}}"]
        lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def _pages(table: TableData) -> list[list[str]]:
    """Lines of each page. A row stays together, and a section's name has a rule above it."""
    pages: list[list[str]] = [[]]
    totals = False
    for row in table.sectioned():
        first = pages == [[]]
        if isinstance(row, str):
            name = rf"\multicolumn{{{len(table.stacked)}}}{{l}}{{\textit{{{escape_latex(short_name(row))}}}}} \\"
            lines = [name] if first else [r"\midrule", name]
        else:
            lines = [r"\midrule"] if row.total and not totals and not first else []
            lines += _row(table, row)
            totals = totals or row.total
        if pages[-1] and len(pages[-1]) + len(lines) > _LATEX_LINES:
            pages.append([])
        pages[-1] += lines
    return pages


def _row(table: TableData, row: TableRow) -> list[str]:
    """Row, then what was published and the difference, each in a line below it."""
    written = " & ".join(_cell(shown, row) for shown in table.stacked)
    indent = r"\quad " if row.section else ""
    # After `\\` and a rule, LaTeX would take a bracket for an option and an asterisk for a variant.
    guard = "{}" if not indent and written[:1] in ("[", "*") else ""
    lines = [indent + guard + written + r" \\"]
    for part in row.compared:
        cells = (shown.compared(row, part, _name, latex_number) for shown in table.stacked[1:])
        lines.append(rf"{indent}\quad \textit{{{part}}} & {' & '.join(cells)} \\")
    if remark := table.remark(row):
        words = rf"{indent}\quad {{\footnotesize \textit{{in common:}} {escape_latex(remark)}}}"
        lines.append(rf"\multicolumn{{{len(table.stacked)}}}{{l}}{{{words}}} \\")
    return lines


def _name(name: str) -> str:
    return _SYMBOLS.get(name) or escape_latex(short_name(name))


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


def _cell(shown: ShownColumn, row: TableRow) -> str:
    written = shown.write(row, _name, latex_number)
    if not row.cells[shown.place].bold:
        return written
    heavy = rf"$\mathbf{{{written[1:-1]}}}$" if written.startswith("$") else rf"\textbf{{{written}}}"
    hue = row.cells[shown.place].hue
    return rf"\textcolor{{h{hue}}}{{{heavy}}}" if hue else heavy


def latex_document(parts: Iterable[str]) -> str:
    """A document of tables in LaTeX, or of commands that read them, that `pdflatex` compiles as it stands."""
    body = "\n".join(f"{part}\\clearpage\n" for part in parts).rstrip("\n")
    return "\n".join((*_DOCUMENT, r"\begin{document}", body, r"\end{document}")) + "\n"
