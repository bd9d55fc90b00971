"""The command line: every verb with its options. Imports no model library: `--help` must not wait for torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from hrx import __version__

Verbs = argparse._SubParsersAction
MODEL_HELP = "bolt-mini, a short name, a hub id, a directory, FAMILY:PATH or module:FILE.py:FACTORY"


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(prog="hrx", description="What does a forecasting checkpoint read for each step?")
    root.add_argument("--version", action="version", version=f"hrx {__version__}")
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")
    for declare in (_audit, _verify, _models, _datasets):
        declare(verbs)
    return root


def _audit(verbs: Verbs[argparse.ArgumentParser]) -> None:
    verb = _verb(
        verbs,
        "audit",
        "audit checkpoints and give a verdict",
        example="hrx audit bolt-mini --settings 96x24",
        command=("hrx.cli.audit", "audit"),
    )
    verb.add_argument("models", nargs="*", metavar="MODEL", help=f"{MODEL_HELP} (default: bolt-mini)")
    _data(verb)
    _settings(verb, "quick")
    verb.add_argument("--series", type=_positive, default=3, metavar="N", help="series per dataset (default: 3)")
    verb.add_argument("--windows", type=_positive, default=4, metavar="N", help="windows per run (default: 4)")
    verb.add_argument("--seeds", type=_positive, default=2, metavar="N", help="window shifts per series (default: 2)")
    verb.add_argument("--draws", type=_positive, default=4, metavar="N", help="random replacements (default: 4)")
    verb.add_argument("--precision", type=float, metavar="ERROR", help="draw until the gains' error is below this")
    verb.add_argument("--out", type=Path, default=Path("hrx-audit"), metavar="DIR", help="default: hrx-audit")
    verb.add_argument("--ledger", type=Path, metavar="FILE", help="default: DIR/ledger.db")
    verb.add_argument("--memory", type=float, default=2.0, metavar="GIB", help="memory of a batch (default: 2)")
    _json(verb)


def _verify(verbs: Verbs[argparse.ArgumentParser]) -> None:
    verb = _verb(
        verbs,
        "verify",
        "show the admission checks",
        example="hrx verify bolt-mini --settings 96x24",
        command=("hrx.cli.verify", "verify"),
    )
    verb.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    _data(verb)
    _settings(verb, "star")
    _json(verb)


def _models(verbs: Verbs[argparse.ArgumentParser]) -> None:
    verb = _verb(
        verbs,
        "models",
        "list the models that are known and installed",
        example="hrx models",
        command=("hrx.cli.listing", "models"),
    )
    _json(verb)


def _datasets(verbs: Verbs[argparse.ArgumentParser]) -> None:
    verb = _verb(
        verbs,
        "datasets",
        "list the datasets of a source",
        example="hrx datasets --data sample",
        command=("hrx.cli.listing", "datasets"),
    )
    _data(verb)
    _json(verb)


def _verb(
    verbs: Verbs[argparse.ArgumentParser], name: str, summary: str, *, example: str, command: tuple[str, str]
) -> argparse.ArgumentParser:
    """A verb, with one example that runs as it stands, and the module and function that carry it out."""
    verb = verbs.add_parser(name, help=summary, description=f"{summary.capitalize()}.", epilog=f"Example: {example}")
    verb.set_defaults(command=command)
    return verb


def _data(verb: argparse.ArgumentParser) -> None:
    text = "sample, gift-eval[:NAME,…] or a directory in GIFT-Eval's format (default: sample)"
    verb.add_argument("--data", default="sample", metavar="SOURCE", help=text)


def _settings(verb: argparse.ArgumentParser, default: str) -> None:
    text = f"star, quick, or pairs such as 96x24,512x96 (default: {default})"
    verb.add_argument("--settings", default=default, metavar="LxH,…", help=text)


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print JSON instead of text")


def _positive(text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from 1 to 999999")
    return int(text)
