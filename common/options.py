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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
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


@dataclass(frozen=True, kw_only=True)
class Option:
    """What a field of a request knows."""

    help: str
    check: Callable[[str], Any] = str
    """Reads the text of one value; raises a ValueError with the reason where it is not valid."""
    metavar: str | None = None
    positional: bool = False
    const: str | None = None
    """Value of an option that is given without one."""
    setting: bool = True
    """Whether it may stand in a settings file."""
    stored: bool = True
    """Whether a ledger stores it."""
    name: str = ""
    """Name, type and default of the field."""
    type: Any = None
    default: Any = None

    @property
    def repeats(self) -> bool:
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """Values of a field of type `Literal`, which may be None too."""
        kinds = (self.type, *get_args(self.type))
        return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())

    def read(self, value: Any) -> Any:
        """Return a value from Python or TOML as the field holds it; raise a ValueError with the reason."""
        if self.type is bool:
            if not isinstance(value, bool):
                raise ValueError(f"{value!r} is neither true nor false")
            return value
        if isinstance(value, Mapping):
            value = [f"{key}={each}" for key, each in value.items()]
        several = isinstance(value, list | tuple)
        if self.repeats:
            return tuple(self.read_one(each) for each in (value if several else [value]))
        return self.read_one(",".join(map(str, value)) if several else value)

    def read_one(self, value: Any) -> Any:
        """Return one value of several."""
        if isinstance(value, bool | Mapping | list | tuple):
            raise ValueError(f"{value!r} is not a valid value of this option")
        text = str(value)
        if self.choices and text not in self.choices:
            raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(self.choices)})")
        if self.positional and text.startswith("-"):
            raise ValueError("it begins with a dash; options have a line of their own")
        return self.check(text)

    def read_word(self, text: str) -> Any:
        """Return a word of the command line, for argparse."""
        try:
            if self.metavar == "TIME" and text.isdecimal() and text.strip("0"):  # from Python a number is in seconds
                raise ValueError(f"{text!r} has no unit: give {text}s, {text}m or {text}h")
            return self.read_one(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error


def option(default: Any, help: str, **about: Any) -> Any:
    """A field of a request; `default` may be `MISSING` for one that must be given, `about` holds fields of `Option`."""
    return field(default=default, metadata={"option": Option(help=help, **about)})


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


def above_zero(text: str, read: Callable[[str], float] = number, what: str = "number above 0, such as 0.01") -> float:
    """A number above zero, such as a share."""
    with suppress(ValueError):
        if value := read(text):
            return value
    raise ValueError(f"{text[:20]!r} is not a {what}")


def seconds(text: str) -> float:
    """`90`, `90s`, `30m` (or `30min`) or `4h` in seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|min|h|)", text)
    if match is None:
        raise ValueError(f"{text[:20]!r} is not a time such as 90s, 30m or 4h, and not 0")
    return float(match[1]) * {"m": 60, "min": 60, "h": 3600}.get(match[2], 1)


time_above_zero = partial(above_zero, read=seconds, what="time above zero such as 90s, 10m or 2h")


def options_of(request: Any) -> dict[str, Option]:
    """Return the options of a request by their spelling in a settings file, and after two dashes."""
    found = {}
    for one in fields(request):
        about: Option = one.metadata["option"]
        found[one.name.rstrip("_").replace("_", "-")] = replace(
            about, name=one.name, type=one.type, default=one.default
        )
    return found


def add_options(parser: argparse.ArgumentParser, request: type) -> None:
    """Declares the options of a request; one that is not given is None afterwards."""
    for name, one in options_of(request).items():
        settings: dict[str, Any] = {"help": one.help, "default": None}
        if one.type is bool:
            parser.add_argument(f"--{name}", action="store_const", const=True, **settings)
            continue
        settings |= {"type": one.read_word, "metavar": one.metavar}
        if one.choices and one.metavar is None:
            settings["metavar"] = f"{{{','.join(one.choices)}}}"
        required = one.default is MISSING
        if one.positional:
            many, single = ("+", None) if required else ("*", "?")
            parser.add_argument(one.name, nargs=many if one.repeats else single, **settings)
            continue
        settings["dest"] = one.name
        if one.const is not None:
            settings |= {"nargs": "?", "const": one.const}
        parser.add_argument(f"--{name}", action="append" if one.repeats else "store", required=required, **settings)


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
    known = {one.name: one for one in options_of(request).values()}
    read: Values = {}
    for name, value in values.items():
        if name not in known:
            raise HrxError(f"{function}: {unknown('keyword', name, known)}")
        if any(callable(each) for each in (value if isinstance(value, list | tuple) else [value])):
            raise HrxError(f"{function}: {name} is a function, which no worker can import. Give FILE.py:FUNCTION.")
        if value is not None:
            try:
                read[name] = known[name].read(value)
            except ValueError as error:
                raise HrxError(f"{function}: {name}={value!r}: {error}.") from error
    return request(**read)


def as_settings(request: Any, shorten: Callable[[str], str] | None = None) -> Values:
    """Return the settings of a request by their spelling, as JSON and TOML can hold them.

    With `shorten`, which removes folders from a text, those that a ledger stores.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        text = str(value) if isinstance(value, Path) else value
        return shorten(text) if shorten and isinstance(text, str) else text

    known = {name: one for name, one in options_of(request).items() if one.setting and (one.stored or not shorten)}
    return {name: plain(getattr(request, one.name)) for name, one in known.items()}


def from_settings(request: type[Request], settings: Mapping[str, Any]) -> Request:
    """Return the request of `as_settings`, in another process; settings of other verbs are left out."""
    known = {name: one for name, one in options_of(request).items() if settings.get(name) is not None}
    return request(**{one.name: one.read(settings[name]) for name, one in known.items()})


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
    try:
        text = read_file(path, MOST_SETTINGS).decode("utf-8")
        content = check_depth(tomllib.loads(text))
    except HrxError as error:
        raise SettingsError(f"--config {path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"--config {path} is not TOML: {reason}. Write NAME = VALUE, one option a line.") from error
    known = {name: one for name, one in options_of(request).items() if one.setting}
    values: Values = {}
    for key, value in content.items():
        place = f"{path}, line {_line(text, key)}"
        if key not in known:
            raise SettingsError(f"{place}: {unknown('option', key, known)}")
        try:
            values[known[key].name] = known[key].read(value)
        except ValueError as error:
            raise SettingsError(f"{place}: {key} = {value!r}: {error}.") from error
    return values


def _line(text: str, key: str) -> int:
    """Return the first line that sets a key or opens its table: tomllib reports no line numbers."""
    name = rf"""["']?{re.escape(key)}["']?"""
    pattern = re.compile(rf"\s*(?:{name}\s*[.=]|\[+\s*{name}\s*[\].])")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)
