"""The command line: every verb with its options as a request, its example and the function that runs it; `main`.

Imports no model library, so that `--help` is fast. `main` runs one verb and turns errors into a sentence and an exit
code.
"""

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass
from importlib import import_module
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from hrx import __version__
from hrx.api.progress import INTERRUPTED
from hrx.audit.request import (
    MODEL_HELP,
    SOURCE_HELP,
    AuditRequest,
    CalibrateRequest,
    ExplainRequest,
    RevisionRequest,
    ScoreRequest,
    TrainRequest,
    VerifyRequest,
    json_option,
    undecided_option,
)
from hrx.cli.terminal import note, progress
from hrx.errors import DEBUG_VARIABLE, Exit, HrxError, crash_sentence, unknown
from hrx.files import reason, size
from hrx.options import add_options, given, option, positive, read_settings
from hrx.text import clean_lines
from hrx.text import message as one_line

DEBUG_HELP = "show the traceback of an error"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)
LEAST_MEMORY = {"measure": 3 * 2**29, "explain": 3 * 2**29, "revision": 3 * 2**29, "publish": 3 * 2**29, "": 2**29}
"""Bytes of address space, by the module of a verb: torch and the libraries of a model are mapped, not read."""
LEAST_FILES = 64


class TooSmallLimit(HrxError):
    """A limit of the shell under which no verb can work."""

    exit = Exit.INCOMPLETE


def _ledger(help: str = "the ledger that an audit wrote", metavar: str = "LEDGER") -> Any:
    return option(MISSING, help, check=Path, metavar=metavar, positional=True)


def _out(default: str | None, help: str = "", metavar: str = "DIR") -> Any:
    path = None if default is None else Path(default)
    return option(path, help or f"default: {default}", check=Path, metavar=metavar)


def _file(help: str, **more: Any) -> Any:
    return option(None, help, check=Path, metavar="FILE", **more)


