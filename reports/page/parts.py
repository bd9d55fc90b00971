"""The parts of the report that need no script: verdicts, exclusions, admission checks, how to reproduce it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from hrx.audit.ledger.record import DONE, EXCLUDED, FAILED
from hrx.audit.ledger.store import StoredAudit, StoredCheck
from hrx.reports.layout import clean, shorten
from hrx.reports.page.html import link, text
from hrx.reports.summary import Gain, ModelSummary
from hrx.reports.words import listed, number_or_none, percent, signed

_LONGEST_NAME = 60
_MOST_REASONS = 40


def verdicts(summaries: Sequence[ModelSummary], labels: Sequence[str]) -> str:
    """A card for each checkpoint: its verdict first, the figures behind it below."""
    if not summaries:
        return "<p>The ledger holds no runs.</p>"
    cards = (_card(summary, label) for summary, label in zip(summaries, labels, strict=True))
    return f'<div class="verdicts">{"".join(cards)}</div>'


def _card(summary: ModelSummary, label: str) -> str:
    says, because = headline(summary.verdict)
    name = text(shorten(clean(summary.model), _LONGEST_NAME))
    weights = f"weights {clean(summary.fingerprint)[:12]}"
    if summary.checkpoint != summary.model:
        weights = f"{shorten(clean(summary.checkpoint), _LONGEST_NAME)}, {weights}"
    figures = "".join(f"<div><dt>{term}</dt><dd>{shown}</dd></div>" for term, shown in _figures(summary, label))
    return (
        f'<article class="verdict" data-tone="{tone(summary)}" data-model="{text(label)}">'
        f'<h3><span class="isolate">{name}</span> <span class="weights">{text(weights)}</span></h3>'
        f'<p class="says">{text(says)}</p>'
        f'<p class="because">{text(because)}</p>'
        f'<dl class="figures">{figures}</dl></article>'
    )


def headline(verdict: str) -> tuple[str, str]:
    """A verdict's sentence before and after its first colon; one within brackets, as in `(n<10: few runs)`, is none."""
    outside = re.sub(r"\([^)]*\)", lambda bracket: "_" * len(bracket.group()), verdict)
    at = outside.find(": ")
    return (verdict, "") if at < 0 else (verdict[:at], verdict[at + 2 :])


def tone(summary: ModelSummary) -> str:
    """How the card is marked: what the rules of `hrx.reports.summary` came to."""
    own, margin = summary.beating_naive.g_own, summary.beating_naive.g_margin
    if not summary.admitted:
        return "none"
    if not summary.beating_naive.runs or summary.beating_naive.few:
        return "few"
    if margin.low > 0:
        return "yes" if own.low > 0 else "partly"
    return "contrary" if margin.high < 0 else "no"


def _figures(summary: ModelSummary, label: str) -> Iterator[tuple[str, str]]:
    def to(shown: object, **where: object) -> str:
        return f'<a href="{link(at="records", model=label, **where)}">{text(shown)}</a>'

    group = summary.beating_naive
    if summary.done:
        for name in ("g_margin", "g_own"):
            yield f"{name}, median", _gain(getattr(group, name), to)
        share = f'<span class="big">{text(percent(summary.beats_naive))}</span>'
        counted = to(f"{group.runs} of {summary.done} scored runs", beats="all", status=DONE)
        yield "beats naive", f"{share}<small>{counted}</small>"
    if (rank := number_or_none(summary.rank)) is not None:
        yield "rank (median)", f'<span class="big">{rank:.2f}</span>'
    counts = [
        (summary.done, "scored", DONE),
        (summary.excluded, "excluded", EXCLUDED),
        (summary.failed, "failed", FAILED),
    ]
    shown = ", ".join(to(f"{count} {word}", status=status, beats="all") for count, word, status in counts if count)
    yield "runs", f'<span class="big">{summary.runs}</span><small>{shown}</small>'
    if not math.isnan(summary.parity):
        yield "worst parity", f'<span class="big">{summary.parity:.1e}</span><small>with the official call</small>'


def _gain(gain: Gain, to: Callable[..., str]) -> str:
    if not gain.n:
        return "–"
    few = " (few)" if gain.few else ""
    counted = to(f"{percent(gain.positive)} positive, n={gain.n}{few}", status=DONE)
    interval = text(f"[{signed(gain.low)}, {signed(gain.high)}]")
    return f'<span class="big">{text(signed(gain.median))}</span><small>{interval}</small><small>{counted}</small>'


def exclusions(frame: pd.DataFrame) -> str:
    """What was not scored, and why: the reasons by kind, most frequent first, each with its runs."""
    unscored = frame[frame["status"] != DONE]
    if unscored.empty:
        return f"<p>Nothing was excluded, and nothing failed: all {len(frame)} runs were scored.</p>"
    reasons = unscored["reason"].fillna("no reason was recorded").astype(str)
    kind = reasons.str.partition(":")[0]
    table = pd.DataFrame({"status": unscored["status"], "kind": kind, "reason": reasons})
    groups = sorted(table.groupby(["status", "kind"], sort=False), key=lambda group: -len(group[1]))
    rows = "".join(_reason(str(status), str(kind), runs["reason"]) for (status, kind), runs in groups[:_MOST_REASONS])
    more = len(groups) - _MOST_REASONS
    rest = f'<p class="note">{more} rarer reasons are in the records.</p>' if more > 0 else ""
    return (
        '<div class="wide"><table class="data"><thead><tr><th scope="col" class="number">runs</th>'
        '<th scope="col">status</th><th scope="col">reason (an example of its kind)</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{rest}"
    )


