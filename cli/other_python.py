"""`--python FAMILY=PATH`: runs a family's part of an audit in another interpreter.

For families whose libraries exclude each other. The interpreter runs `hrx audit …` with the same settings
and the same ledger. Its plan is requested first, since only it knows the library versions that decide the keys.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hrx.adapters import EMBEDDED, families, short_names
from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.formats.neuralforecast_directory import FAMILY as NEURALFORECAST
from hrx.adapters.formats.neuralforecast_directory import is_saved_directory
from hrx.adapters.formats.tslib_run import FAMILY as TSLIB
from hrx.audit.runner.cost import PlannedRun
from hrx.cli.config import as_arguments
from hrx.cli.crash import crash_sentence
from hrx.cli.main import main
from hrx.cli.process import Stop
from hrx.cli.verbs import parser
from hrx.errors import Exit, HrxError, unknown
from hrx.files import user_path
from hrx.text import message

MODULE = "module"
"""The family name of `module:FILE.py:FACTORY` in `--python`."""
_PREFIXES = (MODULE, TSLIB)
"""Names of models that begin so are code of the user's, run by any interpreter that has its packages."""
SHORTEST_BUDGET = 0.001
"""Seconds: the command line takes no budget of zero."""

_CHILD = "import sys; from hrx.cli.other_python import run_child; sys.exit(run_child(*sys.argv[1:]))"


class Shares(NamedTuple):
    """The models of each interpreter."""

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
    known = [*families(), *_PREFIXES]
    if not equals or not text:
        raise HrxError(f"--python {entry} is not FAMILY=PATH. For example --python timer=.venv-timer/bin/python.")
    if family not in known:
        raise HrxError(f"--python {entry}: {unknown('family', family, known)}")
    path = user_path(text)
    if not os.path.isfile(path):
        raise HrxError(f"--python {entry}: {path} is not a file. Give the python of an environment that has hrx.")
    return family, path


def family_of(name: str) -> str:
    """The family of a model by its name or its files, whether or not its library is installed here."""
    prefix, colon, rest = name.partition(":")
    if colon and rest and (prefix in families() or prefix in _PREFIXES):
        return prefix
    if name == EMBEDDED:
        return "chronos-bolt"
    if released := short_names().get(name.partition("@")[0]):
        return released.family
    path = user_path(name)
    if name and os.path.isdir(path):
        if is_saved_directory(path):
            return NEURALFORECAST
        checkpoint = Checkpoint(path.resolve(), path.name, path.name)
        return next((family.name for family in families().values() if family.claims(checkpoint)), "")
    return ""  # a hub id that is not on disk: audited by this interpreter, unless written FAMILY:ID


class OtherInterpreter:
    """Another interpreter with its part of an audit."""

    def __init__(self, interpreter: Path, models: Sequence[str], settings: Mapping[str, Any], ledger: Path):
        self._interpreter, self._models = interpreter, list(models)
        # Gates are judged once, over the runs of all interpreters.
        own = {name: value for name, value in settings.items() if name not in ("python", "gate", "undecided")}
        self._arguments = as_arguments(own | {"models": self._models, "ledger": str(ledger), "json": True})

    def plan(self, *, estimate: bool) -> list[PlannedRun]:
        """Its plan; with `estimate`, the cost of each run."""
        process = self._start(["estimate" if estimate else "plan", *self._arguments], stdout=subprocess.PIPE)
        assert process.stdout
        output = process.stdout.read()  # not communicate(), which would close the pipe that keeps it alive
        self._check(process.wait())
        return [PlannedRun(**run) for run in json.loads(output)]

    def audit(self, stop: Stop, *more: str, budget: float | None = None) -> int:
        """Runs its part for at most `budget` seconds, with its progress on this terminal. Returns its exit code."""
        limit = [] if budget is None else [f"--budget={max(budget, SHORTEST_BUDGET):.3f}"]
        process = self._start(["audit", *self._arguments, *limit, *more], stdout=subprocess.DEVNULL)
        stop.listeners.append(process.send_signal)
        try:
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            stop.listeners.remove(process.send_signal)
        # Its plan was read before, so hrx is there, and 1 means that a model failed admission.
        if more or process.returncode != Exit.GATE_FAILED:
            self._check(process.returncode)
        return process.returncode

    def _start(self, arguments: Sequence[str], stdout: int) -> subprocess.Popen[str]:
        # In a session of its own, so that a signal from the keyboard reaches it once, through this process. The pipe
        # closes when this process ends, however that happens.
        command = [str(self._interpreter), "-c", _CHILD, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, text=True, start_new_session=True)

    def _check(self, code: int) -> None:
        if code in (Exit.WRONG_REQUEST, Exit.CRASHED, 1):  # 1: python could not import hrx; its message is above
            raise HrxError(
                f"{self._interpreter} could not audit {', '.join(self._models)}: see its message above. Check that "
                "hrx and the library of the family are installed there."
            )


def run_child(action: str, *arguments: str) -> int:
    """Runs `audit`, or prints the `plan` or cost `estimate` of one, and ends when the process that started it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if action == "audit":
        return main(["audit", *arguments])
    return print_plan(arguments, estimate=action == "estimate")


def _end_with_parent() -> None:
    """Waits until standard input, a pipe from the parent, is closed."""
    while os.read(0, 1024):
        pass
    os._exit(1)  # its workers end with it


def print_plan(arguments: Sequence[str], *, estimate: bool) -> int:
    """Prints the plan of `hrx audit ARGUMENTS` as JSON, for an audit in another interpreter."""
    from hrx.cli.audit import planned_runs
    from hrx.cli.request import understand

    try:
        options = parser().parse_args(["audit", *arguments])
        planned = planned_runs(understand(options), options, estimate=estimate)
        print(json.dumps([run._asdict() for run in planned]))
    except HrxError as error:
        print(message(f"hrx audit: {error}"), file=sys.stderr)
        return Exit.WRONG_REQUEST
    except (Exception, SystemExit) as error:
        print(message(crash_sentence("audit", error)), file=sys.stderr)
        return Exit.CRASHED
    return Exit.DONE