@dataclass(frozen=True, kw_only=True)
class AuditCommand(AuditRequest):
    """Audit checkpoints and give a verdict."""

    config: Path | None = _file("TOML file with these options; the command line wins", setting=False)
    dry_run: bool = option(False, "show the plan and its estimated cost, and stop", setting=False)
    recheck: int | None = option(
        None, "measure N stored runs again, compare, and stop", check=positive, metavar="N", setting=False
    )
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class ListModels:
    """List known models and what is installed."""

    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class ListDatasets:
    """List known datasets and what is on disk, or the datasets of a source."""

    data: str | None = option(None, f"{SOURCE_HELP} (default: all known datasets)", metavar="SOURCE")
    scores: bool = option(False, "score naive forecasts on GIFT-Eval's official windows")
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class Download:
    """Download GIFT-Eval, or check the files on disk against its manifest."""

    action: Literal["fetch", "check"] = option(
        MISSING, "fetch: download and verify; check: only verify", positional=True
    )
    names: tuple[str, ...] = option(
        (), "us_births, us_births/D, … (default: every dataset)", metavar="NAME", positional=True
    )
    data: Path | None = option(None, "default: $GIFT_EVAL, else ~/.cache/hrx/gift-eval", check=Path, metavar="ROOT")
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write the page of a ledger, which opens in a browser without a network."""

    ledger: Path = _ledger()
    out: Path = _out("hrx-report")
    contract: tuple[Path, ...] = option(
        (), "add the contract of a model, from `hrx verify --contract --json`", check=Path, metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Make the paper's tables from a ledger."""

    ledger: Path = _ledger()
    table: tuple[str, ...] = option(
        (),
        "models, models_full, metrics, axes, domains, datasets, estimators, estimators_plain, cost, seeds, rank, "
        "truncation, distance, channels, covariates or accuracy; of trained models backbones, benchmarks, "
        "trained_axes, trained_domains or trained_estimators; may be repeated (default: all that the ledger can fill)",
        metavar="NAME",
    )
    format: Literal["text", "md", "tex", "csv", "html", "json"] = option(
        "text", "text, md, tex, csv, html, json (default: text)", metavar="FORM"
    )
    against: Literal["published"] | None = option(None, "show the published cells beside the measured ones")
    estimator: str = option("input_gradient", "estimator of the runs (default: input_gradient)", metavar="NAME")
    pool_seeds: bool = option(False, "count every seed as a run, as the published n does")
    out: Path | None = _out(None, "a file, or a directory for one file per table", "FILE")


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Compare two checkpoints on the same runs, with gates; or two contracts, A.json and B.json."""

    base: Path = _ledger("ledger or contract of the base", "BASE")
    new: Path | None = option(
        None, "ledger of the new checkpoint (default: BASE)", check=Path, metavar="NEW", positional=True
    )
    base_model: str | None = option(None, "which model of BASE, where it holds several", metavar="NAME")
    new_model: str | None = option(None, "which model of NEW", metavar="NAME")
    gate: tuple[str, ...] = option((), 'such as "g_margin >= -0.02"; repeatable', metavar="EXPR")
    strict: bool = option(False, "judge gates by the estimate, not by the interval")
    undecided: Literal["pass", "fail"] | None = undecided_option()
    informational: bool = option(False, "exit 0 even if a gate fails")
    min_pairs: int = option(
        5, "fewer sources, or series of the only one: exit 4 (default: 5)", check=positive, metavar="N"
    )
    summary: Path | None = _file("Markdown for a step summary or a comment")
    junit: Path | None = _file("JUnit XML, one test case per gate")
    page: Path | None = _file("a page with the windows that changed most")
    json: Path | None = _file(
        "JSON to FILE, or to standard output instead of the text; give it after the ledgers", const="-"
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """Evaluate a model on GIFT-Eval's official windows, as its leaderboard does."""

    model: str = option(MISSING, MODEL_HELP, metavar="MODEL", positional=True)
    data: str = option(
        "gift-eval", "gift-eval[:NAME,…] or a directory in its format (default: gift-eval)", metavar="SOURCE"
    )
    out: Path = option(
        Path("evaluation.json"),
        "where the scores go; the same command goes on where it ended (default: evaluation.json)",
        check=Path,
        metavar="FILE",
    )
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class PublishRequest:
    """Write what a model's page and a leaderboard show: card, scores, badge, submission. Nothing is uploaded."""

    ledger: Path = _ledger()
    out: Path = _out("hrx-publish")
    model: str | None = option(None, "which model of the ledger, where it holds several", metavar="NAME")
    link: str = option("", "where the records are: a URL that card, badge and results name", metavar="URL")
    contract: Path | None = _file("contract to include, of hrx verify --contract --json")
    evaluation: Path | None = _file("scores of hrx evaluate, for the leaderboard's two files")
    leakage: Literal["yes", "no"] | None = option(
        None, "whether the model saw GIFT-Eval's test data, which a submission declares"
    )
    model_type: Literal["statistical", "deep-learning", "agentic", "pretrained", "fine-tuned", "zero-shot"] = option(
        "zero-shot", "what a submission calls the model (default: zero-shot)"
    )
    org: str = option("", "organisation of a submission (default: of the hub id)", metavar="NAME")
    code: str = option("", "URL of the code that repeats a submission", metavar="URL")


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Merge ledgers, refusing contradictions."""

    ledgers: tuple[Path, ...] = _ledger("ledgers to read")
    into: Path = option(MISSING, "the ledger to add to; created if it does not exist", check=Path, metavar="LEDGER")


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the records of a ledger as Parquet or CSV."""

    ledger: Path = _ledger()
    format: Literal["parquet", "csv"] = option("parquet", "default: parquet")
    out: Path | None = _out(None, "default: beside the ledger", "FILE")


@dataclass(frozen=True, kw_only=True)
class Check:
    """Verify that ledgers are as they were written, row by row."""

    ledgers: tuple[Path, ...] = _ledger("ledgers to verify; nothing is changed")
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class NewAdapter:
    """Write the skeleton of a model family: an adapter and its test."""

    name: str = option(MISSING, "name of the family, such as my-model", metavar="NAME", positional=True)


class Verb(NamedTuple):
    """One verb; the docstring of its request is its summary."""

    request: type
    command: str
    """`module:function` in this package that takes the request and returns an exit code."""
    example: str


