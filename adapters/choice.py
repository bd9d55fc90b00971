"""Which checkpoint is audited at which setting.

One checkpoint at all of them, unless the name ends in `@auto`: then a family that releases one checkpoint per lookback
and horizon takes its library's own choice, and each choice is a model of its own in the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple, cast

from hrx.adapters.contract import ModelError
from hrx.adapters.registry import Located, families, locate, require, short_names

AUTO = "auto"
Pair = tuple[int, int]
"""Lookback and horizon."""


class Choice(NamedTuple):
    """A checkpoint and the settings that it is audited at."""

    located: Located
    settings: list[Pair]


def locate_each(name: str, settings: Sequence[Pair]) -> list[Choice]:
    """Finds the checkpoints that `name` stands for at the given settings."""
    short, _, suffix = name.rpartition("@")
    if suffix != AUTO:
        return [Choice(locate(name), list(settings))]
    choosing = {known: released for known, released in short_names().items() if families()[released.family].chooser}
    if short not in choosing:
        raise ModelError(
            f"{name} asks for a choice by setting, which only {', '.join(choosing)} offers. Leave @{AUTO} away."
        )
    family = families()[choosing[short].family]
    require(family, name)
    module, function = family.chooser.split(":")
    choose = cast(Callable[[str, int, int], str], getattr(import_module(module), function))
    chosen: dict[str, list[Pair]] = {}
    for pair in settings:
        chosen.setdefault(choose(choosing[short].hub_id, *pair), []).append(pair)
    return [Choice(locate(f"{short}@{revision}"), taken) for revision, taken in chosen.items()]
