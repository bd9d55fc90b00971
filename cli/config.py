"""`--config FILE`: the options of `hrx audit` in TOML, under the same names. The command line takes precedence.

    models = ["chronos-2", "ttm-r2"]
    data = "gift-eval"
    settings = "star"
    workers = 4

    [python]
    visionts = ".venv-visionts/bin/python"

Every key is checked by the parser of the command line, so the file accepts exactly what the command line accepts.
"""

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hrx.audit.attribution.functions import stored_name
from hrx.errors import HrxError, unknown, without_paths
from hrx.files import MOST_SETTINGS, check_depth, read_file, user_path

# Options that are not settings of an audit.
_NOT_SETTINGS = ("config", "help", "debug", "dry_run", "rank_only", "recheck")

# Settings that a ledger does not store: where files are, and how long one command may take.
_NOT_STORED = ("ledger", "out", "json", "address", "budget")

_NAMED_VALUE = re.compile(r"(?P<name>[\w.-]+)(?P<mark>[=:])(?P<path>.*[/\\].*)")
"""A path after a name, as in `csv:FILE`, `FAMILY:PATH` and `FAMILY=PATH`."""
STRIPPED = "PATH"
"""Stands for a folder in stored settings: a ledger is published, and a path reveals who made it and where."""


class SettingsError(HrxError):
    """A settings file that cannot be read, or holds an invalid value."""


def with_settings_file(
    options: argparse.Namespace, arguments: Sequence[str] | None, parser: argparse.ArgumentParser
) -> argparse.Namespace:
    """The options, completed by those of the settings file if one is given."""
    path: Path | None = getattr(options, "config", None)
    if path is None:
        return options
    verb = _verb(parser, options.verb)
    line = list(sys.argv[1:] if arguments is None else arguments)
    at = line.index(options.verb)
    text = _read(path)
    tokens: list[str] = []
    for key, value in _parse(text, path).items():
        place = _Place(path, text, key)
        action = _action(verb, place)
        words = _words(action, value, place)
        _check(verb, words, value, place)
        # A list on the command line replaces the one in the file.
        if not (_repeats(action) and getattr(options, action.dest)):
            tokens += words
    return parser.parse_args([*line[: at + 1], *tokens, *line[at + 1 :]])


def effective(options: argparse.Namespace, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The effective settings of an audit, by their names in the settings file."""
    actions = [action for action in _verb(parser, options.verb)._actions if action.dest not in _NOT_SETTINGS]
    values = {_name(action): getattr(options, action.dest) for action in actions}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def as_toml(settings: Mapping[str, Any]) -> str:
    """Effective settings as a file for `--config`."""
    tables = {name: _table(value) for name, value in settings.items() if name == "python" and value}
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in settings.items()
        if value not in (None, []) and name not in tables
    ]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


def settings_without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Effective settings as a ledger stores them: with `PATH/` for the folder of every file and directory."""
    kept = {name: value for name, value in settings.items() if name not in _NOT_STORED}
    return {
        name: [_without_path(one) for one in value] if isinstance(value, list) else _without_path(value)
        for name, value in kept.items()
    }


def _without_path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if (named := _NAMED_VALUE.fullmatch(value)) and named["name"] not in ("sample", "gift-eval"):
        return named["name"] + named["mark"] + _without_path(named["path"])
    if (function := stored_name(value)) != value:  # FILE.py:FUNCTION with a folder
        return f"{STRIPPED}/{function}"
    name = Path(value).name if os.path.exists(user_path(value)) else without_paths(value)
    return name if name == value else f"{STRIPPED}/{name.removeprefix('./')}"


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Effective settings as command-line arguments."""
    words = [str(model) for model in settings.get("models") or []]
    for name, value in settings.items():
        if name == "models" or value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}={one}" for one in _several(value)]
    return words


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class _Place:
    """A key of a settings file, for messages."""

    def __init__(self, path: Path, text: str, key: str):
        self.path, self.text, self.key = path, text, key

    def __str__(self) -> str:
        return f"{self.path}, line {self._line()}"

    def _line(self) -> int:
        """The first line that sets the key or opens its table: tomllib reports no line numbers."""
        name = rf"""["']?{re.escape(self.key)}["']?"""
        pattern = re.compile(rf"\s*(?:{name}\s*[.=]|\[+\s*{name}\s*[\].])")
        lines = enumerate(self.text.splitlines(), 1)
        return next((number for number, line in lines if pattern.match(line)), 1)


def _read(path: Path) -> str:
    try:
        return read_file(path, MOST_SETTINGS).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"--config {path} is not TOML: {error}. Write NAME = VALUE, one option a line.") from error
    except HrxError as error:
        raise SettingsError(f"--config {path} cannot be read: {error}") from error


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = check_depth(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"--config {path} is not TOML: {reason}. Write NAME = VALUE, one option a line.") from error
    return content


def _verb(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found: argparse.ArgumentParser = verbs.choices[name]
    return found


def _name(action: argparse.Action) -> str:
    return action.option_strings[-1].removeprefix("--") if action.option_strings else action.dest


def _action(verb: argparse.ArgumentParser, place: _Place) -> argparse.Action:
    known = {_name(action): action for action in verb._actions if action.dest not in _NOT_SETTINGS}
    if place.key not in known:
        raise SettingsError(f"{place}: {unknown('option', place.key, known)}")
    return known[place.key]


def _repeats(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")


def _words(action: argparse.Action, value: Any, place: _Place) -> list[str]:
    """The command-line arguments of one key."""
    if isinstance(value, dict):
        value = [f"{key}={text}" for key, text in _table(value).items()] if _repeats(action) else str(value)
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise SettingsError(f"{place}: {place.key} = {value!r} is neither true nor false.")
        return [action.option_strings[-1]] if value else []
    if isinstance(value, list) and not _repeats(action):
        value = ",".join(map(str, value))
    values = _several(value)
    if any(isinstance(one, bool | dict | list) for one in values):
        raise SettingsError(f"{place}: {place.key} = {value!r} is not a valid value of this option.")
    if not action.option_strings:
        # Here an argument has no option before it, so a dash would make it one.
        for text in (text for text in map(str, values) if text.startswith("-")):
            raise SettingsError(
                f"{place}: {place.key} = {text!r} begins with a dash. Options have a line of their own."
            )
        return [str(one) for one in values]
    return [f"{action.option_strings[-1]}={one}" for one in values]


def _table(value: Mapping[str, Any] | Sequence[str]) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {key: str(text) for key, text in value.items()}
    return dict(text.partition("=")[::2] for text in value)


def _check(verb: argparse.ArgumentParser, words: list[str], value: Any, place: _Place) -> None:
    """Parses one option on its own, to name its line in an error."""

    def error(message: str) -> NoReturn:
        raise SettingsError(f"{place}: {place.key} = {value!r}: {message.partition(': ')[2] or message}.")

    verb.error, before = error, verb.error  # type: ignore[method-assign]
    try:
        verb.parse_args(words)
    finally:
        verb.error = before  # type: ignore[method-assign]
