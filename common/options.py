"""Options of a command as fields of a frozen dataclass, and everything that reads or writes them.

    @dataclass(frozen=True, kw_only=True)
    class AuditRequest:
        models: tuple[str, ...] = option((), "names or paths", metavar="MODEL", positional=True)
        series: int = option(3, "series per dataset (default: 3)", check=positive, metavar="N")
        json: bool = option(False, "print JSON instead of text")

From these fields come the options of the command line (`add_options`, `given`), a settings file in TOML
(`read_settings`, `as_toml`), Python's keywords (`from_keywords`) and JSON (`as_settings`, `from_settings`). A field of
type `tuple` may be given several times, one of type `bool` takes no value, one of type `Literal` one of these values.
"""

import argparse
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from hrx.errors import HrxError, unknown
from hrx.files import MOST_SETTINGS, check_depth, read_file

Request = TypeVar("Request")
Values = dict[str, Any]
"""Values of fields by their names."""


class SettingsError(HrxError):
    """A settings file that cannot be read, or holds an invalid value."""


@dataclass(frozen=True)
class Option:
    """What a field knows beside its name, type and default."""

    help: str
    check: Callable[[str], Any]
    """Reads the text of one value; raises a ValueError with the reason where it is not valid."""
    metavar: str | None
    positional: bool
    const: str | None
    """Value of an option that is given without one."""
    setting: bool
    """Whether it may stand in a settings file."""
    stored: bool
    """Whether a ledger stores it."""


def option(
    default: Any,
    help: str,
    *,
    check: Callable[[str], Any] = str,
    metavar: str | None = None,
    positional: bool = False,
    const: str | None = None,
    setting: bool = True,
    stored: bool = True,
) -> Any:
    """A field of a request; `default` may be `MISSING` for one that must be given."""
    about = Option(help, check, metavar, positional, const, setting, stored)
    return field(default=default, metadata={"option": about})


def positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) < 1:
        raise ValueError(f"{text[:20]!r} is not a whole number from 1 to 999999")
    return int(text)


def count(text: str) -> int:
    return 0 if text == "0" else positive(text)


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{text[:20]!r} is not a number from 0 up")
    return value


def above_zero(text: str) -> float:
    """A number above zero, such as a share."""
    try:
        value = number(text)
    except ValueError:
        value = 0.0
    if not value:
        raise ValueError(f"{text[:20]!r} is not a number above 0, such as 0.01")
    return value


def seconds(text: str) -> float:
    """`90`, `90s`, `30m` (or `30min`) or `4h` in seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|min|h|)", text)
    if match is None:
        raise ValueError(f"{text[:20]!r} is not a time such as 90s, 30m or 4h, and not 0")
    return float(match[1]) * {"m": 60, "min": 60, "h": 3600}.get(match[2], 1)


def time_above_zero(text: str) -> float:
    try:
        found = seconds(text)
    except ValueError:
        found = 0.0
    if not found:
        raise ValueError(f"{text[:20]!r} is not a time above zero such as 90s, 10m or 2h")
    return found


def spelling(name: str) -> str:
    """A field's name in a settings file, and after two dashes on the command line."""
    return name.replace("_", "-")


def add_options(parser: argparse.ArgumentParser, request: type) -> None:
    """Declares the options of a request; one that is not given is None afterwards."""
    for one in fields(request):
        about = _about(one)
        settings: dict[str, Any] = {"help": about.help, "metavar": about.metavar, "default": None}
        required = one.default is MISSING
        if one.type is bool:
            parser.add_argument(
                f"--{spelling(one.name)}", action="store_const", const=True, default=None, help=about.help
            )
            continue
        settings["type"] = partial(_typed, one)
        if (choices := _choices(one)) and about.metavar is None:
            settings["metavar"] = f"{{{','.join(choices)}}}"
        if about.positional:
            many = "+" if required else "*"
            single = None if required else "?"
            parser.add_argument(one.name, nargs=many if _repeats(one) else single, **settings)
            continue
        if about.const is not None:
            settings |= {"nargs": "?", "const": about.const}
        action = "append" if _repeats(one) else "store"
        parser.add_argument(f"--{spelling(one.name)}", action=action, required=required, **settings)


def given(options: argparse.Namespace, request: type) -> Values:
    """Return the values that a parsed command line gives."""
    values = {one.name: getattr(options, one.name, None) for one in fields(request)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value not in (None, [])
    }


