"""`hrx report`: a ledger as one page that opens from disk, and figures for print beside it.

Verdicts, exclusions, admission checks and the commands are written here as HTML and need no script. The page's script
draws the rest from the data of `hrx.reports.page.data`.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from hrx.audit.ledger.record import DONE, EXCLUDED, FAILED
from hrx.audit.ledger.store import Ledger, StoredAudit, StoredCheck
from hrx.reports.figures import figures
from hrx.reports.page import embed, fact_list, fill_page, html_table, link, made_by
from hrx.reports.page.data import PageStatistics, arrange, choose_examples, model_labels, palette
from hrx.reports.runs import GroupStatistics, read
from hrx.reports.summary import ModelSummary, count_reasons, reason_kinds, summarise
from hrx.reports.text import (
    clean,
    escape_html,
    listed,
    make_directory,
    number_or_none,
    percent,
    shorten,
    signed,
    write_bytes,
)

PAGE = "index.html"
SCRIPTS = ("core.js", "heatmap.js", "heatdraw.js", "filters.js", "groups.js", "rankplot.js", "records.js", "report.js")
_LONGEST_NAME = 60
_MOST_REASONS = 40
_VERSIONS = {
    "hrx": "hrx_version", "torch": "torch_version", "device": "device", "model libraries": "library",
    "adapters": "adapter_version", "measurement protocol": "protocol_version", "draws": "draws_kind",
    "weights (sha256)": "fingerprint",
}  # fmt: skip


class WrittenReport(NamedTuple):
    """The files of a report."""

    page: Path
    figures: list[Path]
    runs: int


def write_report(ledger_path: str | Path, out_dir: str | Path) -> WrittenReport:
    """Writes `index.html` and `figures/` of a ledger. Other files of the directory stay unchanged."""
    out = Path(out_dir)
    frame = read(ledger_path)
    make_directory(out / "figures")
    drawn = figures(ledger_path, out / "figures", frame)
    written = write_bytes(out / PAGE, render_report(Path(ledger_path), frame, drawn).encode())
    return WrittenReport(written, drawn, len(frame))


def render_report(ledger_path: Path, frame: pd.DataFrame, drawn: list[Path]) -> str:
    """The page of a ledger's runs, with its figures."""
    runs = arrange(frame)
    labels = model_labels(frame)
    with Ledger.open(ledger_path, create=False) as ledger:
        checks, audits = ledger.checks(), ledger.audits()
        shown, stored = choose_examples(ledger, frame, labels)
    statistics = PageStatistics(runs)
    data = {
        "runs": runs.as_json(),
        "statistics": statistics.groups(),
        "rank-points": statistics.rank_points(),
        "examples": {"shown": shown, "stored": stored, "palette": palette()},
    }
    heading = _heading(frame)
    cards = "".join(map(_card, summarise(frame, checks), dict.fromkeys(labels)))
    return fill_page(
        "report.html",
        SCRIPTS,
        {
            "title": f"{escape_html(heading)} – hrx report",
            "heading": escape_html(heading),
            "facts": escape_html(_facts(frame, ledger_path.name)),
            "verdicts": f'<div class="verdicts">{cards}</div>' if cards else "<p>The ledger holds no runs.</p>",
            "figures": _print_figures(drawn),
            "excluded": exclusions(frame),
            "checks": admission(checks),
            "reproduce": reproduction(frame, audits, ledger_path.name),
            "footer": made_by(" from records alone"),
            "data": "\n".join(embed(name, value) for name, value in data.items()),
        },
    )


def _heading(frame: pd.DataFrame) -> str:
    models = list(dict.fromkeys(frame["model"].astype(str)))
    if len(models) == 1:
        return f"What {models[0]} reads for each step of its forecast"
    return f"What {len(models)} models read for each step of their forecasts"


def _facts(frame: pd.DataFrame, name: str) -> str:
    done = int((frame["status"] == DONE).sum())
    days = sorted(frame["created"].dropna().astype(str).str[:10].unique())
    when = "" if not days else f", {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}"
    return f"{name}: {len(frame)} runs, {done} of them scored, on {frame['dataset'].nunique()} datasets{when}"


