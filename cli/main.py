"""Verbs, their options, and what an error becomes: a sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from hrx import __version__
from hrx.errors import Exit, HrxError

INTERRUPTED = 130
Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb and returns its exit code."""
    options = parser().parse_args(arguments)
    # hrx shows its own progress: the libraries' bars would be drawn across it.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TSFM_PYTHON_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        return cast(Command, options.command)(options)
    except HrxError as error:
        print(f"hrx {options.verb}: {error}", file=sys.stderr)
        return Exit.WRONG_REQUEST
    except BrokenPipeError:  # the reader of a pipe left: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except KeyboardInterrupt:
        print(f"hrx {options.verb}: stopped. Repeat the command to go on where it stopped.", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(prog="hrx", description="What does a forecasting checkpoint read for each step?")
    root.add_argument("--version", action="version", version=f"hrx {__version__}")
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")

    audit = _verb(
        verbs, "audit", "audit checkpoints and give a verdict", "hrx audit bolt-mini --settings 96x24", _audit
    )
    audit.add_argument("models", nargs="*", metavar="MODEL", help=f"{MODEL_HELP} (default: bolt-mini)")
    _data(audit)
    _settings(audit, "quick")
    audit.add_argument("--series", type=_positive, default=3, metavar="N", help="series per dataset (default: 3)")
    audit.add_argument("--windows", type=_positive, default=4, metavar="N", help="windows per run (default: 4)")
    audit.add_argument("--seeds", type=_positive, default=2, metavar="N", help="window shifts per series (default: 2)")
    audit.add_argument("--draws", type=_positive, default=4, metavar="N", help="random replacements (default: 4)")
    audit.add_argument("--precision", type=float, metavar="ERROR", help="draw until the gains' error is below this")
    audit.add_argument("--out", type=Path, default=Path("hrx-audit"), metavar="DIR", help="default: hrx-audit")
    audit.add_argument("--ledger", type=Path, metavar="FILE", help="default: DIR/ledger.db")
    audit.add_argument("--memory", type=float, default=2.0, metavar="GIB", help="memory of a batch (default: 2)")
    _json(audit)

    verify = _verb(verbs, "verify", "show the admission checks", "hrx verify bolt-mini --settings 96x24", _verify)
    verify.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    _data(verify)
    _settings(verify, "star")
    _json(verify)

    models = _verb(verbs, "models", "list the models that are known and installed", "hrx models", _models)
    _json(models)
    datasets = _verb(verbs, "datasets", "list the datasets of a source", "hrx datasets --data sample", _datasets)
    _data(datasets)
    _json(datasets)
    return root


MODEL_HELP = "bolt-mini, a short name, a hub id, a directory, FAMILY:PATH or module:FILE.py:FACTORY"


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    example: str,
    command: Command,
) -> argparse.ArgumentParser:
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


# The verbs are imported when they are called: --help must not wait for torch.
def _audit(options: argparse.Namespace) -> int:
    from hrx.cli.audit import audit

    return audit(options)


def _verify(options: argparse.Namespace) -> int:
    from hrx.cli.verify import verify

    return verify(options)


def _models(options: argparse.Namespace) -> int:
    from hrx.cli.listing import models

    return models(options)


def _datasets(options: argparse.Namespace) -> int:
    from hrx.cli.listing import datasets

    return datasets(options)
