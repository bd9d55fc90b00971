"""What results look like in a notebook: HTML with its styles inside, so that it needs nothing of the page around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hrx.reports.text import escape_html

_CELL = "padding:2px 10px;text-align:{side};border-bottom:1px solid rgba(128,128,128,.3)"


def facts_html(title: str, lines: Iterable[str]) -> str:
    """A title, and a paragraph with the lines below each other."""
    return f"<p><b>{escape_html(title)}</b></p><p>{'<br>'.join(map(escape_html, lines))}</p>"


def table_html(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A small table: the first column is text, the others are numbers."""

    def cells(row: Sequence[str], tag: str) -> str:
        sides = ["left"] + ["right"] * (len(row) - 1)
        styled = (
            f'<{tag} style="{_CELL.format(side=side)}">{escape_html(cell)}</{tag}>'
            for side, cell in zip(sides, row, strict=True)
        )
        return f"<tr>{''.join(styled)}</tr>"

    body = "".join(cells(row, "td") for row in rows)
    return f'<table style="border-collapse:collapse"><thead>{cells(heads, "th")}</thead><tbody>{body}</tbody></table>'
