"""Families whose libraries exclude each other: their share of an audit runs in another interpreter.

That interpreter is started as `PATH -m hrx.cli audit …` with the same settings and the same ledger; which runs it has
to do it is asked first, since only it knows the versions that decide their keys.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hrx.adapters import EMBEDDED, families, short_names
from hrx.adapters.checkpoint import Checkpoint
from hrx.audit.runner.forecasted_plan import Outlook
from hrx.cli.config import as_arguments
from hrx.cli.signals import Stop
from hrx.errors import Exit, HrxError, unknown

MODULE = "module"
"""`module:FILE.py:FACTORY` is of no family, and can be isolated by this name."""


class Shares(NamedTuple):
    """Who audits which models."""

    here: list[str]
    elsewhere: dict[Path, list[str]]
    """By interpreter."""


def divide(models: Sequence[str], python: Sequence[str]) -> Shares:
    """The models of this interpreter, and those of others as `FAMILY=PATH` sends them."""
    interpreters = dict(_parse(entry) for entry in python)
    here: list[str] = []
    elsewhere: dict[Path, list[str]] = {}
    for name in models or [EMBEDDED]:
        interpreter = interpreters.get(family_of(name))
        (here if interpreter is None else elsewhere.setdefault(interpreter, [])).append(name)
    return Shares(here, elsewhere)


def _parse(entry: str) -> tuple[str, Path]:
    family, equals, text = entry.partition("=")
    known = [*families(), MODULE]
    if not equals or not text:
        raise HrxError(f"--python {entry} is not FAMILY=PATH. For example --python timer=.venv-timer/bin/python.")
    if family not in known:
        raise HrxError(f"--python {entry}: {unknown('family', family, known)}")
    path = Path(text).expanduser()
    if not path.is_file():
        raise HrxError(f"--python {entry}: {path} is not a file. Give the python of an environment that has hrx.")
    return family, path


def family_of(name: str) -> str:
    """The family of a model by its name or its files, whether or not its library is installed here."""
    prefix, colon, rest = name.partition(":")
    if colon and rest and (prefix in families() or prefix == MODULE):
        return prefix
    if name == EMBEDDED:
        return "chronos-bolt"
    if released := short_names().get(name.partition("@")[0]):
        return released.family
    path = Path(name).expanduser()
    if name and path.is_dir():
        checkpoint = Checkpoint(path.resolve(), path.name, path.name)
        return next((family.name for family in families().values() if family.claims(checkpoint)), "")
    return ""  # a hub id that is not here yet: audited by this interpreter, unless written FAMILY:ID


class Elsewhere:
    """Another interpreter with its share of an audit."""

    def __init__(self, interpreter: Path, models: Sequence[str], settings: Mapping[str, Any], ledger: Path):
        self._interpreter, self._models = interpreter, list(models)
        # Gates are for the whole, and so for whoever sees all shares.
        mine = {name: value for name, value in settings.items() if name not in ("python", "gate")}
        self._settings = mine | {"models": self._models, "ledger": str(ledger), "json": True}

    def outlook(self) -> Outlook:
        """What it will have to do."""
        process = self._start("--dry-run", stdout=subprocess.PIPE)
        told, _ = process.communicate()
        self._refuse(process.returncode)
        return Outlook.from_json(json.loads(told)["plan"])

    def audit(self, stop: Stop, *more: str) -> int:
        """Lets it work, with its progress on this terminal. Returns its exit code."""
        process = self._start(*more, stdout=subprocess.DEVNULL)
        stop.listeners.append(process.send_signal)
        try:
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            stop.listeners.remove(process.send_signal)
        self._refuse(process.returncode)
        return process.returncode

    def _start(self, *more: str, stdout: int) -> subprocess.Popen[str]:
        # In a session of its own, so that a signal from the keyboard reaches it once, through this process.
        command = [str(self._interpreter), "-m", "hrx.cli", "audit", *as_arguments(self._settings), *more]
        return subprocess.Popen(command, stdout=stdout, text=True, start_new_session=True)

    def _refuse(self, code: int) -> None:
        if code in (Exit.WRONG_REQUEST, 1):  # 1: hrx itself is missing there, as python says above
            raise HrxError(
                f"{self._interpreter} could not audit {', '.join(self._models)}: its own words are above. Check that "
                "hrx and the library of the family are installed there."
            )
