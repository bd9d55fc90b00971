"""What a user asks for: every option of `hrx audit`, `verify`, `explain` and `train` as one field, with help and check.

`hrx.options` makes the command line, the settings file, Python's keywords and stored settings from these classes.
Imports neither torch nor a model library, so that `--help` is fast.
"""

import os
import re
from dataclasses import MISSING, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hrx.errors import HrxError, without_paths
from hrx.files import user_path
from hrx.options import above_zero, as_settings, count, number, option, positive, seconds, time_above_zero

SOURCE_HELP = (
    "sample, gift-eval[:NAME,…], tslib:DIR[:NAME,…], csv:FILE, parquet:FILE or a directory in GIFT-Eval's format"
)
MODEL_HELP = (
    "bolt-mini, a short name, a hub id, a directory, FAMILY:PATH, neuralforecast:DIR[:ALIAS], tslib:CHECKOUT:RUN or "
    "module:FILE.py:FACTORY"
)
DEFAULT_WORKERS = 1
"""A process of its own for the models: one that ends its process, or hangs, does not end the audit."""
_NAMED_VALUE = re.compile(r"(?P<name>[\w.-]+)(?P<mark>[=:])(?P<path>.*[/\\].*)")
"""A path after a name, as in `csv:FILE`, `FAMILY:PATH` and `FAMILY=PATH`."""
_STRIPPED = "PATH"
"""Stands for a folder in stored settings: a ledger is published, and a path reveals who made it and where."""


class Effort(NamedTuple):
    """What one run spends, where the options do not say it."""

    windows: int
    draws: int


EFFORTS = {"light": Effort(windows=1, draws=2), "paper": Effort(windows=4, draws=4)}
"""Series differ more than the windows of a series, and windows more than draws: `light` leaves time for more series."""


def _gibibytes(text: str) -> float:
    try:
        return above_zero(text)
    except ValueError as error:
        raise ValueError(f"{text[:20]!r} is not a valid amount of memory in gibibytes, such as 2") from error


# Options that several verbs have.


def _data() -> Any:
    return option("sample", f"{SOURCE_HELP} (default: sample)", metavar="SOURCE")


def _settings(default: str) -> Any:
    text = "star, quick, or pairs such as 96x24,512x96; star and quick are its own for a model trained at one setting"
    return option(default, f"{text} (default: {default})", metavar="LxH,…")


def _series() -> Any:
    return option(3, "series per dataset (default: 3)", check=positive, metavar="N")


def _device() -> Any:
    return option("cpu", "cpu, cuda, mps or auto, which takes a GPU if there is one (default: cpu)", metavar="NAME")


def _workers() -> Any:
    text = "worker processes (default: 1; with ray: one per CPU); 0 runs the models in this process, unprotected"
    return option(None, text, check=count, metavar="N")


def _timeout(tasks: str) -> Any:
    text = f"longest time of one {tasks}, such as 90s, 30m or 4h; 0: no limit (default: 2h)"
    return option(7200.0, text, check=seconds, metavar="TIME")


def _engine() -> Any:
    return option("local", "default: local")


def _address() -> Any:
    text = "address of the Ray cluster (default: auto, a cluster on this machine); local starts one"
    return option("auto", text, metavar="ADDRESS", stored=False)


def _gpus() -> Any:
    return option(0.0, "GPUs of each Ray worker (default: 0)", check=number, metavar="N")


def _merge_adapter() -> Any:
    return option(
        False, "merge a LoRA directory into its base model, with peft, and write the result to DIRECTORY/merged"
    )


def _columns(text: str) -> Any:
    return option((), f"{text}; may be repeated", metavar="COLUMN")


def _context_bound() -> Any:
    text = "largest change, as a share of the forecasts' variance, for the needed context (default: 0.01)"
    return option(None, text, check=above_zero, metavar="SHARE")


def json_option() -> Any:
    """`--json` of a verb."""
    return option(False, "print JSON instead of text", stored=False)