def _reason(status: str, kind: str, reasons: pd.Series) -> str:
    example, alike = str(reasons.iloc[0]), reasons.nunique() - 1
    shown = shorten(clean(example), 240) + (f" (and {alike} more like it)" if alike else "")
    count = f'<a href="{link(at="records", status=status, beats="all", search=kind)}">{len(reasons)}</a>'
    return f'<tr><td class="number">{count}</td><td>{text(status)}</td><td class="wrap">{text(shown)}</td></tr>'


def admission(checks: Sequence[StoredCheck]) -> str:
    """The admission checks: one line per model and check, with the worst figure; failures in full."""
    if not checks:
        return '<p class="note">The ledger holds no admission checks.</p>'
    groups: dict[tuple[str, str, str], list[StoredCheck]] = {}
    for check in checks:
        groups.setdefault((check.model, check.fingerprint, check.check), []).append(check)
    rows = "".join(_checked(found) for found in groups.values())
    return (
        "<h3>Admission</h3><p>A checkpoint is audited only where it passes these checks on real windows.</p>"
        '<div class="wide"><table class="data"><thead><tr><th scope="col">model</th><th scope="col">check</th>'
        '<th scope="col">result</th><th scope="col" class="number">worst figure</th>'
        '<th scope="col" class="number">limit</th><th scope="col" class="minor">settings</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _checked(found: Sequence[StoredCheck]) -> str:
    failed = [check for check in found if not check.passed]
    # A gradient's spread must be above its limit, every other figure below it: the worst one is on that side.
    pick = min if found[0].check == "gradient path" else max
    worst = pick(failed or found, key=lambda check: check.figure)
    result = "pass"
    if failed:
        result = f"FAIL at {listed(dict.fromkeys(check.setting for check in failed))}: {failed[0].note}"
    settings = listed(dict.fromkeys(check.setting for check in found))
    return (
        f'<tr><td><span class="name" title="{text(worst.model)}">{text(worst.model)}</span></td>'
        f'<td>{text(worst.check)}</td><td class="wrap">{text(result)}</td>'
        f'<td class="number">{"–" if math.isnan(worst.figure) else f"{worst.figure:.2g}"}</td>'
        f'<td class="number">{worst.limit:.2g}</td><td class="minor wrap">{text(settings)}</td></tr>'
    )


def reproduction(frame: pd.DataFrame, audits: Sequence[StoredAudit], ledger_name: str) -> str:
    """The commands that make these runs and this page again, and the versions that made them."""
    if frame.empty:
        return "<p>There is nothing to reproduce.</p>"
    commands = "\n".join(map(_asked, audits)) or "\n".join(
        _found(str(model), runs) for model, runs in frame.groupby("model", sort=False)
    )
    page = f"hrx report {ledger_name} --out DIR"
    versions = "".join(
        f"<dt>{name}</dt><dd>{text(listed(dict.fromkeys(frame[column].dropna().astype(str))) or 'unknown')}</dd>"
        for name, column in (
            ("hrx", "hrx_version"),
            ("torch", "torch_version"),
            ("model libraries", "library"),
            ("adapters", "adapter_version"),
            ("measurement protocol", "protocol_version"),
            ("draws", "draws_kind"),
            ("weights (sha256)", "fingerprint"),
        )
    )
    digest = hashlib.sha256("\n".join(sorted(frame["key"].astype(str))).encode()).hexdigest()
    return (
        "<p>The same command gives the same digits: seeds are fixed. SOURCE, if it stands below, is where the data are "
        "(<code>sample</code>, <code>gift-eval</code>, a directory, a file). What a ledger holds is not run again.</p>"
        f"<pre>{text_lines(commands)}\n{text(page)}</pre>"
        f'<dl class="record">{versions}<dt>these runs (sha256 of their sorted keys)</dt><dd>{digest}</dd></dl>'
    )


def _asked(audit: StoredAudit) -> str:
    """The command of an audit, from the settings that the ledger keeps of it."""
    settings = json.loads(audit.settings)
    models = settings.pop("models", [])
    parts = ["hrx audit", *map(str, models)]
    for name, value in settings.items():
        if value is True:
            parts.append(f"--{name}")
        elif isinstance(value, list):
            parts += [f"--{name} {one}" for one in value]
        elif value not in (None, False, "", 0):
            parts.append(f"--{name} {value}")
    return " ".join(parts)


def _found(model: str, runs: pd.DataFrame) -> str:
    """A command that makes a model's runs, from what they were: for ledgers that keep no settings of their audits."""
    settings = ",".join(
        dict.fromkeys(f"{lookback}x{h}" for lookback, h in zip(runs["lookback"], runs["horizon"], strict=True))
    )
    estimators = " ".join(
        f"--estimator {name}" for name in runs["estimator"].dropna().unique() if name != "input_gradient"
    )
    seeds, windows, draws = runs["seed"].nunique(), runs["windows"].max(), runs["draws"].max()
    series = runs.groupby("dataset")["series"].nunique().max()
    parts = [
        f"hrx audit {model} --data SOURCE --settings {settings}",
        f"--series {series} --windows {windows} --seeds {seeds} --draws {draws}",
        estimators,
    ]
    return " ".join(part for part in parts if part)


def text_lines(block: str) -> str:
    """Escaped text that keeps its lines."""
    return "\n".join(map(text, block.splitlines()))
