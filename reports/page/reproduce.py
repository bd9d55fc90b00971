"""The commands that measure the runs of a ledger again, from the settings that the ledger stores.

`PATH` stands for the folder of a file or directory: a ledger stores names, not paths.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from hrx.audit.protocol import Protocol
from hrx.records.ledger import StoredAudit
from hrx.reports.page.data import Json
from hrx.reports.text import listed

_FIRST = (
    "data", "settings", "series", "windows", "seeds", "draws", "precision", "estimator", "estimator-setting", "axis",
)  # fmt: skip
"""The options that a command begins with; all others follow."""
_WITHOUT_NUMBERS = ("models", "engine", "workers", "gpus", "gate")
"""Stored settings that decide no number, and the models, which are not an option."""
_NARROWED = ("data", "settings", "seeds")
"""What the command of one record has in its own, narrower form."""
_NAMED_SOURCES = ("sample", "gift-eval")
"""Sources whose datasets can be chosen by name."""
_VERSIONS = {
    "hrx": "hrx_version", "torch": "torch_version", "device": "device", "model libraries": "library",
    "adapters": "adapter_version", "measurement protocol": "protocol_version", "draws": "draws_kind",
    "weights (sha256)": "fingerprint",
}  # fmt: skip


class _Command(NamedTuple):
    """`hrx audit` with its models and options."""

    models: list[str]
    options: dict[str, Any]

    def words(self, but: Sequence[str] = ()) -> list[str]:
        """The options as words of a command line, without those that are not set and except `but`."""
        words: list[str] = []
        names = dict.fromkeys((*_FIRST, *self.options))
        for name in (name for name in names if name not in (*_WITHOUT_NUMBERS, *but)):
            value = self.options.get(name)
            if value is True:
                words.append(f"--{name}")
                continue
            for one in value if isinstance(value, list) else [value]:
                words += [] if one in (None, False, "") else [f"--{name}", str(one)]
        return words

    def __str__(self) -> str:
        return shlex.join(["hrx", "audit", *self.models, *self.words()])


def reproduction(
    frame: pd.DataFrame, audits: Sequence[StoredAudit], ledger_name: str
) -> tuple[list[str], str, list[str], dict[str, str]]:
    """The commands that reproduce all runs of a ledger and its page, its name, remarks, and the versions behind it."""
    if frame.empty:
        return [], "", [], {}
    stored = [str(_stored(audit)) for audit in audits]
    derived = [] if stored else [str(_derived(str(model), runs)) for model, runs in frame.groupby("model", sort=False)]
    commands = [*stored, *derived, shlex.join(["hrx", "report", ledger_name, "--out", "hrx-report"])]
    versions = {
        name: listed(frame[column].dropna().astype(str).unique()) or "unknown" for name, column in _VERSIONS.items()
    }
    digest = hashlib.sha256("\n".join(sorted(frame["key"].astype(str))).encode()).hexdigest()
    versions["these runs (sha256 of their sorted keys)"] = digest
    return commands, shlex.quote(ledger_name), _placeholders(commands), versions


def _placeholders(commands: Sequence[str]) -> list[str]:
    """What the reader must fill in, if anything."""
    sentences = []
    if any("PATH/" in command for command in commands):
        sentences.append(
            "Replace PATH by the folder of that file or directory, which the ledger does not store; the hash of the "
            "weights below identifies a checkpoint."
        )
    if any("SOURCE" in command for command in commands):
        sentences.append("Replace SOURCE by the data: this ledger stores no settings, so the options are derived.")
    return sentences


def _stored(audit: StoredAudit) -> _Command:
    """The command of an audit, from its stored settings."""
    settings = json.loads(audit.settings)
    return _Command([str(model) for model in settings.get("models") or []], settings)


def _derived(model: str, runs: pd.DataFrame) -> _Command:
    """A command for a model's runs, from their columns: for ledgers without stored settings."""
    pairs = zip(runs["lookback"], runs["horizon"], strict=True)
    known = runs["estimator"].dropna().unique()
    options = {
        "data": "SOURCE",
        "settings": ",".join(dict.fromkeys(f"{lookback}x{horizon}" for lookback, horizon in pairs)),
        "series": runs.groupby("dataset")["series"].nunique().max(),
        "seeds": runs["seed"].max() + 1,
        **{name: runs[name].max() for name in ("windows", "draws")},
        "precision": None if runs["precision"].isna().all() else runs["precision"].min(),
        "estimator": str(known[0]) if len(known) == 1 else None,
        "axis": str(runs["axis"].iloc[0]) if runs["axis"].nunique() == 1 else None,
    }
    return _Command([model], {name: None if pd.isna(value) else value for name, value in options.items()})