VERBS = {
    "audit": Verb(AuditCommand, "measure:audit", "hrx audit bolt-mini --settings 96x24"),
    "verify": Verb(VerifyRequest, "measure:verify", "hrx verify bolt-mini --settings 96x24"),
    "models": Verb(ListModels, "listing:models", "hrx models"),
    "datasets": Verb(ListDatasets, "listing:datasets", "hrx datasets --data sample"),
    "data": Verb(Download, "listing:data", "hrx data check us_births/D"),
    "report": Verb(Report, "ledgers:report", "hrx report hrx-audit/ledger.db --out hrx-report"),
    "explain": Verb(
        ExplainRequest, "explain:explain", "hrx explain bolt-mini --series sample:elnino/M --lookback 96 --horizon 24"
    ),
    "revision": Verb(
        RevisionRequest,
        "revision:revision",
        "hrx revision bolt-mini --series sample:elnino/M --horizon 24 --from 2010-06 --to 2010-12",
    ),
    "score": Verb(
        ScoreRequest,
        "explain:score",
        "hrx score bolt-mini --matrix explained.csv --series sample:elnino/M --horizon 24",
    ),
    "tables": Verb(Tables, "ledgers:tables", "hrx tables hrx-audit/ledger.db --against published"),
    "compare": Verb(
        CompareRequest,
        "ledgers:compare",
        'hrx compare hrx-audit/ledger.db hrx-audit/ledger.db --gate "g_margin >= -0.02"',
    ),
    "evaluate": Verb(EvaluateRequest, "publish:evaluate", "hrx evaluate bolt-mini --data gift-eval:us_births"),
    "publish": Verb(PublishRequest, "publish:publish", "hrx publish hrx-audit/ledger.db --out hrx-publish"),
    "merge": Verb(Merge, "ledgers:merge", "hrx merge laptop.db cluster.db --into all.db"),
    "export": Verb(Export, "ledgers:export", "hrx export hrx-audit/ledger.db --format csv"),
    "check": Verb(Check, "ledgers:check", "hrx check hrx-audit/ledger.db"),
    "calibrate": Verb(CalibrateRequest, "measure:calibrate", "hrx calibrate --backbones linear"),
    "train": Verb(
        TrainRequest, "measure:train", "hrx train Linear CNN --data sample:sf_temps --settings 96x24 --seeds 1"
    ),
    "new-adapter": Verb(NewAdapter, "new_adapter:new_adapter", "hrx new-adapter my-model"),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        if verb := re.match(r"argument VERB: invalid choice: '(.*?)'", message):
            message = unknown("verb", verb[1], VERBS).rstrip(".")
        self.exit(Exit.WRONG_REQUEST, f"{one_line(f'{self.prog}: {message}')}. See {self.prog} --help.\n")


def parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    root = Parser(prog="hrx", description="What does a forecasting checkpoint read for each step?")
    root.add_argument("--version", action="version", version=f"hrx {__version__}")
    root.add_argument("--debug", action="store_true", help=DEBUG_HELP)
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (request, _, example) in VERBS.items():
        summary = (request.__doc__ or "").partition("\n")[0]
        short = f"{summary[:1].lower()}{summary[1:]}".rstrip(".")
        one = verbs.add_parser(name, help=short, description=summary, epilog=f"Example: {example}")
        # Without a default, which would overwrite a --debug before the verb.
        one.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG_HELP)
        add_options(one, request)
    return root