def _print_figures(drawn: list[Path]) -> str:
    """The figures for print: embedded as SVG, and linked in every format."""
    if not drawn:
        return ""
    shown = []
    for vector in (path for path in drawn if path.suffix == ".svg"):
        names = [path.name for path in drawn if path.stem == vector.stem]
        links = listed(f'<a href="figures/{name}">{name.rpartition(".")[2]}</a>' for name in names)
        caption = vector.stem.replace("-", " ")
        data = base64.b64encode(vector.read_bytes()).decode()
        image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        shown.append(f"<figure>{image}<figcaption>{caption}: {links}</figcaption></figure>")
    return f'<details class="print-figures"><summary>Figures for print</summary>{"".join(shown)}</details>'


def _card(summary: ModelSummary, label: str) -> str:
    """The verdict on a checkpoint, and the figures behind it below."""
    name = escape_html(shorten(clean(summary.model), _LONGEST_NAME))
    weights = f"weights {clean(summary.fingerprint)[:12]}"
    if summary.checkpoint != summary.model:
        weights = f"{shorten(clean(summary.checkpoint), _LONGEST_NAME)}, {weights}"
    figures = "".join(f"<div><dt>{term}</dt><dd>{shown}</dd></div>" for term, shown in _figures(summary, label))
    return (
        f'<article class="verdict" data-tone="{summary.tone}" data-model="{escape_html(label)}">'
        f'<h3><span class="isolate">{name}</span> <span class="weights">{escape_html(weights)}</span></h3>'
        f'<p class="says">{escape_html(summary.headline)}</p>'
        f'<p class="because">{escape_html(summary.because)}</p>'
        f'<dl class="figures">{figures}</dl></article>'
    )


def _figures(summary: ModelSummary, label: str) -> Iterator[tuple[str, str]]:
    def to(shown: object, **where: object) -> str:
        return f'<a href="{link(at="records", model=label, **where)}">{escape_html(shown)}</a>'

    group = summary.beating_naive
    if summary.done:
        for name in ("g_margin", "g_own"):
            yield f"{name}, median", _gain(getattr(group, name), to)
        share = f'<span class="big">{escape_html(percent(summary.beats_naive))}</span>'
        counted = to(f"{group.runs} of {summary.done} scored runs", beats="all", status=DONE)
        yield "beats naive", f"{share}<small>{counted}</small>"
    if (rank := number_or_none(summary.rank)) is not None:
        yield "rank (median)", f'<span class="big">{rank:.2f}</span>'
    counts = (
        (summary.done, "scored", DONE),
        (summary.excluded, "excluded", EXCLUDED),
        (summary.failed, "failed", FAILED),
    )
    shown = ", ".join(to(f"{n} {word}", status=status, beats="all") for n, word, status in counts if n)
    yield "runs", f'<span class="big">{summary.runs}</span><small>{shown}</small>'
    if not math.isnan(summary.parity):
        yield "worst parity", f'<span class="big">{summary.parity:.1e}</span><small>with the official call</small>'


def _gain(gain: GroupStatistics, to: Callable[..., str]) -> str:
    if not gain.n:
        return "–"
    few = " (few)" if gain.few else ""
    counted = to(f"{percent(gain.positive)} positive, n={gain.n}{few}", status=DONE)
    interval = f"[{signed(gain.low)}, {signed(gain.high)}]"
    return f'<span class="big">{signed(gain.median)}</span><small>{interval}</small><small>{counted}</small>'


def exclusions(frame: pd.DataFrame) -> str:
    """Excluded and failed runs: the reasons by kind, most frequent first, each with its number of runs."""
    statuses = [str(status) for status in frame["status"].unique() if status != DONE]
    if not statuses:
        return f"<p>Nothing was excluded, and nothing failed: all {len(frame)} runs were scored.</p>"
    kinds = [(status, one) for status in statuses for one in reason_kinds(count_reasons(frame, status))]
    kinds.sort(key=lambda pair: -pair[1].runs)
    rows = []
    for status, one in kinds[:_MOST_REASONS]:
        count = f'<a href="{link(at="records", status=status, beats="all", search=one.kind)}">{one.runs}</a>'
        rows.append((count, escape_html(status), escape_html(one.example)))
    more = len(kinds) - _MOST_REASONS
    rest = f'<p class="note">{more} rarer reasons are in the records.</p>' if more > 0 else ""
    heads = (("runs", "number"), ("status", ""), ("reason (an example of its kind)", "wrap"))
    return html_table(heads, rows) + rest


