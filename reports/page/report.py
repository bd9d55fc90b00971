"""`hrx report`: a ledger as one page that opens from disk, and figures for print beside it.

Verdicts, exclusions, admission checks and the commands are written by the templates and need no script. The page's
script draws the rest from the data of `hrx.reports.page.data`; it counts the excluded runs of its selection too, and
hides the rows that do not belong to it.
"""

import base64
import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from hrx.records.contract import Contract
from hrx.records.ledger import Ledger
from hrx.records.record import DONE, StoredAudit, StoredCheck
from hrx.reports.audit_summary import audit_screen, summarise_backbones
from hrx.reports.commands import audit_words, options
from hrx.reports.context import context_section
from hrx.reports.contract import contracts_section
from hrx.reports.figures import figures
from hrx.reports.page import HEATMAP_SCRIPTS, made_by, render_page, to_json
from hrx.reports.page.data import Json, PageStatistics, arrange, choose_examples, model_labels, palette, split_groups
from hrx.reports.runs import NO_REASON, PlanProgress, ReasonKind, count_reasons, overall_progress, read, reason_kinds
from hrx.reports.screen import model_screen
from hrx.reports.summary import EQUIVALENCE, summarise, worst_parity
from hrx.reports.tables import tables
from hrx.reports.tables.scored import DEFAULT_ESTIMATOR
from hrx.reports.text import clean, counted, listed, make_directory, write_bytes

PAGE, PARTS = "index.html", "index-data"
MOST_EMBEDDED = 4_000_000
"""Bytes of parts that stand in the page itself; more of them stand beside it, in `PARTS`."""
SCRIPTS = (
    *HEATMAP_SCRIPTS, "page.js", "filters.js", "verdicts.js", "groups.js", "rankplot.js", "records.js", "report.js",
)  # fmt: skip
_MOST_MODELS = 12
"""Checks of more models are folded, unless one failed."""
_MOST_REASONS = 40
_NARROWED = ("data", "settings", "seeds")
"""What the command of one record has in its own, narrower form."""
_NAMED_SOURCES = ("sample", "gift-eval")
"""Sources whose datasets can be chosen by name."""
_VERSIONS = {
    "hrx": "hrx_version", "torch": "torch_version", "device": "device", "model libraries": "library",
    "adapters": "adapter_version", "measurement protocol": "protocol_version", "draws": "draws_kind",
    "weights (sha256)": "fingerprint",
}  # fmt: skip


class WrittenReport(NamedTuple):
    """Files of a report."""

    page: Path
    figures: list[Path]
    runs: int


def write_report(ledger_path: str | Path, out_dir: str | Path, contracts: Sequence[Contract] = ()) -> WrittenReport:
    """Writes `index.html`, with the contracts of its models, and `figures/` of a ledger; leaves other files alone."""
    out = Path(out_dir)
    frame = read(ledger_path)
    make_directory(out / "figures")
    drawn = figures(ledger_path, out / "figures", frame)
    page, parts = render_report(Path(ledger_path), frame, drawn, contracts)
    for name, script in parts.items():
        make_directory(out / PARTS)
        write_bytes(out / PARTS / f"{name}.js", script.encode())
    return WrittenReport(write_bytes(out / PAGE, page.encode()), drawn, len(frame))


