"""`hrx report`: a ledger as one page that opens from disk, and figures for print beside it.

Verdicts, exclusions, admission checks and the commands are written here as HTML and need no script. The page's script
draws the rest from the data of `hrx.reports.page.data`.
"""

import base64
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from hrx.records.ledger import Ledger
from hrx.records.record import DONE, EXCLUDED, FAILED
from hrx.reports.backbones import BackboneSummary, summarise_backbones
from hrx.reports.coverage import Coverage, overall
from hrx.reports.figures import figures
from hrx.reports.page import HEATMAP_SCRIPTS, embed, fill_page, link, made_by
from hrx.reports.page.context import context_section
from hrx.reports.page.data import arrange, choose_examples, model_labels, palette
from hrx.reports.page.excluded import admission, exclusion_kinds, exclusions, exclusions_json
from hrx.reports.page.reproduce import record_commands, reproduction
from hrx.reports.page.statistics import PageStatistics
from hrx.reports.runs import read
from hrx.reports.statistics import ClusteredMedian, GroupStatistics
from hrx.reports.summary import ModelSummary, SeasonalRuns, summarise
from hrx.reports.text import (
    bracketed,
    clean,
    counted,
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
SCRIPTS = (
    *HEATMAP_SCRIPTS, "page.js", "filters.js", "verdicts.js", "groups.js", "rankplot.js", "records.js", "report.js",
)  # fmt: skip
_LONGEST_NAME = 60


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
        checks, audits, plans = ledger.checks(), ledger.audits(), ledger.plans()
        examples = choose_examples(ledger, frame, labels, checks)
    kinds = exclusion_kinds(frame)
    data = {
        "runs": runs.as_json(),
        "statistics": PageStatistics(runs).as_json(),
        "examples": examples._asdict() | {"palette": palette()},
        "exclusions": exclusions_json(frame, kinds),
        "commands": record_commands(frame, audits),
    }
    heading = _heading(frame)
    summaries = list(zip(summarise(frame, checks, plans), dict.fromkeys(labels), strict=True))
    cards = _cards(summaries, summarise_backbones(frame, checks, plans))
    context = context_section([(label, summary.contexts) for summary, label in summaries])
    return fill_page(
        "report.html",
        SCRIPTS,
        {
            "title": f"{escape_html(heading)} – hrx report",
            "kicker": "hrx audit report",
            "heading": escape_html(heading),
            "facts": escape_html(_facts(frame, ledger_path.name, overall(frame, plans))),
            "verdicts": cards or "<p>The ledger holds no runs.</p>",
            "figures": _print_figures(drawn),
            "context": context,
            "context_link": '<a href="#context">Needed context</a>' if context else "",
            "excluded": exclusions(frame, kinds),
            "checks": admission(frame, labels, checks),
            "reproduce": reproduction(frame, audits, ledger_path.name),
            "footer": made_by(" from records alone"),
            "data": "\n".join(embed(name, value) for name, value in data.items()),
        },
    )


def _heading(frame: pd.DataFrame) -> str:
    models = list(dict.fromkeys(frame["model"].astype(str)))
    if not models:
        return "An audit without runs"
    if len(models) == 1:
        return f"What {models[0]} reads for each step of its forecast"
    return f"What {len(models)} models read for each step of their forecasts"


def _facts(frame: pd.DataFrame, name: str, plan: Coverage | None) -> str:
    done = int((frame["status"] == DONE).sum())
    days = sorted(frame["created"].dropna().astype(str).str[:10].unique())
    when = "" if not days else f", {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}"
    runs, datasets = counted(len(frame), "run"), counted(frame["dataset"].nunique(), "dataset")
    known = "how many were planned is not stored"
    if plan is not None:
        known = f"{plan.stored:,} of {counted(plan.planned, 'planned run')} stored"
    damaged = frame.attrs.get("damaged", 0)
    left_out = f". Left out: {counted(damaged, 'damaged record')}; hrx check names all" if damaged else ""
    return f"{name}: {runs}, {done:,} of them scored, on {datasets}{when}; {known}{left_out}"


def _print_figures(drawn: list[Path]) -> str:
    """The figures for print: embedded as SVG, and linked in every format."""
    if not drawn:
        return ""
    shown = []
    for vector in (path for path in drawn if path.suffix == ".svg"):
        names = [path.name for path in drawn if path.stem == vector.stem]
        links = listed(f'<a href="figures/{name}">{name.rpartition(".")[2]}</a>' for name in names)
        caption = vector.stem.rpartition("--")[2].replace("-", " ")
        data = base64.b64encode(vector.read_bytes()).decode()
        image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        shown.append(f"<figure>{image}<figcaption>{caption}: {links}</figcaption></figure>")
    note = "<p>Of all runs of the ledger that beat naive, whatever the filters are.</p>"
    return f'<details class="print-figures"><summary>Figures for print</summary>{note}{"".join(shown)}</details>'


def _cards(summaries: list[tuple[ModelSummary, str]], backbones: list[BackboneSummary]) -> str:
    """A card for each model; those of `hrx train` by backbone, each behind the card of its backbone."""
    parts = []
    for one in backbones:
        members = "".join(_card(summary, label) for summary, label in summaries if one.holds(summary))
        inside = f"{counted(one.total.models, 'trained model')} of {clean(one.backbone)}"
        folded = (
            f'<details class="members"><summary>{escape_html(inside)}</summary><div class="verdicts">{members}</div>'
        )
        parts += [_card(one.summary, clean(one.backbone), "backbone"), f"{folded}</details>"]
    parts += [_card(summary, label) for summary, label in summaries if not any(one.holds(summary) for one in backbones)]
    return f'<div class="verdicts">{"".join(parts)}</div>' if parts else ""


def _card(summary: ModelSummary, label: str, by: Literal["model", "backbone"] = "model") -> str:
    """The verdict on a checkpoint, and the figures behind it below. The page's script shows a selection's instead."""
    name = escape_html(shorten(clean(summary.model), _LONGEST_NAME))
    weights = f"weights {clean(summary.fingerprint)[:12]}"
    if by == "backbone":
        weights = "backbone"
    elif summary.checkpoint != summary.model:
        weights = f"{shorten(clean(summary.checkpoint), _LONGEST_NAME)}, {weights}"
    shown = _figures(summary, label, by)
    figures = "".join(f"<div><dt>{term}</dt><dd>{value}</dd></div>" for term, value in shown)
    return (
        f'<article class="verdict" data-tone="{summary.tone}" data-by="{by}" data-name="{escape_html(label)}">'
        f'<h3><span class="isolate">{name}</span> <span class="weights">{escape_html(weights)}</span></h3>'
        f'<div class="whole"><p class="says">{escape_html(summary.headline)}</p>'
        f'<p class="because">{escape_html(summary.because)}</p>'
        f'<dl class="figures">{figures}</dl></div><div class="selected" hidden></div></article>'
    )


def _figures(summary: ModelSummary, label: str, by: str) -> Iterator[tuple[str, str]]:
    def to(shown: object, **where: object) -> str:
        return f'<a href="{link(**{"at": "records", by: label}, **where)}">{escape_html(shown)}</a>'

    group = summary.beating_naive
    if summary.done:
        for name in ("g_margin", "g_own"):
            yield f"{name}, median", _gain(getattr(group, name), group.clustered[name], to)
        scored = counted(summary.done, "scored run")
        share = f'<span class="big">{escape_html(percent(summary.beats_naive))}</span>'
        yield "beats naive", f"{share}<small>{to(f'{group.runs} of {scored}', beats='all', status=DONE)}</small>"
        yield "beats seasonal naive", _seasonal(summary.seasonal, summary.done)
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


def _seasonal(found: SeasonalRuns, done: int) -> str:
    """The share of runs with a smaller error than repeating the last season; not part of the verdict."""
    if not found.known:
        return '<span class="big">–</span><small>unknown</small>'
    unknown = f", {done - found.known} unknown" if found.known < done else ""
    shown = f"{found.beating} of {counted(found.known, 'scored run')}{unknown}"
    return f'<span class="big">{escape_html(percent(found.share))}</span><small>{shown}</small>'


def _gain(gain: GroupStatistics, clustered: ClusteredMedian, to: Callable[..., str]) -> str:
    """The median with the interval of the verdict."""
    if not gain.n:
        return "–"
    few = " (few)" if gain.few else ""
    behind = to(f"{percent(gain.positive)} positive, n={gain.n}{few}", status=DONE)
    interval = bracketed(clustered.low, clustered.high)
    interval = "no interval: fewer than three series" if interval == "-" else interval
    return f'<span class="big">{signed(gain.median)}</span><small>{interval}</small><small>{behind}</small>'