def parse_request(options: argparse.Namespace | Sequence[str]) -> Any:
    """Return the request of a command line, parsed or as words, completed by its settings file if one is given."""
    options = options if isinstance(options, argparse.Namespace) else parser().parse_args(options)
    request = VERBS[options.verb].request
    values = given(options, request)
    path = values.get("config")
    return request(**(read_settings(request, path) if path else {}) | values)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb, turn errors into a sentence, and return the exit code."""
    unseen = _open_streams() if arguments is None else StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a question mark for a character that the terminal cannot show
    options = parser().parse_args(arguments)
    # hrx shows its own progress; the libraries' progress bars would overwrite it.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TSFM_PYTHON_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    debugging = options.debug and DEBUG_VARIABLE not in os.environ
    if debugging:
        os.environ[DEBUG_VARIABLE] = "1"  # keeps the text of libraries in stored reasons, in worker processes too
    try:
        request = parse_request(options)
        module, function = VERBS[options.verb].command.split(":")
        _check_limits(module)
        with progress.running(f"hrx {options.verb}: importing libraries"):
            code = int(getattr(import_module(f"hrx.cli.{module}"), function)(request))
        sys.stdout.flush()  # a full disk is noticed here, not after the exit code is decided
        if unseen.getvalue():
            note(f"hrx {options.verb}: standard output is closed, so the result is not shown.")
            return code or Exit.INCOMPLETE
        return code
    except HrxError as error:
        return _end(options, error, f"hrx {options.verb}: {error}", error.exit)
    except BrokenPipeError:  # the reader of a pipe closed it: not an error
        _discard_output()
        return Exit.DONE
    except KeyboardInterrupt:
        print(f"hrx {options.verb}: stopped. Repeat the command to continue.", file=sys.stderr)
        return INTERRUPTED
    except (Exception, SystemExit) as error:  # a model or library that calls sys.exit cannot choose the exit code
        if text := _environment(error):
            return _end(options, error, f"hrx {options.verb}: {text}", Exit.INCOMPLETE)
        return _end(options, error, crash_sentence(options.verb, error, write=not options.debug), Exit.CRASHED)
    finally:
        if debugging:
            del os.environ[DEBUG_VARIABLE]


def _open_streams() -> StringIO:
    """Give closed standard streams their numbers back, before a file gets one of them.

    What standard error cannot take is dropped. Return what takes the place of a closed standard output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    unseen = StringIO()
    sys.stdout = sys.stdout or unseen
    raw = sys.stderr.buffer if sys.stderr else open(2, "wb", closefd=False)  # noqa: SIM115 (it stays open)
    sys.stderr = _Lenient(raw, encoding=getattr(sys.stderr, "encoding", "utf-8"), errors="replace", line_buffering=True)
    return unseen


class _Lenient(TextIOWrapper):
    """Standard error that drops what it cannot write: there is nowhere to say so."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            super().flush()


def _check_limits(module: str) -> None:
    """Refuse limits of the shell under which libraries end the process: memory and open files."""
    with suppress(ImportError):  # not on Windows
        import resource

        memory, files = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
        least = LEAST_MEMORY.get(module, LEAST_MEMORY[""])
        if memory != resource.RLIM_INFINITY and memory < least:
            text = f"this process may use {size(memory)} of address space and needs {size(least)}"
            raise TooSmallLimit(f"{text}. Raise the limit, as in ulimit -v unlimited.")
        if files != resource.RLIM_INFINITY and files < LEAST_FILES:
            text = f"this process may open {files} files and needs {LEAST_FILES}"
            raise TooSmallLimit(f"{text}. Raise the limit, as in ulimit -n 1024.")


def _environment(error: BaseException) -> str:
    """Return the sentence for what the machine did not allow; empty for other errors."""
    number = error.errno if isinstance(error, OSError) else None
    unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or unmapped:
        return "the memory of this machine is used up. Ask for fewer windows or workers, or lower --memory."
    if number in (errno.EMFILE, errno.ENFILE):
        return "too many files are open. Raise the limit, as in ulimit -n 1024, or ask for fewer workers."
    if number not in _UNWRITABLE:
        return ""
    assert isinstance(error, OSError)
    if error.filename is None:
        _discard_output()
    return f"{error.filename or 'standard output'} cannot be written: {reason(error)}. Choose a writable place."


def _end(options: argparse.Namespace, error: BaseException, sentence: str, code: Exit) -> int:
    """Print the sentence, or with `--debug` the traceback, and return the exit code."""
    if options.debug:
        sys.stderr.write(clean_lines("".join(traceback.format_exception(error))))
    else:
        print(one_line(sentence), file=sys.stderr)
    return code


def _discard_output() -> None:
    """What is still buffered goes nowhere; otherwise Python fails again when it flushes at its end."""
    with suppress(OSError, ValueError):  # standard output may be closed, or not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
