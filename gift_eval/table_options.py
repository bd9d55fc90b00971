"""What follows `csv:`, `parquet:` or `finance:` in a source: a file, and options as in a web address.

    sales.csv?date=day&id=shop&value=units,returns&frequency=D&dayfirst=yes&decimal=,

A name with `&`, `=`, `,` or `%` in it is written with `%26`, `%3D`, `%2C` or `%25`. The file's own name is written
as it is; options begin at the last `?`, unless there is a file called like the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from hrx.errors import HrxError, unknown

from . import frequency

_KNOWN = ("date", "id", "value", "frequency", "dayfirst", "decimal")


@dataclass(frozen=True)
class Options:
    """What a person said about a table; empty or None where it is to be found out."""

    date: str = ""
    id: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    frequency: str = ""
    day_first: bool | None = None
    decimal: str = ""


class TableSource(NamedTuple):
    """A file and what was said about it."""

    path: Path
    options: Options


def parse_source(text: str) -> TableSource:
    """`FILE` or `FILE?option=value&…`."""
    whole = Path(text).expanduser()
    name, mark, asked = text.rpartition("?")
    if whole.is_file() or not mark:
        name, asked = text, ""
    if not name:
        raise HrxError("The source names no file. Write csv:FILE, parquet:FILE or finance:FILE.")
    path = Path(name).expanduser()
    if path.is_dir():
        raise HrxError(f"{name} is a directory. Give one file.")
    return TableSource(path, _options(asked))


def _options(text: str) -> Options:
    pairs = [part.partition("=") for part in text.split("&") if part]
    for key, equals, value in pairs:
        if key not in _KNOWN:
            raise HrxError(unknown("option", key, _KNOWN, "Options are written ?date=NAME&value=NAME."))
        if not equals or not value:
            raise HrxError(f"The option {key} has no value. Write it as {key}=NAME.")
    given = {key: value for key, _, value in pairs}
    if len(given) < len(pairs):
        raise HrxError(f"An option is given twice in {text!r}. Several columns are written value=a,b.")
    return Options(
        unquote(given.get("date", "")),
        _names(given.get("id", "")),
        _names(given.get("value", "")),
        frequency.parse(given["frequency"]).name if "frequency" in given else "",
        _yes_or_no(given["dayfirst"]) if "dayfirst" in given else None,
        _decimal(given["decimal"]) if "decimal" in given else "",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(unquote(name) for name in text.split(","))) if text else ()


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise HrxError(f"dayfirst is {text!r}; write dayfirst=yes (31/1/2024) or dayfirst=no (1/31/2024).")
    return text == "yes"


def _decimal(text: str) -> str:
    sign = unquote(text)
    if sign not in (".", ","):
        raise HrxError(f"decimal is {text!r}; write decimal=. or decimal=, .")
    return sign
