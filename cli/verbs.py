"""The command line: every verb with its options. Imports no model library, so that `--help` is fast."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import NoReturn

from hrx import __version__
from hrx.errors import Exit
from hrx.text import message as one_line

Verbs = argparse._SubParsersAction
DEBUG_HELP = "show the traceback of an error"
SOURCE_HELP = (
    "sample, gift-eval[:NAME,…], tslib:DIR[:NAME,…], csv:FILE, parquet:FILE, finance:FILE or a directory in "
    "GIFT-Eval's format"
)
MODEL_HELP = (
    "bolt-mini, a short name, a hub id, a directory, FAMILY:PATH, neuralforecast:DIR[:ALIAS], tslib:CHECKOUT:RUN or "
    "module:FILE.py:FACTORY"
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.WRONG_REQUEST, f"{one_line(f'{self.prog}: {message}')}. See {self.prog} --help.\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    summary = "What does a forecasting checkpoint read for each step?"
    root: argparse.ArgumentParser = Parser(prog="hrx", description=summary)
    root.add_argument("--version", action="version", version=f"hrx {__version__}")
    root.add_argument("--debug", action="store_true", help=DEBUG_HELP)
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")
    for declare in (
        _audit,
        _verify,
        _models,
        _datasets,
        _gift_eval_data,
        _report,
        _explain,
        _tables,
        _compare,
        _merge,
        _export,
        _check,
        _calibrate,
        _train,
        _new_adapter,
    ):
        declare(verbs)
    return root


def _audit(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "audit checkpoints and give a verdict"
    verb = _verb(verbs, "audit", summary, "hrx.cli.audit:audit", "hrx audit bolt-mini --settings 96x24")
    verb.add_argument("models", nargs="*", metavar="MODEL", help=f"{MODEL_HELP} (default: bolt-mini)")
    _data(verb)
    _settings(verb, "quick")
    verb.add_argument("--series", type=_positive, default=3, metavar="N", help="series per dataset (default: 3)")
    text = "light: 1 window and 2 draws a run, enough for a verdict; paper: 4 and 4, for single runs (default: light)"
    verb.add_argument("--effort", choices=("light", "paper"), default="light", help=text)
    verb.add_argument("--windows", type=_positive, metavar="N", help="windows per run (default: that of --effort)")
    verb.add_argument("--seeds", type=_positive, default=2, metavar="N", help="window shifts per series (default: 2)")
    text = "random replacements of each window (default: those of --effort)"
    verb.add_argument("--draws", type=_positive, metavar="N", help=text)
    verb.add_argument("--precision", type=float, metavar="ERROR", help="draw until the gains' error is below this")
    _stops(verb)
    _estimator(verb)
    verb.add_argument("--out", type=Path, default=Path("hrx-audit"), metavar="DIR", help="default: hrx-audit")
    verb.add_argument("--ledger", type=Path, metavar="FILE", help="default: DIR/ledger.db")
    verb.add_argument("--memory", type=float, default=2.0, metavar="GIB", help="memory for batches (default: 2)")
    verb.add_argument("--sweeps", default="", metavar="NAME,…", help="also score: truncation, distance, context")
    _context_bound(verb)
    _merge_adapter(verb)
    text = "audit items of several variates on the time axis and on the channel axis"
    verb.add_argument("--channels", action="store_true", help=text)
    text = 'a bound on each model\'s own figure, such as "g_margin >= 0"; exit code 1 if it fails; may be repeated'
    verb.add_argument("--gate", action="append", default=[], metavar="EXPR", help=text)
    _undecided(verb)
    _device(verb)
    _engine(verb, "run, admission or load")
    text = "audit the models of a family with another python; may be repeated"
    verb.add_argument("--python", action="append", default=[], metavar="FAMILY=PATH", help=text)
    verb.add_argument("--config", type=Path, metavar="FILE", help="TOML file with these options; the command line wins")
    verb.add_argument("--rank-only", action="store_true", help="compute only the rank of the matrices")
    verb.add_argument("--dry-run", action="store_true", help="show the plan and its estimated cost, and stop")
    verb.add_argument("--recheck", type=_positive, metavar="N", help="measure N stored runs again, compare, and stop")
    _json(verb)


def _stops(verb: argparse.ArgumentParser) -> None:
    """Options that end an audit before its plan is complete."""
    text = "start no run after this time, such as 90s, 10m or 2h, finish those under way, and report what is stored; "
    text += "the same command resumes"
    verb.add_argument("--budget", type=_budget, metavar="TIME", help=text)
    text = "decided: measure in random order, and stop a model when the sign of g_margin over its plan is decided"
    verb.add_argument("--until", choices=("decided",), help=text)


def _context_bound(verb: argparse.ArgumentParser) -> None:
    text = "largest change, as a share of the forecasts' variance, for the needed context (default: 0.01)"
    verb.add_argument("--context-bound", type=_share, metavar="SHARE", help=text)


def _merge_adapter(verb: argparse.ArgumentParser) -> None:
    text = "merge a LoRA directory into its base model, with peft, and write the result to DIRECTORY/merged"
    verb.add_argument("--merge-adapter", action="store_true", help=text)


def _undecided(verb: argparse.ArgumentParser) -> None:
    text = "what undecided gates, whose interval contains the bound, count as (default: exit code 4)"
    verb.add_argument("--undecided", choices=("pass", "fail"), help=text)


def _estimator(verb: argparse.ArgumentParser) -> None:
    """Options of the estimator."""
    text = "estimator of the matrix: winit, captum:GradientShap, FILE.py:FUNCTION, … (default: input_gradient)"
    verb.add_argument("--estimator", default="input_gradient", metavar="NAME", help=text)
    text = "a setting of the estimator, such as points=64; may be repeated"
    verb.add_argument("--estimator-setting", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "one row per step, or one for the whole forecast, as published (default: step)"
    verb.add_argument("--axis", choices=("step", "whole"), default="step", help=text)


def _device(verb: argparse.ArgumentParser) -> None:
    text = "cpu, cuda, mps or auto, which takes a GPU if there is one (default: cpu)"
    verb.add_argument("--device", default="cpu", metavar="NAME", help=text)


def _engine(verb: argparse.ArgumentParser, tasks: str) -> None:
    """Options of the executors; `tasks` is what one of them runs."""
    text = "worker processes (default: 1; with ray: one per CPU); 0 runs the models in this process, unprotected"
    verb.add_argument("--workers", type=_count, metavar="N", help=text)
    text = f"longest time of one {tasks}, such as 90s, 30m or 4h; 0: no limit (default: 2h)"
    verb.add_argument("--timeout", type=_seconds, default=7200.0, metavar="TIME", help=text)
    verb.add_argument("--engine", choices=("local", "ray"), default="local", help="default: local")
    text = "address of the Ray cluster (default: auto, a cluster on this machine); local starts one"
    verb.add_argument("--address", default="auto", metavar="ADDRESS", help=text)
    verb.add_argument("--gpus", type=_number, default=0.0, metavar="N", help="GPUs of each Ray worker (default: 0)")


def _verify(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "run the admission checks only"
    verb = _verb(verbs, "verify", summary, "hrx.cli.verify:verify", "hrx verify bolt-mini --settings 96x24")
    verb.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    _data(verb)
    _settings(verb, "star")
    _device(verb)
    _merge_adapter(verb)
    text = "check the model on all variates of an item together"
    verb.add_argument("--channels", action="store_true", help=text)
    text = "also check that random parameters change the explanation and small noise does not"
    verb.add_argument("--sanity", action="store_true", help=text)
    _json(verb)


def _models(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "list known models and what is installed"
    verb = _verb(verbs, "models", summary, "hrx.cli.listing:models", "hrx models")
    _json(verb)


def _datasets(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "list known datasets and what is on disk, or the datasets of a source"
    verb = _verb(verbs, "datasets", summary, "hrx.cli.listing:datasets", "hrx datasets --data sample")
    verb.add_argument("--data", metavar="SOURCE", help=f"{SOURCE_HELP} (default: all known datasets)")
    verb.add_argument("--scores", action="store_true", help="score naive forecasts on GIFT-Eval's official windows")
    _json(verb)


def _gift_eval_data(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "download GIFT-Eval, or check the files on disk against its manifest"
    verb = _verb(verbs, "data", summary, "hrx.cli.listing:data", "hrx data check us_births/D")
    verb.add_argument("action", choices=("fetch", "check"), help="fetch: download and verify; check: only verify")
    verb.add_argument("names", nargs="*", metavar="NAME", help="us_births, us_births/D, … (default: every dataset)")
    verb.add_argument("--data", type=Path, metavar="ROOT", help="default: $GIFT_EVAL, else ~/.cache/hrx/gift-eval")
    _json(verb)


def _report(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "write the page of a ledger, which opens in a browser without a network"
    verb = _verb(verbs, "report", summary, "hrx.cli.ledgers:report", "hrx report hrx-audit/ledger.db --out hrx-report")
    verb.add_argument("ledger", type=Path, metavar="LEDGER", help="the ledger that an audit wrote")
    verb.add_argument("--out", type=Path, default=Path("hrx-report"), metavar="DIR", help="default: hrx-report")


def _explain(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "explain forecasts, and say whether each explanation can be trusted"
    verb = _verb(
        verbs,
        "explain",
        summary,
        "hrx.cli.explain:explain",
        "hrx explain bolt-mini --series sample:elnino/M --lookback 96 --horizon 24",
    )
    verb.add_argument("models", nargs="+", metavar="MODEL", help=f"{MODEL_HELP}; several stand side by side")
    verb.add_argument(
        "--series",
        required=True,
        action="append",
        metavar="FILE[:COLUMN]",
        help="a CSV or Parquet file and its column, sample:DATASET[:NAME] or gift-eval:DATASET[:NAME]; may be repeated",
    )
    verb.add_argument("--lookback", type=_positive, required=True, metavar="L", help="lookback, in steps")
    verb.add_argument("--horizon", type=_positive, required=True, metavar="H", help="horizon, in steps")
    verb.add_argument("--estimator", default="input_gradient", metavar="NAME", help="default: input_gradient")
    text = "context: also find the shortest lookback that keeps the forecasts of the series"
    verb.add_argument("--sweeps", choices=("context",), metavar="NAME", help=text)
    _context_bound(verb)
    verb.add_argument(
        "--out", type=Path, default=Path("hrx-explain.html"), metavar="PAGE", help="default: hrx-explain.html"
    )
    text = "also write every entry: model, item, step, forecast time, input time, importance"
    verb.add_argument("--csv", type=Path, metavar="FILE", help=text)
    verb.add_argument("--png", type=Path, metavar="FILE", help="also draw the heat map, as PNG, SVG or PDF")
    _merge_adapter(verb)
    _json(verb)


def _tables(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "make the paper's tables from a ledger"
    verb = _verb(
        verbs, "tables", summary, "hrx.cli.ledgers:tables", "hrx tables hrx-audit/ledger.db --against published"
    )
    verb.add_argument("ledger", type=Path, metavar="LEDGER", help="the ledger that an audit wrote")
    every = "models, models_full, metrics, axes, domains, datasets, estimators, estimators_plain, cost, seeds, rank, "
    every += "truncation, distance, channels or accuracy; of trained models backbones, benchmarks, trained_axes, "
    every += "trained_domains or trained_estimators; may be repeated (default: all that the ledger can fill)"
    verb.add_argument("--table", action="append", metavar="NAME", help=every)
    forms = ("text", "md", "tex", "csv", "html", "json")
    verb.add_argument(
        "--format", choices=forms, default="text", metavar="FORM", help=f"{', '.join(forms)} (default: text)"
    )
    verb.add_argument("--against", choices=["published"], help="show the published cells beside the measured ones")
    verb.add_argument(
        "--estimator", default="input_gradient", metavar="NAME", help="estimator of the runs (default: input_gradient)"
    )
    verb.add_argument("--pool-seeds", action="store_true", help="count every seed as a run, as the published n does")
    verb.add_argument("--out", type=Path, metavar="FILE", help="a file, or a directory for one file per table")


def _compare(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "compare two checkpoints on the same runs, with gates"
    verb = _verb(
        verbs,
        "compare",
        summary,
        "hrx.cli.ledgers:compare",
        'hrx compare hrx-audit/ledger.db hrx-audit/ledger.db --gate "g_margin >= -0.02"',
    )
    verb.add_argument("base", type=Path, metavar="BASE", help="ledger of the base checkpoint")
    verb.add_argument("new", type=Path, nargs="?", metavar="NEW", help="ledger of the new checkpoint (default: BASE)")
    verb.add_argument("--base-model", metavar="NAME", help="which model of BASE, where it holds several")
    verb.add_argument("--new-model", metavar="NAME", help="which model of NEW")
    verb.add_argument(
        "--gate", action="append", default=[], metavar="EXPR", help='such as "g_margin >= -0.02"; repeatable'
    )
    verb.add_argument("--strict", action="store_true", help="judge gates by the estimate, not by the interval")
    _undecided(verb)
    verb.add_argument("--informational", action="store_true", help="exit 0 even if a gate fails")
    verb.add_argument("--min-pairs", type=_positive, default=10, metavar="N", help="fewer pairs: exit 4 (default: 10)")
    verb.add_argument("--summary", type=Path, metavar="FILE", help="Markdown for a step summary or a comment")
    verb.add_argument("--junit", type=Path, metavar="FILE", help="JUnit XML, one test case per gate")
    text = "JSON to FILE, or to standard output instead of the text; give it after the ledgers"
    verb.add_argument("--json", type=Path, nargs="?", const=Path("-"), metavar="FILE", help=text)


def _merge(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "merge ledgers, refusing contradictions"
    verb = _verb(verbs, "merge", summary, "hrx.cli.ledgers:merge", "hrx merge laptop.db cluster.db --into all.db")
    verb.add_argument("ledgers", nargs="+", type=Path, metavar="LEDGER", help="ledgers to read")
    verb.add_argument(
        "--into", required=True, type=Path, metavar="LEDGER", help="the ledger to add to; created if it does not exist"
    )


def _export(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "write the records of a ledger as Parquet or CSV"
    verb = _verb(verbs, "export", summary, "hrx.cli.ledgers:export", "hrx export hrx-audit/ledger.db --format csv")
    verb.add_argument("ledger", type=Path, metavar="LEDGER", help="the ledger that an audit wrote")
    verb.add_argument("--format", choices=("parquet", "csv"), default="parquet", help="default: parquet")
    verb.add_argument("--out", type=Path, metavar="FILE", help="default: beside the ledger")


def _check(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "verify that ledgers are as they were written, row by row"
    verb = _verb(verbs, "check", summary, "hrx.cli.ledgers:check", "hrx check hrx-audit/ledger.db")
    verb.add_argument("ledgers", nargs="+", type=Path, metavar="LEDGER", help="ledgers to verify; nothing is changed")
    _json(verb)


def _calibrate(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "check the measurement against constructed ground truth"
    verb = _verb(verbs, "calibrate", summary, "hrx.cli.calibrate:calibrate", "hrx calibrate --backbones linear")
    names = "linear,cnn,transformer"
    verb.add_argument("--full", action="store_true", help="three shapes, three seeds, planted ranks 1 to 16")
    verb.add_argument("--backbones", default=names, metavar="NAME,…", help=f"models to train (default: {names})")
    verb.add_argument("--estimator", default="input_gradient", metavar="NAME", help="default: input_gradient")
    verb.add_argument("--seeds", type=_positive, metavar="N", help="default: 1, with --full 3")
    recipes = "converged: nearly exact models; short: 10 epochs on 4,000 windows, near the published gains"
    verb.add_argument(
        "--recipe", choices=("converged", "short"), default="converged", help=f"{recipes} (default: converged)"
    )
    verb.add_argument("--out", type=Path, default=Path("hrx-calibrate"), metavar="DIR", help="default: hrx-calibrate")
    _json(verb)


def _train(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "train backbones on series without their test regions, to audit them there"
    example = "hrx train Linear CNN --data sample:sf_temps --settings 96x24 --seeds 1"
    verb = _verb(verbs, "train", summary, "hrx.cli.train:run", example)
    names = "Linear, CNN, or a class of neuralforecast: DLinear, PatchTST, TiDE, TimesNet, iTransformer, …"
    verb.add_argument("backbones", nargs="*", metavar="BACKBONE", help=names)
    verb.add_argument("--data", required=True, metavar="SOURCE", help=f"{SOURCE_HELP}; tslib: has its official splits")
    verb.add_argument("--settings", metavar="LxH,…", help="pairs such as 96x24 (default: 96x24,96x96,336x96)")
    verb.add_argument("--seeds", type=_positive, metavar="N", help="trainings of each model (default: 3)")
    verb.add_argument("--depth", type=_depths, metavar="N,…", help="layers, such as 1,2,4 (default: of the class)")
    verb.add_argument("--series", type=_positive, default=3, metavar="N", help="series per dataset (default: 3)")
    verb.add_argument("--epochs", type=_positive, default=10, metavar="N", help="at most (default: 10; patience 3)")
    verb.add_argument("--batches", type=_positive, metavar="N", help="batches of 32 per epoch (default: every window)")
    verb.add_argument("--learning-rate", type=_share, metavar="RATE", help="of Adam (default: 1e-4)")
    text = "paper-small: Linear, CNN, DLinear and PatchTST on ETTh1 and ETTh2, trained and then audited"
    verb.add_argument("--preset", metavar="NAME", help=text)
    _device(verb)
    _engine(verb, "training")
    verb.add_argument("--out", type=Path, default=Path("hrx-trained"), metavar="DIR", help="default: hrx-trained")


def _depths(text: str) -> list[int]:
    return list(dict.fromkeys(_positive(one) for one in text.split(",")))


def _new_adapter(verbs: Verbs[argparse.ArgumentParser]) -> None:
    summary = "write the skeleton of a model family: an adapter and its test"
    verb = _verb(verbs, "new-adapter", summary, "hrx.cli.new_adapter:new_adapter", "hrx new-adapter my-model")
    verb.add_argument("name", metavar="NAME", help="name of the family, such as my-model")


def _verb(
    verbs: Verbs[argparse.ArgumentParser], name: str, summary: str, command: str, example: str
) -> argparse.ArgumentParser:
    """A verb with a runnable example; `command` is the `module:function` that implements it."""
    verb = verbs.add_parser(name, help=summary, description=f"{summary.capitalize()}.", epilog=f"Example: {example}")
    verb.set_defaults(command=command)
    # Without a default, which would overwrite a --debug before the verb.
    verb.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG_HELP)
    return verb


def _data(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--data", default="sample", metavar="SOURCE", help=f"{SOURCE_HELP} (default: sample)")


def _settings(verb: argparse.ArgumentParser, default: str) -> None:
    text = "star, quick, or pairs such as 96x24,512x96; star and quick are its own for a model trained at one setting "
    text += f"(default: {default})"
    verb.add_argument("--settings", default=default, metavar="LxH,…", help=text)


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print JSON instead of text")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from 1 to 999999")
    return int(text)


def _count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _seconds(text: str) -> float:
    """`90`, `90s`, `30m` (or `30min`) or `4h` in seconds."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(s|m|min|h|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a time such as 90s, 30m or 4h, and not 0")
    return float(match[1]) * {"m": 60, "min": 60, "h": 3600}.get(match[2], 1)


def _budget(text: str) -> float:
    try:
        seconds = _seconds(text)
    except argparse.ArgumentTypeError:
        seconds = 0.0
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a time above zero such as 90s, 10m or 2h")
    return seconds


def _share(text: str) -> float:
    value = _number(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number above 0, such as 0.01 for 1 %%")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number from 0 up")
    return value
