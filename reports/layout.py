"""Text that keeps its place: names from anywhere as harmless text, cut, wrapped and padded by terminal columns."""

from __future__ import annotations

import unicodedata

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MARKS_IN_A_ROW = 2
"""As many combining marks as living scripts put on one letter; more of them would draw over other lines."""


def clean(text: object) -> str:
    """The text on one line, with everything replaced that a terminal or a page would obey instead of show."""
    shown: list[str] = []
    marks = 0
    for character in unicodedata.normalize("NFC", str(text)):
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MARKS_IN_A_ROW:
            continue
        if character in "\t\n\r":
            shown.append(" ")
        elif category[0] == "C" or category in ("Zl", "Zp"):
            shown.append(REPLACEMENT)
        else:
            shown.append(character)
    return "".join(shown)


def columns(text: str) -> int:
    """Terminal columns that the text takes."""
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """The text in at most `width` columns. Its middle gives way, since names differ at both ends."""
    if columns(text) <= width:
        return text
    tail = _head(text[::-1], (width - 1) // 2)[::-1]
    return _head(text, width - 1 - columns(tail)) + "…" + tail


def _head(text: str, width: int) -> str:
    taken = 0
    for index, character in enumerate(text):
        taken += _width(character)
        if taken > width:
            return text[:index]
    return text


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken at spaces where that is possible. At least one line."""
    lines = [""]
    for word in text.split():
        gap = 1 if lines[-1] else 0
        if lines[-1] and columns(lines[-1]) + gap + columns(word) > width:
            lines.append("")
            gap = 0
        lines[-1] += " " * gap
        while columns(word) > width - columns(lines[-1]):
            head = _head(word, width - columns(lines[-1])) or word[0]
            lines[-1] += head
            word = word[len(head) :]
            if word:
                lines.append("")
            else:
                break
        lines[-1] += word
    return lines


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled up with spaces to `width` columns, on its left side if `right` is where it belongs."""
    space = " " * (width - columns(text))
    return space + text if right else text + space