def admission(checks: Sequence[StoredCheck]) -> str:
    """The admission checks: one line per model and check, with the worst figure; failures in full."""
    if not checks:
        return '<p class="note">The ledger holds no admission checks.</p>'
    groups: dict[tuple[str, str, str], list[StoredCheck]] = {}
    for check in checks:
        groups.setdefault((check.model, check.fingerprint, check.check), []).append(check)
    heads = (("model", ""), ("check", ""), ("result", "wrap"), ("worst figure", "number"), ("limit", "number"))
    return (
        "<h3>Admission</h3><p>A checkpoint is audited only where it passes these checks on real windows.</p>"
        + html_table((*heads, ("settings", "minor wrap")), map(_check_row, groups.values()))
    )


def _check_row(checks: Sequence[StoredCheck]) -> tuple[str, ...]:
    failed = [check for check in checks if not check.passed]
    # A gradient's spread must be above its limit, every other figure below it.
    pick = min if checks[0].check == "gradient path" else max
    worst = pick(failed or checks, key=lambda check: check.figure)
    result = "pass"
    if failed:
        result = f"FAIL at {listed(dict.fromkeys(check.setting for check in failed))}: {failed[0].note}"
    settings = listed(dict.fromkeys(check.setting for check in checks))
    model, check, result, settings = map(escape_html, (worst.model, worst.check, result, settings))
    figure = "–" if math.isnan(worst.figure) else f"{worst.figure:.2g}"
    name = f'<span class="name" title="{model}">{model}</span>'
    return name, check, result, figure, f"{worst.limit:.2g}", settings


def reproduction(frame: pd.DataFrame, audits: Sequence[StoredAudit], ledger_name: str) -> str:
    """The commands that reproduce these runs and this page, and the versions that made them."""
    if frame.empty:
        return "<p>There is nothing to reproduce.</p>"
    commands = [_stored_command(audit) for audit in audits] or [
        _derived_command(str(model), runs) for model, runs in frame.groupby("model", sort=False)
    ]
    lines = "\n".join(map(escape_html, [*commands, f"hrx report {ledger_name} --out DIR"]))
    versions = {
        name: listed(frame[column].dropna().astype(str).unique()) or "unknown" for name, column in _VERSIONS.items()
    }
    digest = hashlib.sha256("\n".join(sorted(frame["key"].astype(str))).encode()).hexdigest()
    return (
        "<p>The same command on the same machine gives the same digits. SOURCE, if it occurs below, means the data "
        "(<code>sample</code>, <code>gift-eval</code>, a directory, a file). Stored runs are not run again.</p>"
        f"<pre>{lines}</pre>" + fact_list(versions | {"these runs (sha256 of their sorted keys)": digest})
    )


def _stored_command(audit: StoredAudit) -> str:
    """The command of an audit, from its stored settings."""
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


def _derived_command(model: str, runs: pd.DataFrame) -> str:
    """A command for a model's runs, from their columns: for ledgers without stored settings."""
    settings = ",".join(
        dict.fromkeys(f"{lookback}x{h}" for lookback, h in zip(runs["lookback"], runs["horizon"], strict=True))
    )
    estimators = " ".join(
        f"--estimator {name}" for name in runs["estimator"].dropna().unique() if name != "input_gradient"
    )
    seeds, windows, draws = runs["seed"].nunique(), runs["windows"].max(), runs["draws"].max()
    series = runs.groupby("dataset")["series"].nunique().max()
    counts = f"--series {series} --windows {windows} --seeds {seeds} --draws {draws}"
    return f"hrx audit {model} --data SOURCE --settings {settings} {counts} {estimators}".rstrip()
