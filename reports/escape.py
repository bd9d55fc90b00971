"""Names from anywhere as plain text in Markdown, LaTeX, HTML, XML and CSV: whatever they hold, nothing obeys it.

Each function takes what a record holds. Control characters, escape sequences and marks that turn the reading direction
are replaced first, by `hrx.reports.layout.clean`.
"""

from __future__ import annotations

import html
import re
import unicodedata

from hrx.reports.layout import REPLACEMENT, clean, shorten

LONGEST = 80
"""Columns that a name may take where a longer one would break the page."""

_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_LINE_START = re.compile(r"^(\s*\d*)([-+=#:.)])")
_MENTION = re.compile(r"(?<!\w)@(?=\w)")
_ADDRESS = re.compile(r"(?i)\b(https?|ftp|www)(?=[:.])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "×": r"$\times$",
    "−": "$-$",
    "∞": r"$\infty$",
    "Δ": r"$\Delta$",
    "π": r"$\pi$",
    "Ē": r"$\bar{E}$",
    "ŷ": r"$\hat{y}$",
    "…": r"\ldots{}",
    REPLACEMENT: "?",
}


def markdown(text: object) -> str:
    """A name as Markdown text."""
    return markdown_prose(shorten(clean(text), LONGEST))


def markdown_prose(text: object) -> str:
    """A sentence as Markdown text. An empty comment parts what a host would turn into a mention or a link."""
    shown = html.escape(clean(text), quote=False)
    shown = _LINE_START.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", shown))
    return _ADDRESS.sub(r"\1<!-- -->", _MENTION.sub("@<!-- -->", shown))


def latex(text: object) -> str:
    """A name as LaTeX text."""
    return latex_prose(shorten(clean(text), LONGEST))


def latex_prose(text: object) -> str:
    """A sentence as LaTeX text. A sign that is neither letter nor digit nor known here becomes a question mark."""
    return "".join(_latex(character) for character in clean(text))


def _latex(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    return character if character.isascii() or unicodedata.category(character)[0] in "LNM" else "?"


def markup(text: object) -> str:
    """As text or attribute of HTML or XML, in full."""
    return html.escape(clean(text))


def csv_text(text: object) -> str:
    """As a CSV field that no spreadsheet takes for a formula. Quoting is the CSV writer's business."""
    shown = clean(text)
    return f"'{shown}" if shown.lstrip()[:1] in ("=", "+", "-", "@", "|", "%") and shown != "-" else shown
