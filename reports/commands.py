"""Commands that lead on from an audit, as words of a command line."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_FIRST = (
    "data", "settings", "series", "windows", "seeds", "draws", "precision", "estimator", "estimator-setting", "axis",
)  # fmt: skip
"""Options that a command begins with; all others follow."""
_WITHOUT_NUMBERS = ("models", "engine", "workers", "gpus", "gate", "verbose")
"""Settings that decide no number, and the models, which are not an option."""


USUAL = {
    "data": "sample", "settings": "quick", "series": 3, "effort": "light", "windows": 1, "seeds": 2, "draws": 2,
    "estimator": "input_gradient", "axis": "step", "output": "point", "out": "hrx-audit", "memory": 2.0,
    "device": "cpu", "timeout": 7200.0, "address": "auto",
}  # fmt: skip
"""Defaults of `hrx audit`, with the windows and draws of its effort: a test compares them."""


class NextCommand(NamedTuple):
    """A command, and what it is good for."""

    words: tuple[str, ...]
    purpose: str

    @property
    def line(self) -> str:
        return shlex.join(self.words)


def options(settings: Mapping[str, Any], but: Sequence[str] = ()) -> list[str]:
    """Stored settings of an audit as words of a command line, without those that are not set and except `but`."""
    words: list[str] = []
    for name in dict.fromkeys((*_FIRST, *settings)):
        value = settings.get(name)
        if name in (*_WITHOUT_NUMBERS, *but):
            continue
        if value is True:
            words.append(f"--{name}")
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [] if one in (None, False, "") else [f"--{name}", str(one)]
    return words


def audit_words(settings: Mapping[str, Any], *, short: bool = False) -> list[str]:
    """The command of stored settings; with `short`, without those that are the defaults."""
    usual = [name for name, value in USUAL.items() if short and settings.get(name) == value]
    return ["hrx", "audit", *map(str, settings.get("models") or []), *options(settings, usual)]