def undecided_option() -> Any:
    """`--undecided` of a verb with gates."""
    text = "what undecided gates, whose interval contains the bound, count as (default: exit code 4)"
    return option(None, text)


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """Options of an audit."""

    models: tuple[str, ...] = option((), f"{MODEL_HELP} (default: bolt-mini)", metavar="MODEL", positional=True)
    data: str = _data()
    settings: str = _settings("quick")
    series: int = _series()
    effort: Literal["light", "paper"] = option(
        "light",
        "light: 1 window and 2 draws a run, enough for a verdict; paper: 4 and 4, for single runs (default: light)",
    )
    windows: int | None = option(None, "windows per run (default: that of --effort)", check=positive, metavar="N")
    seeds: int = option(2, "window shifts per series (default: 2)", check=positive, metavar="N")
    draws: int | None = option(
        None,
        "random replacements of each window (default: those of --effort)",
        check=positive,
        metavar="N",
    )
    precision: float | None = option(
        None, "draw until the gains' error is below this, four pairs at least", check=above_zero, metavar="ERROR"
    )
    budget: float | None = option(
        None,
        "start no run after this time, such as 90s, 10m or 2h, finish those under way, and report what is stored; "
        "the same command resumes",
        check=time_above_zero,
        metavar="TIME",
        stored=False,
    )
    equivalence: float | None = option(
        None, "gains within ± this are called about as well (default: 0.05)", check=above_zero, metavar="GAIN"
    )
    until: Literal["decided"] | None = option(
        None,
        "decided: measure in random order, and stop a model when the sign of g_margin over its plan is decided",
    )
    estimator: str = option(
        "input_gradient",
        "estimator of the matrix: winit, captum:GradientShap, FILE.py:FUNCTION, … (default: input_gradient)",
        metavar="NAME",
    )
    estimator_setting: tuple[str, ...] = option(
        (), "a setting of the estimator, such as points=64; may be repeated", metavar="NAME=VALUE"
    )
    axis: Literal["step", "whole"] = option(
        "step",
        "one row per step, or one for the whole forecast, as published (default: step)",
    )
    output: str = option(
        "point", "what is explained: point, mean, median, a quantile such as 0.9, or a spread such as 0.1:0.9"
    )
    out: Path = option(Path("hrx-audit"), "default: hrx-audit", check=Path, metavar="DIR", stored=False)
    ledger: Path | None = option(None, "default: DIR/ledger.db", check=Path, metavar="FILE", stored=False)
    memory: float = option(2.0, "memory for batches (default: 2)", check=_gibibytes, metavar="GIB")
    sweeps: str = option("", "also score: truncation, distance, fine, context", metavar="NAME,…")
    context_bound: float | None = _context_bound()
    merge_adapter: bool = _merge_adapter()
    channels: bool = option(False, "audit items of several variates on the time axis and on the channel axis")
    gate: tuple[str, ...] = option(
        (),
        'a bound on each model\'s own figure, such as "g_margin >= 0"; exit code 1 if it fails; may be repeated',
        metavar="EXPR",
    )
    undecided: Literal["pass", "fail"] | None = undecided_option()
    verbose: bool = option(False, "also show intervals, p values, exclusions and the needed context", stored=False)
    device: str = _device()
    workers: int | None = _workers()
    timeout: float = _timeout("run, admission or load")
    engine: Literal["local", "ray"] = _engine()
    address: str = _address()
    gpus: float = _gpus()
    python: tuple[str, ...] = option(
        (), "audit the models of a family with another python; may be repeated", metavar="FAMILY=PATH"
    )

    def completed(self) -> "AuditRequest":
        """Return the request with the windows and draws of its effort."""
        effort = EFFORTS[self.effort]
        return replace(self, windows=self.windows or effort.windows, draws=self.draws or effort.draws)

    @cached_property
    def ledger_path(self) -> Path:
        return self.ledger or self.out / "ledger.db"

    def stored(self) -> dict[str, Any]:
        """Return the settings that a ledger stores: with `PATH/` for the folder of every file and directory."""
        return as_settings(self, without_folder)


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """Run the admission checks only, or measure the contract of the official call."""

    model: str = option(MISSING, MODEL_HELP, metavar="MODEL", positional=True)
    data: str = _data()
    settings: str = _settings("star")
    device: str = _device()
    merge_adapter: bool = _merge_adapter()
    channels: bool = option(False, "check the model on all variates of an item together")
    sanity: bool = option(False, "also check that random parameters change the explanation and small noise does not")
    contract: bool = option(False, "measure what the official call promises, at one setting and without data")
    only: str = option("", "properties of the contract, such as isolation,units (default: all)", metavar="NAME,…")
    budget: float | None = option(
        None,
        "longest time of the contract, such as 90s; the rest is not run",
        check=seconds,
        metavar="TIME",
    )
    page: Path | None = option(None, "also write the contract as a page", check=Path, metavar="FILE", stored=False)
    markdown: Path | None = option(
        None, "also write the contract as a section of a model card", check=Path, metavar="FILE", stored=False
    )
    junit: Path | None = option(
        None,
        "also write the contract as JUnit XML, a test case per property",
        check=Path,
        metavar="FILE",
        stored=False,
    )
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """Explain forecasts, and say whether each explanation can be trusted."""

    models: tuple[str, ...] = option(
        MISSING, f"{MODEL_HELP}; several stand side by side", metavar="MODEL", positional=True
    )
    series: tuple[str, ...] = option(
        MISSING,
        "a CSV or Parquet file and its column, sample:DATASET[:NAME] or gift-eval:DATASET[:NAME]; may be repeated",
        metavar="FILE[:COLUMN]",
    )
    lookback: int = option(MISSING, "lookback, in steps", check=positive, metavar="L")
    horizon: int = option(MISSING, "horizon, in steps", check=positive, metavar="H")
    target: tuple[str, ...] = _columns("the column that is forecast, several together, or each")
    past: tuple[str, ...] = _columns("covariates known up to now")
    future: tuple[str, ...] = _columns("covariates known for the steps ahead too")
    static: tuple[str, ...] = _columns("columns with one value per series")
    future_data: Path | None = option(
        None, "a table with the covariates of the steps ahead", check=Path, metavar="FILE"
    )
    unused: Literal["error", "ignore"] | None = option(None, "columns without a role (default: error)")
    output: str = option(
        "point",
        "point, median, mean, a quantile such as 0.9, or a spread such as 0.1:0.9 (default: point)",
        metavar="NUMBER",
    )
    estimator: str = option("input_gradient", "default: input_gradient", metavar="NAME")
    sweeps: Literal["context"] | None = option(
        None,
        "context: also find the shortest lookback that keeps the forecasts of the series",
        metavar="NAME",
    )
    context_bound: float | None = _context_bound()
    merge_adapter: bool = _merge_adapter()
    out: Path = option(Path("hrx-explain.html"), "default: hrx-explain.html", check=Path, metavar="PAGE", stored=False)
    csv: Path | None = option(
        None,
        "also write every entry: model, item, step, forecast time, input time, importance",
        check=Path,
        metavar="FILE",
        stored=False,
    )
    png: Path | None = option(
        None, "also draw the heat map, as PNG, SVG or PDF", check=Path, metavar="FILE", stored=False
    )
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class RevisionRequest:
    """Explain why the forecasts of some dates changed between two origins."""

    model: str = option(MISSING, MODEL_HELP, metavar="MODEL", positional=True)
    series: str = option(
        MISSING,
        "a CSV or Parquet file and its column, sample:DATASET[:NAME] or gift-eval:DATASET[:NAME]",
        metavar="FILE[:COLUMN]",
    )
    horizon: int = option(MISSING, "horizon, in steps", check=positive, metavar="H")
    from_: str = option(
        MISSING,
        "last time that the old forecast knows: 2024-05-31, 2024-05 for the last in that month, or -7 for seven values "
        "before the end",
        metavar="T0",
    )
    to: str | None = option(
        None, "last time that the new forecast knows (default: the last of the series)", metavar="T1"
    )
    lookback: int | None = option(None, "default: as long as model and series allow", check=positive, metavar="L")
    merge_adapter: bool = _merge_adapter()
    csv: Path | None = option(
        None, "also write every part: date, part, new value, contribution", check=Path, metavar="FILE", stored=False
    )
    png: Path | None = option(
        None, "also draw all dates, as PNG, SVG or PDF, and the largest revision beside it", check=Path,
        metavar="FILE", stored=False,
    )  # fmt: skip
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Score the explanation matrix of another explainer as an audit scores ours."""

    model: str = option(MISSING, MODEL_HELP, metavar="MODEL", positional=True)
    matrix: str = option(
        MISSING,
        "the matrix: .npz, or .csv or .parquet with the columns step, position and importance",
        metavar="FILE",
    )
    series: str = option(
        MISSING,
        "a CSV or Parquet file and its column, sample:DATASET[:NAME] or gift-eval:DATASET[:NAME]",
        metavar="FILE[:COLUMN]",
    )
    horizon: int = option(MISSING, "horizon, in steps", check=positive, metavar="H")
    windows: int | None = option(
        None,
        "score so many windows of the last fifth of the series (default: the one before its end)",
        check=positive,
        metavar="N",
    )
    draws: int = option(16, "random replacements, an even number (default: 16)", check=positive, metavar="N")
    merge_adapter: bool = _merge_adapter()
    json: bool = json_option()


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Train backbones on series without their test regions, to audit them there."""

    backbones: tuple[str, ...] = option(
        (),
        "Linear, CNN, or a class of neuralforecast: DLinear, PatchTST, TiDE, TimesNet, iTransformer, …",
        metavar="BACKBONE",
        positional=True,
    )
    data: str = option(MISSING, f"{SOURCE_HELP}; tslib: has its official splits", metavar="SOURCE")
    settings: str | None = option(None, "pairs such as 96x24 (default: 96x24,96x96,336x96)", metavar="LxH,…")
    seeds: int | None = option(None, "trainings of each model (default: 3)", check=positive, metavar="N")
    depth: str | None = option(
        None, "layers, such as 1,2,4 (default: of the class)", check=lambda text: _depths(text) and text, metavar="N,…"
    )
    series: int = _series()
    epochs: int = option(10, "at most (default: 10; patience 3)", check=positive, metavar="N")
    batches: int | None = option(None, "batches of 32 per epoch (default: every window)", check=positive, metavar="N")
    learning_rate: float | None = option(None, "of Adam (default: 1e-4)", check=above_zero, metavar="RATE")
    preset: str | None = option(
        None,
        "paper-small: Linear, CNN, DLinear and PatchTST on ETTh1 and ETTh2, trained and then audited",
        metavar="NAME",
    )
    device: str = _device()
    workers: int | None = _workers()
    timeout: float = _timeout("training")
    engine: Literal["local", "ray"] = _engine()
    address: str = _address()
    gpus: float = _gpus()
    out: Path = option(Path("hrx-trained"), "default: hrx-trained", check=Path, metavar="DIR", stored=False)

    @property
    def depths(self) -> tuple[int, ...]:
        return _depths(self.depth) if self.depth else ()


