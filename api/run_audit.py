"""`hrx.run_audit`: the command `hrx audit` as a function, on names or on objects in memory."""

import argparse
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hrx.adapters.formats.module import held_models
from hrx.cli.audit import audit
from hrx.cli.progress import progress
from hrx.cli.request import Held, HeldModel
from hrx.cli.terminal import note
from hrx.cli.verbs import parser
from hrx.errors import Exit, HrxError
from hrx.gift_eval import Dataset, TimedSeries, read_series
from hrx.gift_eval.series import StoredSeries
from hrx.reports.audit_summary import AuditSummary

_STOPPED = 128
"""Exit codes above it are those of signals."""


def run_audit(
    model: Any = "bolt-mini",
    *,
    data: Any = "sample",
    out: str | Path = "hrx-audit",
    settings: str | Sequence[str] = "quick",
    workers: int = 0,
    **options: Any,
) -> AuditSummary:
    """Audits a model, as `hrx audit` does, and returns the summary, which shows itself in a notebook.

    `model` is a name or path, a forecaster, a `torch.nn.Module`, a fitted `NeuralForecast`, or a list of these. `data`
    is a source as on the command line (`"sample"`, `"gift-eval:us_births/D"`, `"csv:sales.csv"`), or series as
    `hrx.explain` takes them.
    `settings` are `star`, `quick` or pairs such as `["96x24"]`. Every other option of the command is a keyword:
    `series=2, seeds=1, effort="paper", gate=["g_margin >= 0"], estimator="occlusion"`.

    `out` gets the ledger and heat maps; the same call resumes. Models run in this process unless `workers` asks for
    processes, which need names instead of objects. A request that is wrong raises an `HrxError`; `exit` of the summary
    is the exit code of the command otherwise.

        summary = hrx.run_audit("bolt-mini", data="sample:elnino/M", settings="96x24", seeds=1, out="my-audit")
        summary.models[0].verdict
    """
    models = [model] if not isinstance(model, list | tuple) else list(model)
    held = Held(
        tuple(HeldModel(held) for one in models if not isinstance(one, str) for held in held_models(one)),
        () if isinstance(data, str) else tuple(_datasets(data)),
    )
    if held.models and workers:
        raise HrxError(f"workers={workers}: a model in memory runs in this process only. Drop workers, or give a name.")
    named = [one for one in models if isinstance(one, str)]
    pairs = settings if isinstance(settings, str) else ",".join(map(str, settings))
    arguments = {"out": out, "settings": pairs, "workers": workers, **options}
    # Messages name the source by this text.
    arguments["data"] = data if isinstance(data, str) else f"the given {type(data).__name__}"
    parsed = _parse([*named, *_words(arguments)])
    parsed.held, parsed.summaries, parsed.backbones = held, [], []
    with progress.running("hrx.run_audit"), contextlib.redirect_stdout(io.StringIO()):
        code = audit(parsed)
    if code > _STOPPED:
        raise KeyboardInterrupt
    ledger = parsed.ledger or parsed.out / "ledger.db"
    return AuditSummary(tuple(parsed.summaries), ledger, Exit(code), tuple(parsed.backbones))


def _words(arguments: dict[str, Any]) -> list[str]:
    """Keyword arguments as words of a command line."""
    words: list[str] = []
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            many = value if isinstance(value, list | tuple) else [value]
            if any(callable(one) for one in many):
                raise HrxError(f"run_audit: {name} is a function, which no worker can import. Give FILE.py:FUNCTION.")
            words += [word for one in many for word in (option, str(one))]
    return words


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of the command; an error of the parser as an `HrxError`."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser().parse_args(["audit", *words])
    except SystemExit as error:
        reason = (said.getvalue().strip().splitlines() or [": the options are not valid."])[-1]
        raise HrxError(f"run_audit: {reason.partition(': ')[2]}") from error
    if parsed.json or parsed.dry_run or parsed.rank_only or parsed.recheck or parsed.config:
        raise HrxError("run_audit returns a summary: json, dry_run, rank_only, recheck and config are for the command.")
    return parsed


def _datasets(data: Any) -> list[Dataset]:
    """One dataset per frequency of the series."""
    groups: dict[tuple[str, int], list[StoredSeries]] = {}
    series = read_series(data).series
    for sentence in dict.fromkeys(one.note for one in series if one.note):
        note(f"{sentence}.")
    for one in series:
        groups.setdefault((one.series.frequency, one.series.season), []).append(_stored(one))
    return [
        Dataset(f"data/{frequency}" if frequency else "data", frequency, season, "", len(rows), rows.__getitem__)
        for (frequency, season), rows in groups.items()
    ]


def _stored(one: TimedSeries) -> StoredSeries:
    """The series with its gaps, which the audit counts and fills itself."""
    values, observed = one.series.values, one.series.observed
    return StoredSeries(one.series.item, values if observed is None else np.where(observed, values, np.nan))
