"""Trained runs of a Time-Series-Library checkout: which model with which arguments, read without running its code.

    CHECKOUT/{run.py, models/NAME.py, layers/, utils/, exp/}
    CHECKOUT/checkpoints/RUN/{checkpoint.pth, args.json}

The library stores a state dict and no arguments. They are the defaults of `run.py`, then those in the name of the run's
folder, then those of an optional `args.json`, which holds what neither of them says.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from hrx.adapters.checkpoint import Checkpoint, file_digest
from hrx.adapters.contract import UNKNOWN, Architecture, ModelError, model_errors, training_facts
from hrx.errors import unknown
from hrx.files import read_file, read_json, user_path

FAMILY = "tslib"
EXPERIMENT = "exp/exp_long_term_forecasting.py"
ARGUMENTS = "args.json"
_WEIGHTS = "checkpoint.pth"
_TASK = "long_term_forecast"
_SOURCES = ("layers", "utils", "exp")
"""Folders whose code takes part in a forecast, beside the model's own file."""
_UNSTORED = {
    "FEDformer": "draws the frequencies that it keeps when it is built, and a run does not store them",
    "Koopa": "reads its training data when it is built",
}
"""Models that a state dict does not determine, and why."""
_NAMED = {
    "sl": "seq_len", "ll": "label_len", "pl": "pred_len", "dm": "d_model", "nh": "n_heads", "el": "e_layers",
    "dl": "d_layers", "df": "d_ff", "expand": "expand", "dc": "d_conv", "fc": "factor",
}  # fmt: skip
"""Whole numbers in the name of a run."""
_TRAINING = ("data", "loss", "learning_rate", "lradj", "batch_size", "train_epochs", "patience")
"""Arguments that decide how a model is trained, whatever its class."""
_NOT_ARGUMENTS = ("model", "task_name", "seq_len", "pred_len", "seed")
"""Arguments that records hold in columns of their own."""
_COMPUTED = object()
"""A value in the source of `run.py` that is not a constant."""
_RUN = re.compile(
    rf"{_TASK}_(?P<head>.+)_ft(?P<features>M|S|MS)_sl(?P<sl>\d+)_ll(?P<ll>\d+)_pl(?P<pl>\d+)_dm(?P<dm>\d+)_nh(?P<nh>\d+)"
    r"_el(?P<el>\d+)_dl(?P<dl>\d+)_df(?P<df>\d+)(?:_expand(?P<expand>\d+)_dc(?P<dc>\d+))?_fc(?P<fc>\d+)"
    r"_eb(?P<embed>[^_]+)_dt(?P<distil>True|False)_.*"
)


_NEEDED: dict[str, type] = dict.fromkeys(("model", "task_name", "features", "embed", "freq"), str)
_NEEDED |= dict.fromkeys(("seq_len", "label_len", "pred_len", "enc_in"), int)
"""Arguments that hrx itself reads, and their types."""


