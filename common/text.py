"""Text that may come from anywhere, made safe to print: names in a file, in a record, in a library's message.

Also `ComputedText`, a text that costs something and is computed when it is first read.
"""

import unicodedata
from collections.abc import Callable

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_MESSAGE = 2000
"""Characters of a message on one line; the middle of a longer one is cut."""
_MARKS_IN_A_ROW = 2
"""Combining marks that living scripts put on one letter; more of them would draw over other lines."""


def clean(text: object) -> str:
    """Return the text on one line, with every control, direction and surplus combining character replaced."""
    shown, marks = [], 0
    for character in unicodedata.normalize("NFC", str(text)):
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MARKS_IN_A_ROW:
            continue
        if character in "\t\n\r":
            character = " "
        elif category[0] == "C" or category in ("Zl", "Zp"):
            character = REPLACEMENT
        shown.append(character)
    return "".join(shown)


def clean_lines(text: str) -> str:
    """Clean each line of the text."""
    return "\n".join(clean(line) for line in text.split("\n"))


def message(text: object) -> str:
    """Return a message on one line of at most `LONGEST_MESSAGE` characters, cleaned."""
    line = clean(text)
    half = LONGEST_MESSAGE // 2
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:half]} … {line[-half:]}"


class ComputedText:
    """A field of a dataclass that holds a text, or a function that is called when the text is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> str:
        if instance is None:  # the dataclass asks for a default, and there is none
            raise AttributeError(self._name)
        held = vars(instance)
        if callable(held[self._name]):
            held[self._name] = held[self._name]()
        text: str = held[self._name]
        return text

    def __set__(self, instance: object, value: str | Callable[[], str]) -> None:
        vars(instance)[self._name] = value
