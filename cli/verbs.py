"""Every verb: its summary, its runnable example, its options as a request, and the function that runs it.

Imports no model library, so that `--help` is fast.
"""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from hrx import __version__
from hrx.audit.request import (
    SOURCE_HELP,
    AuditRequest,
    CalibrateRequest,
    ExplainRequest,
    TrainRequest,
    VerifyRequest,
    json_option,
    undecided_option,
)
from hrx.errors import Exit
from hrx.options import add_options, given, option, positive, read_settings
from hrx.text import message as one_line

DEBUG_HELP = "show the traceback of an error"


def _ledger() -> Any:
    return option(MISSING, "the ledger that an audit wrote", check=Path, metavar="LEDGER", positional=True)


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


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Make the paper's tables from a ledger."""

    ledger: Path = _ledger()
    table: tuple[str, ...] = option(
        (),
        "models, models_full, metrics, axes, domains, datasets, estimators, estimators_plain, cost, seeds, rank, "
        "truncation, distance, channels or accuracy; of trained models backbones, benchmarks, trained_axes, "
        "trained_domains or trained_estimators; may be repeated (default: all that the ledger can fill)",
        metavar="NAME",
    )
    format: Literal["text", "md", "tex", "csv", "html", "json"] = option(
        "text",
        "text, md, tex, csv, html, json (default: text)",
        metavar="FORM",
    )
    against: Literal["published"] | None = option(None, "show the published cells beside the measured ones")
    estimator: str = option("input_gradient", "estimator of the runs (default: input_gradient)", metavar="NAME")
    pool_seeds: bool = option(False, "count every seed as a run, as the published n does")
    out: Path | None = _out(None, "a file, or a directory for one file per table", "FILE")


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Compare two checkpoints on the same runs, with gates."""

    base: Path = option(MISSING, "ledger of the base checkpoint", check=Path, metavar="BASE", positional=True)
    new: Path | None = option(
        None, "ledger of the new checkpoint (default: BASE)", check=Path, metavar="NEW", positional=True
    )
    base_model: str | None = option(None, "which model of BASE, where it holds several", metavar="NAME")
    new_model: str | None = option(None, "which model of NEW", metavar="NAME")
    gate: tuple[str, ...] = option((), 'such as "g_margin >= -0.02"; repeatable', metavar="EXPR")
    strict: bool = option(False, "judge gates by the estimate, not by the interval")
    undecided: Literal["pass", "fail"] | None = undecided_option()
    informational: bool = option(False, "exit 0 even if a gate fails")
    min_pairs: int = option(10, "fewer pairs: exit 4 (default: 10)", check=positive, metavar="N")
    summary: Path | None = _file("Markdown for a step summary or a comment")
    junit: Path | None = _file("JUnit XML, one test case per gate")
    json: Path | None = _file(
        "JSON to FILE, or to standard output instead of the text; give it after the ledgers", const="-"
    )


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Merge ledgers, refusing contradictions."""

    ledgers: tuple[Path, ...] = option(MISSING, "ledgers to read", check=Path, metavar="LEDGER", positional=True)
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

    ledgers: tuple[Path, ...] = option(
        MISSING, "ledgers to verify; nothing is changed", check=Path, metavar="LEDGER", positional=True
    )
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

    @property
    def summary(self) -> str:
        return (self.request.__doc__ or "").partition("\n")[0].rstrip(".")


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
    "tables": Verb(Tables, "ledgers:tables", "hrx tables hrx-audit/ledger.db --against published"),
    "compare": Verb(
        CompareRequest,
        "ledgers:compare",
        'hrx compare hrx-audit/ledger.db hrx-audit/ledger.db --gate "g_margin >= -0.02"',
    ),
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
        self.exit(Exit.WRONG_REQUEST, f"{one_line(f'{self.prog}: {message}')}. See {self.prog} --help.\n")


def parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    summary = "What does a forecasting checkpoint read for each step?"
    root: argparse.ArgumentParser = Parser(prog="hrx", description=summary)
    root.add_argument("--version", action="version", version=f"hrx {__version__}")
    root.add_argument("--debug", action="store_true", help=DEBUG_HELP)
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        summary, example = f"{verb.summary[:1].lower()}{verb.summary[1:]}", f"Example: {verb.example}"
        one = verbs.add_parser(name, help=summary, description=f"{verb.summary}.", epilog=example)
        # Without a default, which would overwrite a --debug before the verb.
        one.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG_HELP)
        add_options(one, verb.request)
    return root


def request_of(options: argparse.Namespace) -> Any:
    """Return the request of a parsed command line, completed by its settings file if one is given."""
    request = VERBS[options.verb].request
    values = given(options, request)
    path = values.get("config")
    return request(**(read_settings(request, path) if path else {}) | values)


def parse_request(words: Sequence[str]) -> Any:
    """Return the request of a command line."""
    return request_of(parser().parse_args(words))