@dataclass(frozen=True)
class CheckoutRun(Checkpoint):
    """One run of a checkout; `path` is its folder."""

    checkout: Path = Path()

    @cached_property
    def weights(self) -> tuple[Path, ...]:
        self.check_files()
        return (self.path / _WEIGHTS,)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments that the model was built with, as `run.py` names them."""
        named, given = self._named_arguments(), self._given_arguments()
        for name in named.keys() & given.keys():
            if named[name] != given[name]:
                raise ModelError(
                    f"{self.path / ARGUMENTS} has {name} {given[name]!r}, and the folder's name says {named[name]!r}. "
                    "Correct one of them."
                )
        arguments = _defaults(self.checkout / "run.py") | named | given
        if arguments.get("features") == "S":  # the data has one column, whatever the defaults are
            arguments |= {name: given.get(name, 1) for name in ("enc_in", "dec_in", "c_out")}
        self._check(arguments)
        return arguments

    @property
    def architecture(self) -> Architecture:
        depth, seed = (self.arguments.get(name) for name in ("e_layers", "seed"))
        depth, seed = (value if type(value) is int else None for value in (depth, seed))
        # What the folder's name and `args.json` say: a default of `run.py` may be overridden in the training.
        stated = self._named_arguments() | self._given_arguments()
        settings = {name: stated.pop(name, UNKNOWN) for name in _TRAINING}
        arguments = {name: value for name, value in stated.items() if name not in _NOT_ARGUMENTS}
        training = training_facts("Time-Series-Library", **settings, arguments=arguments)
        return Architecture(str(self.arguments["model"]), depth, seed, training)

    @property
    def setting(self) -> tuple[int, int]:
        """Lookback and horizon that the model was trained for."""
        return self.arguments["seq_len"], self.arguments["pred_len"]

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the weights, the arguments and the code of the checkout that takes part in a forecast."""
        model = self.checkout / "models" / f"{self.arguments['model']}.py"
        folders = [file for name in _SOURCES for file in sorted((self.checkout / name).rglob("*.py"))]
        digest = hashlib.sha256(json.dumps(self.arguments, sort_keys=True).encode())
        digest.update(file_digest(self.weights[0]))
        with model_errors(f"{self.checkout} cannot be read", "Check its permissions.", OSError):
            for file in (model, *folders):
                digest.update(file.relative_to(self.checkout).as_posix().encode() + b"\0" + read_file(file))
        return digest.hexdigest()

    def _named_arguments(self) -> dict[str, Any]:
        """What the name of the run's folder says; empty if it is not one that `run.py` writes."""
        found = _RUN.fullmatch(self.path.name)
        if found is None:
            return {}
        text = found.groupdict()
        numbers = {name: int(text[key]) for key, name in _NAMED.items() if text[key] is not None}
        named = {"task_name": _TASK, "features": text["features"], "embed": text["embed"], **numbers}
        named["distil"] = text["distil"] == "True"
        # The head is MODEL_ID_MODEL_DATA. Data names have no underscore; model names may have one.
        before, _, data = text["head"].rpartition("_")
        models = [name for name in _models(self.checkout) if before == name or before.endswith(f"_{name}")]
        return named | ({"model": max(models, key=len), "data": data} if models else {})

    def _given_arguments(self) -> dict[str, Any]:
        """Content of `args.json`, if there is one."""
        file = self.path / ARGUMENTS
        if not os.path.lexists(file):
            return {}
        with model_errors(f"{file} cannot be read as JSON", "Correct it.", ValueError):
            content = read_json(file)
        if not isinstance(content, dict):
            raise ModelError(f'{file} is not a JSON object of arguments. For example {{"enc_in": 21, "freq": "t"}}.')
        return content

    def _check(self, arguments: dict[str, Any]) -> None:
        """Raises if the arguments do not determine a forecast that hrx can run."""
        task, model, here = arguments.get("task_name"), arguments.get("model"), self.path
        if "model" not in arguments or "task_name" not in arguments or "seq_len" not in arguments:
            raise ModelError(
                f"{here}: its name does not say which model of the checkout was trained with which arguments, as "
                f"{_TASK}_ID_MODEL_DATA_ftS_sl96_ll48_pl96_… does. Write the arguments of run.py to {here / ARGUMENTS}."
            )
        if task != _TASK:
            raise ModelError(f"{here} is a run of the task {task!r}. hrx audits runs of {_TASK}.")
        for name, kind in _NEEDED.items():
            if type(arguments.get(name)) is not kind:
                expected = "a whole number" if kind is int else "a text"
                raise ModelError(
                    f"{here}: the argument {name} is {arguments.get(name)!r}, not {expected}. "
                    f"Write it to {here / ARGUMENTS}."
                )
        if model not in _models(self.checkout):
            raise ModelError(f"{self.checkout / 'models'}: {unknown('model', str(model), _models(self.checkout))}")
        if reason := _UNSTORED.get(str(model)):
            raise ModelError(f"{here} is a run of {model}, which hrx cannot load: it {reason}.")
        lookback, label, horizon = (int(arguments[name]) for name in ("seq_len", "label_len", "pred_len"))
        if lookback < 1 or horizon < 1 or not 0 <= label <= lookback or arguments["enc_in"] < 1:
            raise ModelError(
                f"{here}: seq_len {lookback}, label_len {label}, pred_len {horizon} and enc_in {arguments['enc_in']} "
                "do not fit together. All but label_len are at least 1, and label_len is at most seq_len."
            )
        if arguments["features"] not in ("S", "M", "MS"):
            raise ModelError(f"{here}: {unknown('value of features', arguments['features'], ('S', 'M', 'MS'))}")


def checkout_run(text: str) -> CheckoutRun:
    """Run of `CHECKOUT:RUN`, with its arguments read and checked."""
    head, _, run = text.rpartition(":")
    checkout = user_path(head or text)
    if not os.path.isfile(checkout / "run.py") or not os.path.isfile(checkout / EXPERIMENT):
        raise ModelError(
            f"{checkout} is not a checkout of the Time-Series-Library: it has no run.py or no {EXPERIMENT}. "
            f"Write {FAMILY}:CHECKOUT:RUN with the name of a folder in CHECKOUT/checkpoints."
        )
    checkout = checkout.resolve()
    runs = sorted(file.parent.name for file in (checkout / "checkpoints").glob(f"*/{_WEIGHTS}"))
    if not runs:
        raise ModelError(f"{checkout}/checkpoints has no trained run, RUN/{_WEIGHTS}. Train one with run.py.")
    if not head or not run:
        raise ModelError(f"{FAMILY}:{text} names no run. Write {FAMILY}:CHECKOUT:RUN, for example RUN {runs[0]}.")
    if run not in runs:
        near = ", ".join(get_close_matches(run, runs, n=3, cutoff=0))
        raise ModelError(f"{checkout}/checkpoints has no run {run!r}. The nearest of its {len(runs)} names: {near}.")
    found = CheckoutRun(checkout / "checkpoints" / run, run.removeprefix(f"{_TASK}_"), run, checkout=checkout)
    _ = found.arguments
    return found


def _models(checkout: Path) -> list[str]:
    """Names of the models of a checkout."""
    return sorted(file.stem for file in (checkout / "models").glob("*.py") if file.stem != "__init__")


def _defaults(file: Path) -> dict[str, Any]:
    """Defaults of the arguments that `run.py` adds to its parser, from its source: importing it would train."""
    with model_errors(f"{file} cannot be read as Python", "Restore it from the library.", SyntaxError, ValueError):
        tree = ast.parse(read_file(file))
    found: dict[str, Any] = {}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") != "add_argument":
            continue
        options = [text for text in map(_literal, call.args) if str(text).startswith("--")]
        keywords = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
        switch = {"store_true": False, "store_false": True}.get(str(keywords.get("action")))
        default = keywords.get("default", switch)
        # A required argument has no default that a run could have used.
        if options and not keywords.get("required") and default is not _COMPUTED:
            found.setdefault(str(keywords.get("dest") or str(options[0]).removeprefix("--")), default)
    return found


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _COMPUTED