def render_report(
    ledger_path: Path, frame: pd.DataFrame, drawn: list[Path], contracts: Sequence[Contract] = ()
) -> tuple[str, dict[str, str]]:
    """Page of a ledger's runs with its figures, and the scripts beside it by name; none where all fits into the page.

    A script holds one part of the data. The page's policy runs it by a nonce, since a file has no other origin.
    """
    runs = arrange(frame)
    labels = model_labels(frame)
    with Ledger.open(ledger_path, create=False) as ledger:
        checks, audits, plans = ledger.checks(), ledger.audits(), ledger.plans()
        examples, stored = choose_examples(ledger, frame, labels, checks)
    kinds = exclusion_kinds(frame)
    summaries = list(zip(summarise(frame, checks, plans), dict.fromkeys(labels), strict=True))
    backbones = summarise_backbones(frame, checks, plans)
    heading = _heading(frame)
    found = PageStatistics(runs)
    statistics, parts = split_groups(found.as_json())
    of, commands = record_commands(frame, audits)
    parts |= found.points() | runs.parts(of) | {f"example-{item['run']}": item for item in examples}
    written = {name: to_json(part) for name, part in parts.items()}
    beside = sum(map(len, written.values())) > MOST_EMBEDDED
    digest = hashlib.sha256("".join(written.values()).encode()).hexdigest() if beside else ""
    offered = [{"run": item["run"], "why": item["why"]} for item in examples]
    page = render_page(
        "report.html",
        SCRIPTS,
        {
            "runs": runs.as_json(),
            "statistics": statistics,
            "examples": {"shown": offered, "stored": stored, "palette": palette()},
            "exclusions": exclusions_json(frame, kinds),
            "commands": commands,
            **({} if beside else parts),
        },
        nonce=digest,
        title=f"{heading} – hrx report",
        kicker="hrx audit report",
        heading=heading,
        facts=_facts(frame, ledger_path.name, overall_progress(frame, plans)),
        backbones=[(one, [pair for pair in summaries if one.holds(pair[0])]) for one in backbones],
        models=[pair for pair in summaries if not any(one.holds(pair[0]) for one in backbones)],
        screen_of=model_screen,
        screen=audit_screen([one for one, _ in summaries], backbones, ledger_path.name, _asked(audits)),
        figures=[
            {
                "caption": vector.stem.rpartition("--")[2].replace("-", " "),
                "svg": base64.b64encode(vector.read_bytes()).decode(),
                "files": [(path.name, path.suffix[1:]) for path in drawn if path.stem == vector.stem],
            }
            for vector in (path for path in drawn if path.suffix == ".svg")
        ],
        context=context_section([(label, summary.contexts) for summary, label in summaries]),
        channels=_channels(frame),
        contracts=contracts_section(contracts),
        exclusions=(kinds[:_MOST_REASONS], len(kinds[_MOST_REASONS:]), sum(one.runs for _, one in kinds), len(frame)),
        admission=admission(frame, labels, checks),
        reproduce=reproduction(frame, audits, ledger_path.name),
        footer=made_by(" from records alone"),
    )
    return page, {name: f'hrx.receive("{name}", {part});\n' for name, part in written.items()} if beside else {}


class ChannelTable(NamedTuple):
    """The table `covariates` without what is the same for all channels of a model."""

    heads: list[tuple[str, str]]
    """With the class of their cells."""
    rows: list[tuple[str, ...]]
    note: str


def _channels(frame: pd.DataFrame) -> ChannelTable | None:
    """Channels of the runs of one estimator; None without covariates."""
    with_channels = frame[["channel_effects", "channels_left_out"]].notna().any(axis=1) & (frame["axis"] != "whole")
    names = frame.loc[with_channels & (frame["status"] == DONE), "estimator"].unique()
    if not len(names):
        return None
    estimator = DEFAULT_ESTIMATOR if DEFAULT_ESTIMATOR in names else str(names[0])
    (table,) = tables(frame, "covariates", estimator=estimator)
    shown = table.shown[:-3]  # without naive verdicts and leakage, which the page has by model and dataset
    heads = [("Model, dataset", ""), *((one.title(), "number" if one.is_number else "") for one in shown)]
    rows = [(row.section, *(row.cells[one.place].text for one in shown)) for row in table.rows]
    return ChannelTable(heads, rows, table.note)


def _asked(audits: Sequence[StoredAudit]) -> dict[str, object]:
    """Settings of the only audit of a ledger; of several, none."""
    found: dict[str, object] = json.loads(audits[0].settings) if len(audits) == 1 else {}
    return found


def _heading(frame: pd.DataFrame) -> str:
    models = frame["model"].astype(str).unique()
    if len(models) > 1:
        return f"What {len(models)} models read for each step of their forecasts"
    return f"What {models[0]} reads for each step of its forecast" if len(models) else "An audit without runs"


def _facts(frame: pd.DataFrame, name: str, plan: PlanProgress | None) -> str:
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


def exclusion_kinds(frame: pd.DataFrame) -> list[tuple[str, ReasonKind]]:
    """Kinds of excluded and failed runs with their statuses, most frequent first."""
    statuses = [str(status) for status in frame["status"].unique() if status != DONE]
    kinds = [(status, one) for status in statuses for one in reason_kinds(count_reasons(frame, status))]
    return sorted(kinds, key=lambda kind: -kind[1].runs)


def exclusions_json(frame: pd.DataFrame, kinds: Sequence[tuple[str, ReasonKind]]) -> Json:
    """`rows`, the status of each row of the table and what finds its runs, and `of`, the row of each run or -1."""
    rows = {(status, reason.kind): row for row, (status, reason) in enumerate(kinds[:_MOST_REASONS])}
    reasons = [str(reason).partition(":")[0] for reason in frame["reason"].fillna(NO_REASON)]
    of = [rows.get(pair, -1) for pair in zip(frame["status"], reasons, strict=True)]
    return {"rows": [{"status": status, "search": clean(kind)} for status, kind in rows], "of": of}


class CheckRow(NamedTuple):
    """An admission check of a model: over all its settings, or at one of them."""

    model: str
    check: str
    result: str
    figure: str
    limit: str
    settings: str
    setting: str = ""
    """Setting of a row that is hidden until the page selects it."""


