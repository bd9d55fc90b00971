"""Reference pages that are written from the code when the site is built, so that each fact stands in one place."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from inspect import getsource
from pathlib import Path
from typing import Any

from properdocs.structure.files import File, Files

from hrx.adapters.families import families
from hrx.adapters.inputs import Inputs, Outputs
from hrx.audit.attribution import find_estimator
from hrx.audit.attribution.libraries import LIBRARIES
from hrx.audit.protocol import Protocol
from hrx.cli.main import parser
from hrx.records.record import COLUMNS

ROOT = Path(__file__).parents[1]
_PLACE = re.compile(r"<!-- (settings|code): (\S+) -->")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages to those that are written by hand."""
    for name, write in PAGES.items():
        files.append(File.generated(config, name, content=write()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill the places: `<!-- settings: ESTIMATOR -->` (or one of the tables below) and `<!-- code: FILE -->`."""
    return fill(markdown)


def fill(markdown: str) -> str:
    """Return a page with the settings of an estimator, of all classes of the libraries, or the text of a file."""

    def replaced(place: re.Match[str]) -> str:
        kind, name = place.groups()
        if kind == "code":
            return f"```python\n{(ROOT / name).read_text(encoding='utf-8')}```"
        tables = {
            "classes": library_settings,
            "meanings": library_meanings,
            "refused": library_refusals,
            "families": family_inputs,
        }
        return "\n".join(tables[name]() if name in tables else estimator_settings(name))

    return _PLACE.sub(replaced, markdown)


def estimator_settings(name: str) -> list[str]:
    """Return a table with every setting of an estimator, its default, meaning and source."""
    rows = [
        (f"`{one.name}`", str(one.default), one.metadata["meaning"], one.metadata["source"])
        for one in fields(find_estimator(name).settings)
    ]
    return _table(("setting", "default", "meaning", "source"), rows)


def library_settings() -> list[str]:
    """Return a table with every class of captum and time_interpret that is an estimator."""
    rows = []
    for prefix, library in LIBRARIES.items():
        for name, known in library.classes.items():
            settings = [f"`{one.name}` {one.default}" for one in fields(known.settings)]
            rows.append((f"`{prefix}:{name}`", ", ".join(settings) or "none"))
    return _table(("name", "settings and their defaults"), rows)


def library_meanings() -> list[str]:
    """Return a table with what each setting of those classes means."""
    known = [
        one for library in LIBRARIES.values() for used in library.classes.values() for one in fields(used.settings)
    ]
    meanings: dict[str, dict[str, None]] = {}
    for one in known:
        meanings.setdefault(one.name, {})[one.metadata["meaning"]] = None
    return _table(("setting", "meaning"), ((f"`{name}`", "; ".join(found)) for name, found in meanings.items()))


def library_refusals() -> list[str]:
    """Return a table with the classes of both libraries that cannot be used, and why each cannot."""
    needs: dict[str, list[str]] = {}
    for library in LIBRARIES.values():
        for need, names in library.refused.items():
            needs.setdefault(need, []).extend(f"`{name}`" for name in names.split())
    return _table(("class", "cannot be used, because it"), ((", ".join(names), need) for need, names in needs.items()))


def family_inputs() -> list[str]:
    """Return a table of what each family reads and gives beyond one series and its point forecast."""
    rows = [
        (name, str(family.inputs), family.inputs.past.missing, str(family.outputs))
        for name, family in families().items()
        if (family.inputs, family.outputs) != (Inputs(), Outputs())
    ]
    return _table(("family", "reads", "missing covariates", "gives"), rows)


def command_line() -> str:
    """Every verb with its options, from the parser itself."""
    page = ["# Command line", "", "`hrx VERB --help` shows the same on a terminal.", ""]
    root = parser()
    (verbs,) = (action for action in root._actions if isinstance(action, argparse._SubParsersAction))
    for choice in verbs._choices_actions:
        page += _verb(f"hrx {choice.dest}", verbs.choices[choice.dest], choice.help or "")
    return "\n".join(page)


def _verb(name: str, verb: argparse.ArgumentParser, summary: str) -> list[str]:
    page = [f"## {name}", "", f"{summary[:1].upper()}{summary[1:]}. {verb.epilog or ''}", ""]
    nested = [action for action in verb._actions if isinstance(action, argparse._SubParsersAction)]
    rows = [
        (", ".join(f"`{o}`" for o in action.option_strings) or f"`{action.metavar or action.dest}`", _meaning(action))
        for action in verb._actions
        if action not in nested and action.dest != "help"
    ]
    page += [*_table(("option", "meaning"), rows), ""] if rows else []
    for action in nested:
        for choice in action._choices_actions:
            page += _verb(f"{name} {choice.dest}", action.choices[choice.dest], choice.help or "")
    return page


def _meaning(action: argparse.Action) -> str:
    taken = f"`{action.metavar}` " if action.option_strings and action.nargs != 0 and action.metavar else ""
    return taken + (action.help or "").replace("%%", "%")


def settings() -> str:
    """Every field of `Protocol`, with the sentence that stands below it in the source."""
    page = ["# Settings", "", "Every field of `hrx.audit.Protocol`. All are stored with each record.", ""]
    source = getsource(Protocol)
    rows = []
    for field in fields(Protocol):
        after = source.partition(f"    {field.name}: ")[2].partition("\n")[2]
        meaning = after.split('"""')[1] if after.lstrip().startswith('"""') else ""
        rows.append((f"`{field.name}`", f"`{field.default!r}`", " ".join(meaning.split())))
    return "\n".join([*page, *_table(("setting", "default", "meaning"), rows)])


def record() -> str:
    """Every column of a ledger."""
    page = ["# Record", "", "One row per run in the table `runs` of a ledger, which is an SQLite file.", ""]
    rows = [(f"`{column.name}`", column.kind, column.meaning) for column in COLUMNS]
    return "\n".join([*page, *_table(("column", "type", "meaning"), rows)])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines]


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": command_line,
    "settings.md": settings,
    "record.md": record,
}
