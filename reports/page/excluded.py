"""The part of a report page about runs that were not scored: excluded and failed ones, and the admission checks.

The tables are HTML and show the whole ledger without a script. The page's script counts the runs of its selection, and
hides the rows that do not belong to it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from hrx.records.ledger import StoredCheck
from hrx.records.record import DONE
from hrx.reports.page import Row, html_table, link
from hrx.reports.page.data import Json
from hrx.reports.reasons import NO_REASON, ReasonKind, count_reasons, reason_kinds
from hrx.reports.summary import EQUIVALENCE, worst_parity
from hrx.reports.text import clean, counted, escape_html, listed

_MOST_MODELS = 12
"""The checks of more models are folded, unless one failed."""
_MOST_REASONS = 40


class ExclusionKind(NamedTuple):
    """Runs of one status whose reasons agree up to their first colon."""

    status: str
    reason: ReasonKind


def exclusion_kinds(frame: pd.DataFrame) -> list[ExclusionKind]:
    """The kinds of excluded and failed runs, most frequent first."""
    statuses = [str(status) for status in frame["status"].unique() if status != DONE]
    kinds = [ExclusionKind(status, one) for status in statuses for one in reason_kinds(count_reasons(frame, status))]
    return sorted(kinds, key=lambda kind: -kind.reason.runs)


def exclusions_json(frame: pd.DataFrame, kinds: Sequence[ExclusionKind]) -> Json:
    """`rows`, the status of each row of the table and what finds its runs, and `of`, the row of each run or -1."""
    rows = {(kind.status, kind.reason.kind): row for row, kind in enumerate(kinds[:_MOST_REASONS])}
    reasons = [str(reason).partition(":")[0] for reason in frame["reason"].fillna(NO_REASON)]
    of = [rows.get(pair, -1) for pair in zip(frame["status"], reasons, strict=True)]
    return {"rows": [{"status": status, "search": clean(kind)} for status, kind in rows], "of": of}


def exclusions(frame: pd.DataFrame, kinds: Sequence[ExclusionKind]) -> str:
    """Excluded and failed runs: the reasons by kind, each with its number of runs."""
    total = sum(kind.reason.runs for kind in kinds)
    if not total:
        return f"<p>Nothing was excluded, and nothing failed: {counted(len(frame), 'run')} scored.</p>"
    rows = []
    for number, (status, one) in enumerate(kinds[:_MOST_REASONS]):
        count = f'<a href="{link(at="records", status=status, beats="all", search=one.kind)}">{one.runs}</a>'
        cells = (count, escape_html(status), escape_html(one.example))
        rows.append(Row(cells, {"data-row": str(number)}))
    more = len(kinds) - _MOST_REASONS
    rest = f'<p class="note">{counted(more, "rarer reason")}: see the records.</p>' if more > 0 else ""
    heads = (("runs", "number"), ("status", ""), ("reason (an example of its kind)", "wrap"))
    table = html_table(heads, rows, label="Excluded and failed runs by reason", id="excluded-runs")
    return f'<p id="excluded-note">{total} of {counted(len(frame), "run")} were excluded or failed.</p>{table}{rest}'


def admission(frame: pd.DataFrame, labels: Sequence[str], checks: Sequence[StoredCheck]) -> str:
    """The admission checks: a row per model and check, and hidden ones for each setting that the page can select.

    `labels` names the model of each run. The figure is the worst; that of the equivalence is the model's parity, as on
    its card, to which every run contributes.
    """
    if not checks:
        return '<h3>Admission</h3><p class="note">The ledger holds no admission checks.</p>'
    named = dict(zip(zip(frame["model"], frame["fingerprint"], strict=True), labels, strict=True))
    groups: dict[tuple[str, str], list[StoredCheck]] = {}
    for check in checks:
        groups.setdefault((check.model, check.fingerprint), []).append(check)
    rows = [
        row
        for (model, fingerprint), mine in groups.items()
        for row in _rows(named.get((model, fingerprint), model), mine, frame[frame["fingerprint"] == fingerprint])
    ]
    heads = (("model", ""), ("check", ""), ("result", "wrap"), ("worst figure", "number"), ("limit", "number"))
    table = html_table((*heads, ("settings", "minor wrap")), rows, label="Admission checks", id="admission-checks")
    if len(groups) > _MOST_MODELS:
        failed = sum(not check.passed for check in checks)
        of = f"{counted(len(checks), 'check')} of {counted(len(groups), 'model')}"
        summary = f"{failed} of {of} failed" if failed else f"{of}: all pass"
        table = f"<details{' open' if failed else ''}><summary>{summary}</summary>{table}</details>"
    return (
        "<h3>Admission</h3><p>A checkpoint is audited only where it passes these checks on real windows. They belong "
        f"to a model and a setting: the other filters do not change them.</p>{table}"
    )


def _rows(label: str, checks: Sequence[StoredCheck], runs: pd.DataFrame) -> Iterator[Row]:
    """The rows of a model over all its settings, and below each check those of one setting, hidden."""
    settings = dict.fromkeys(check.setting for check in checks)
    for name in dict.fromkeys(check.check for check in checks):
        mine = [check for check in checks if check.check == name]
        yield Row(_cells(label, mine, runs["parity"]), {"data-model": label})
        for setting in settings:
            here = [check for check in mine if check.setting == setting]
            there = runs["lookback"].astype(str) + "x" + runs["horizon"].astype(str) == setting
            if here:
                marks = {"data-model": label, "data-setting": setting, "hidden": ""}
                yield Row(_cells(label, here, runs.loc[there, "parity"]), marks)


def _cells(label: str, checks: Sequence[StoredCheck], parities: pd.Series) -> tuple[str, ...]:
    failed = [check for check in checks if not check.passed]
    # A gradient's spread must be above its limit, every other figure below it.
    pick = min if checks[0].check == "gradient path" else max
    worst = pick(failed or checks, key=lambda check: check.figure)
    figure = worst_parity(checks, parities) if worst.check == EQUIVALENCE else worst.figure
    result = "pass"
    if failed:
        result = f"FAIL at {listed(dict.fromkeys(check.setting for check in failed))}: {failed[0].note}"
    settings = listed(dict.fromkeys(check.setting for check in checks))
    model, check, result, settings = map(escape_html, (label, worst.check, result, settings))
    shown = "–" if math.isnan(figure) else f"{figure:.2g}"
    name = f'<span class="name" title="{model}">{model}</span>'
    return name, check, result, shown, f"{worst.limit:.2g}", settings