@dataclass(frozen=True, kw_only=True)
class CalibrateRequest:
    """Check the measurement against constructed ground truth."""

    full: bool = option(False, "three shapes, three seeds, planted ranks 1 to 16")
    backbones: str = option(
        "linear,cnn,transformer", "models to train (default: linear,cnn,transformer)", metavar="NAME,…"
    )
    estimator: str = option("input_gradient", "default: input_gradient", metavar="NAME")
    seeds: int | None = option(None, "default: 1, with --full 3", check=positive, metavar="N")
    recipe: Literal["converged", "short"] = option(
        "converged",
        "converged: nearly exact models; short: 10 epochs on 4,000 windows, near the published gains (default: "
        "converged)",
    )
    out: Path = option(Path("hrx-calibrate"), "default: hrx-calibrate", check=Path, metavar="DIR")
    json: bool = json_option()


Engine = AuditRequest | TrainRequest
"""Requests that say where their tasks run."""


def _depths(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(one) for one in text.split(",")))


def local_workers(request: Engine) -> int:
    """Worker processes on this machine; 0 where models run in this process."""
    if request.engine == "ray":
        if request.workers == 0:
            raise HrxError("--workers 0 runs the models in this process, --engine ray elsewhere. Drop one of them.")
        return 1  # it builds the models of module:FILE.py:FACTORY for the plan
    return DEFAULT_WORKERS if request.workers is None else request.workers


def without_folder(value: str) -> str:
    """A model, a source or a file as a ledger stores it: with `PATH/` for its folder."""
    from hrx.audit.attribution import stored_name

    if (named := _NAMED_VALUE.fullmatch(value)) and named["name"] not in ("sample", "gift-eval"):
        return named["name"] + named["mark"] + without_folder(named["path"])
    if (function := stored_name(value)) != value:  # FILE.py:FUNCTION with a folder
        return f"{_STRIPPED}/{function}"
    name = Path(value).name if os.path.exists(user_path(value)) else without_paths(value)
    return name if name == value else f"{_STRIPPED}/{name.removeprefix('./')}"