def from_keywords(request: type[Request], values: Mapping[str, Any], function: str) -> Request:
    """Return the request of a call in Python; `function` is its name for messages. None stands for the default."""
    known = {one.name: one for one in fields(request)}  # type: ignore[arg-type]
    read: Values = {}
    for name, value in values.items():
        if name not in known:
            raise HrxError(f"{function}: {unknown('keyword', name, known)}")
        if any(callable(each) for each in _several(value)):
            raise HrxError(f"{function}: {name} is a function, which no worker can import. Give FILE.py:FUNCTION.")
        if value is not None:
            try:
                read[name] = _converted(known[name], value)
            except ValueError as error:
                raise HrxError(f"{function}: {name}={value!r}: {error}.") from error
    return request(**read)


def as_settings(request: Any) -> Values:
    """Return the settings of a request by their spelling, as JSON and TOML can hold them."""
    values = {spelling(one.name): getattr(request, one.name) for one in fields(request) if _about(one).setting}
    return {name: _plain(value) for name, value in values.items()}


def from_settings(request: type[Request], settings: Mapping[str, Any]) -> Request:
    """Return the request of `as_settings`, in another process."""
    values = {spelling(one.name): (one, settings.get(spelling(one.name))) for one in fields(request)}  # type: ignore[arg-type]
    return request(**{one.name: _converted(one, value) for one, value in values.values() if value is not None})


def stored_settings(request: Any, shorten: Callable[[str], str]) -> Values:
    """Return the settings that a ledger stores; `shorten` removes folders from a text."""
    kept = {spelling(one.name) for one in fields(request) if _about(one).stored}
    return {
        name: [shorten(each) if isinstance(each, str) else each for each in value]
        if isinstance(value, list)
        else shorten(value)
        if isinstance(value, str)
        else value
        for name, value in as_settings(request).items()
        if name in kept
    }


def as_toml(request: Any) -> str:
    """Return the settings of a request as a settings file."""
    settings = {name: value for name, value in as_settings(request).items() if value not in (None, [])}
    return "\n".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())


def read_settings(request: type, path: Path) -> Values:
    """Return the values of a settings file, which accepts what the command line accepts, under the same names.

    models = ["chronos-2", "ttm-r2"]
    settings = "star"
    workers = 4

    [python]
    visionts = ".venv-visionts/bin/python"
    """
    known = {spelling(one.name): one for one in fields(request) if _about(one).setting}
    text = _read(path)
    values: Values = {}
    for key, value in _parse(text, path).items():
        place = f"{path}, line {_line(text, key)}"
        if key not in known:
            raise SettingsError(f"{place}: {unknown('option', key, known)}")
        try:
            values[known[key].name] = _converted(known[key], value)
        except ValueError as error:
            raise SettingsError(f"{place}: {key} = {value!r}: {error}.") from error
    return values


def _about(one: Field[Any]) -> Option:
    about: Option = one.metadata["option"]
    return about


def _choices(one: Field[Any]) -> tuple[str, ...]:
    """Return the values of a field of type `Literal`, which may be None too."""
    kinds = (one.type, *get_args(one.type))
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


def _repeats(one: Field[Any]) -> bool:
    return get_origin(one.type) is tuple


def _converted(one: Field[Any], value: Any) -> Any:
    """A value from Python or TOML as the field holds it; raises a ValueError with the reason."""
    if one.type is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return value
    if isinstance(value, Mapping):
        value = [f"{key}={each}" for key, each in value.items()]
    if _repeats(one):
        return tuple(_one_value(one, each) for each in _several(value))
    return _one_value(one, ",".join(map(str, value)) if isinstance(value, list | tuple) else value)


def _one_value(one: Field[Any], value: Any) -> Any:
    if isinstance(value, bool | Mapping | list | tuple):
        raise ValueError(f"{value!r} is not a valid value of this option")
    about, text = _about(one), str(value)
    if (choices := _choices(one)) and text not in choices:
        raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(choices)})")
    if about.positional and text.startswith("-"):
        raise ValueError("it begins with a dash; options have a line of their own")
    return about.check(text)


def _typed(one: Field[Any], text: str) -> Any:
    """A word of the command line, for argparse."""
    try:
        return _one_value(one, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _several(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _read(path: Path) -> str:
    try:
        return read_file(path, MOST_SETTINGS).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"--config {path} is not TOML: {error}. Write NAME = VALUE, one option a line.") from error
    except HrxError as error:
        raise SettingsError(f"--config {path} cannot be read: {error}") from error


def _parse(text: str, path: Path) -> Values:
    try:
        content: Values = check_depth(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"--config {path} is not TOML: {reason}. Write NAME = VALUE, one option a line.") from error
    return content


def _line(text: str, key: str) -> int:
    """Return the first line that sets a key or opens its table: tomllib reports no line numbers."""
    name = rf"""["']?{re.escape(key)}["']?"""
    pattern = re.compile(rf"\s*(?:{name}\s*[.=]|\[+\s*{name}\s*[\].])")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)