def admission(
    frame: pd.DataFrame, labels: Sequence[str], checks: Sequence[StoredCheck]
) -> tuple[list[CheckRow], str, bool]:
    """Rows of all models and checks, what they are folded behind (nothing for few models), and whether it is open.

    Below each check stand hidden rows for each setting that the page can select. `labels` names the model of each run.
    The figure is the worst; that of the equivalence is the model's parity, as on its card, to which every run
    contributes.
    """
    named = dict(zip(zip(frame["model"], frame["fingerprint"], strict=True), labels, strict=True))
    groups: dict[tuple[str, str], dict[str, list[StoredCheck]]] = {}
    for check in checks:
        groups.setdefault((check.model, check.fingerprint), {}).setdefault(check.check, []).append(check)
    rows = []
    for (model, fingerprint), by_name in groups.items():
        label, runs = named.get((model, fingerprint), model), frame[frame["fingerprint"] == fingerprint]
        settings = runs["lookback"].astype(str) + "x" + runs["horizon"].astype(str)
        for mine in by_name.values():
            rows.append(_check_row(label, mine, runs["parity"]))
            for setting in dict.fromkeys(check.setting for check in mine):
                here = [check for check in mine if check.setting == setting]
                parities = runs.loc[settings == setting, "parity"]
                rows.append(_check_row(label, here, parities)._replace(setting=setting))
    failed = sum(not check.passed for check in checks)
    folded = ""
    if len(groups) > _MOST_MODELS:
        of = f"{counted(len(checks), 'check')} of {counted(len(groups), 'model')}"
        folded = f"{failed} of {of} failed" if failed else f"{of}: all pass"
    return rows, folded, failed > 0


def _check_row(label: str, checks: Sequence[StoredCheck], parities: pd.Series) -> CheckRow:
    failed = [check for check in checks if not check.passed]
    # A gradient's spread must be above its limit, every other figure below it.
    pick = min if checks[0].check == "gradient path" else max
    worst = pick(failed or checks, key=lambda check: check.figure)
    figure = worst_parity(checks, parities) if worst.check == EQUIVALENCE else worst.figure
    result = "pass"
    if failed:
        result = f"FAIL at {listed(dict.fromkeys(check.setting for check in failed))}: {failed[0].note}"
    settings = listed(dict.fromkeys(check.setting for check in checks))
    shown = "–" if math.isnan(figure) else f"{figure:.2g}"
    return CheckRow(label, worst.check, result, shown, f"{worst.limit:.2g}", settings)


def reproduction(
    frame: pd.DataFrame, audits: Sequence[StoredAudit], ledger_name: str
) -> tuple[list[str], str, str, dict[str, str]]:
    """Commands that made the runs and the page, the ledger's name for a shell, a remark, and the versions behind them.

    A ledger stores names, not paths: `PATH` stands for the folder of a file.
    """
    if frame.empty:
        return [], "", "", {}
    asked = [json.loads(audit.settings) for audit in audits]
    commands = [shlex.join(audit_words(one)) for one in asked]
    remark = ""
    if any("PATH/" in command for command in commands):
        remark = (
            "Replace PATH by the folder of that file or directory, which the ledger does not store; the hash of the "
            "weights below identifies a checkpoint."
        )
    versions = {
        name: listed(frame[column].dropna().astype(str).unique()) or "unknown" for name, column in _VERSIONS.items()
    }
    digest = hashlib.sha256("\n".join(sorted(frame["key"].astype(str))).encode()).hexdigest()
    versions["these runs (sha256 of their sorted keys)"] = digest
    page = shlex.join(["hrx", "report", ledger_name, "--out", "hrx-report"])
    return [*commands, page], shlex.quote(ledger_name), remark, versions


def record_commands(frame: pd.DataFrame, audits: Sequence[StoredAudit]) -> tuple[list[int], list[Json]]:
    """The command of each run, or -1, and the commands, as the page needs them for that of one record.

    A command has `models`, `data`, `narrow` (whether `data` can name one dataset) and `rest`, all other words.
    """
    asked = {audit.digest: json.loads(audit.settings) for audit in audits}
    of = pd.Series(-1, index=frame.index)
    commands: list[Json] = []
    known = frame[frame["request"].isin(list(asked))]
    for (request, model), runs in known.groupby(["request", "model"], sort=False):
        settings = asked[str(request)]
        models = [str(word) for word in settings.get("models") or []]
        words = [word for word in models if str(model) in {word, *word.replace(":", "/").split("/")[-2:]}]
        data = settings.get("data")
        source = str(data or "sample").partition(":")[0]
        narrow = source in _NAMED_SOURCES
        of[runs.index] = len(commands)
        rest = options(settings, but=_NARROWED)
        commands.append({"models": words or models, "data": source if narrow else data, "narrow": narrow, "rest": rest})
    return of.tolist(), commands