def record_commands(frame: pd.DataFrame, audits: Sequence[StoredAudit]) -> Json:
    """What the page needs for the command of one record: `of`, the command of each run or -1, and `commands`.

    A command has `models`, `data`, `narrow` (whether `data` can name one dataset) and `rest`, all other words.
    """
    commands = [_stored(audit) for audit in audits]
    of = pd.Series(-1, index=frame.index)
    models: list[Json] = []
    for command in commands:
        matching = _made_by(frame, command) & (of == -1)
        for model in frame.loc[matching, "model"].unique():
            words = [word for word in command.models if str(model) in _names(word)]
            source = str(command.options.get("data") or "sample").partition(":")[0]
            narrow = source in _NAMED_SOURCES
            rest = command.words(but=_NARROWED)
            of[matching & (frame["model"] == model)] = len(models)
            data = source if narrow else command.options.get("data")
            models.append({"models": words or command.models, "data": data, "narrow": narrow, "rest": rest})
    return {"of": of.tolist(), "commands": models}


def _names(word: str) -> set[str]:
    """The names that a model given as `word` can have in a record."""
    return {word, *word.replace(":", "/").split("/")[-2:]}


def _made_by(frame: pd.DataFrame, command: _Command) -> "pd.Series[bool]":
    """Whether each run has the settings of a command."""
    given = command.options
    same = frame["seed"] < int(given.get("seeds") or 1)
    for name in ("windows", "draws", "estimator", "axis"):
        same &= frame[name] == given.get(name)
    precision = given.get("precision")
    same &= frame["precision"].isna() if precision is None else frame["precision"] == precision
    sweeps = str(given.get("sweeps") or "").split(",")
    for name in ("truncation", "distance", "context"):
        same &= frame[name].fillna(0) == int(name in sweeps)
    if "context" in sweeps:
        same &= frame["context_bound"] == (given.get("context-bound") or Protocol.context_bound)
    same &= frame["channels"].notna() == bool(given.get("channels"))
    settings = str(given.get("settings"))
    if settings[:1].isdecimal():
        same &= (frame["lookback"].astype(str) + "x" + frame["horizon"].astype(str)).isin(settings.split(","))
    source, _, names = str(given.get("data") or "").partition(":")
    if source in _NAMED_SOURCES and names:
        same &= frame["dataset"].map(lambda name: any(_chosen(str(name), one) for one in names.split(",")))
    return (same & _with_settings(frame, given)).fillna(False).astype(bool)


def _chosen(dataset: str, name: str) -> bool:
    return dataset == name.strip() or dataset.startswith(f"{name.strip()}/")


def _with_settings(frame: pd.DataFrame, given: Mapping[str, Any]) -> "pd.Series[bool]":
    """Whether the estimator of each run had the settings given; a run that was not measured has none stored."""
    wanted = dict(str(one).partition("=")[::2] for one in given.get("estimator-setting") or [])
    parsed = {text: _settings(text) for text in frame["estimator_settings"].dropna().unique()}

    def fits(text: object) -> bool:
        known = parsed.get(text, {}) if isinstance(text, str) else {}
        return all(_alike(known[name], value) for name, value in wanted.items() if name in known)

    return frame["estimator_settings"].map(fits, na_action=None).astype(bool)


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _alike(stored: object, given: str) -> bool:
    try:
        return float(str(stored)) == float(given)
    except ValueError:
        return str(stored) == given
