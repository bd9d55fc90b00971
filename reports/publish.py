"""What a model's page and a leaderboard show of an audit: card section, evaluation results, badge, submission files.

The formats of the hub are those of `huggingface_hub`'s own classes. Nothing is uploaded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hrx import __version__
from hrx.errors import HrxError, install_command, unknown
from hrx.records.contract import Contract
from hrx.records.evaluation import METRICS, Evaluation
from hrx.records.ledger import Ledger
from hrx.records.quantities import GAINS
from hrx.reports.contract import contract_markdown
from hrx.reports.runs import frame_of
from hrx.reports.summary import ModelSummary, summarise
from hrx.reports.text import clean, counted, escape_markdown, make_directory, number_or_none, write_bytes

CONFIGURATIONS = 97
"""Of GIFT-Eval's leaderboard."""
GIFT_EVAL = "Salesforce/GiftEval"
TASK = "time-series-forecasting"
SHORT = {"MASE[0.5]": "mase", "mean_weighted_sum_quantile_loss": "crps"}
COLOURS = {"yes": "brightgreen", "partly": "yellowgreen", "few": "lightgrey", "none": "lightgrey"}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Declared(NamedTuple):
    """What a person says about a model; no file states it."""

    link: str = ""
    """Where the records are."""
    leakage: str | None = None
    """Whether the model saw the benchmark's test data: yes or no."""
    model_type: str = "zero-shot"
    org: str = ""
    code: str = ""


@dataclass
class Written:
    """Files of a publication, and why there is no submission."""

    files: dict[Path, str] = field(default_factory=dict)
    refused: str = ""


def write_publication(
    ledger_path: Path,
    out: Path,
    declared: Declared,
    *,
    model: str | None = None,
    contract: Contract | None = None,
    evaluation: Evaluation | None = None,
) -> Written:
    """Write the files of one model of a ledger to a folder."""
    with Ledger.open(ledger_path, create=False) as ledger:
        frame = frame_of(ledger)
        summary = _one(summarise(frame, ledger.checks(), ledger.plans()), model)
    runs = frame[(frame["model"] == summary.model) & (frame["fingerprint"] == summary.fingerprint)]
    if evaluation is not None and evaluation.fingerprint != summary.fingerprint:
        raise HrxError(
            f"The evaluation is of {evaluation.model} (sha256 {evaluation.fingerprint[:12]}), the ledger of "
            f"{summary.model} (sha256 {summary.fingerprint[:12]}). Give those of one model."
        )
    results = _results(summary, sorted(runs["dataset"].unique()), declared, evaluation)
    out, written = make_directory(out), Written()

    def write(name: str, text: str, what: str) -> None:
        make_directory((out / name).parent)
        written.files[write_bytes(out / name, text.encode())] = what

    write("README-section.md", card(summary, declared, contract, evaluation), "section for the model card")
    write("model-index.yaml", results.model_index, "metadata for the front matter of the model card")
    if results.entries:
        write(".eval_results/gift-eval.yaml", results.entries, "evaluation results for the model's repository")
    write("badge.json", json.dumps(badge(summary), indent=1), "badge: https://img.shields.io/endpoint?url=…")
    if contract is not None:
        write("contract.json", json.dumps(contract.as_json(), indent=1), "contract of the official call")
    written.refused = refusal(evaluation, declared)
    if evaluation is not None and not written.refused:
        folder = f"gift-eval/{re.sub(r'[^A-Za-z0-9._-]+', '-', summary.model)}"
        write(
            f"{folder}/all_results.csv", evaluation.to_frame().to_csv(index=False), "results of a GIFT-Eval submission"
        )
        write(f"{folder}/config.json", json.dumps(submission(evaluation, declared), indent=4), "its declaration")
    return written


def _one(found: list[ModelSummary], name: str | None) -> ModelSummary:
    chosen = [one for one in found if name in (None, one.model)]
    if not chosen:
        raise HrxError(unknown("model", str(name), [one.model for one in found]))
    if len(chosen) > 1:
        names = ", ".join(dict.fromkeys(clean(one.model) for one in chosen))
        raise HrxError(
            f"The ledger holds {len(chosen)} models: {names}. Publish one: --model NAME, from a ledger of its own."
        )
    return chosen[0]


def badge(summary: ModelSummary) -> dict[str, Any]:
    """Return the endpoint of shields.io: what the audit found in a few words."""
    return {
        "schemaVersion": 1,
        "label": "hrx audit",
        "message": clean(summary.headline),
        "color": COLOURS.get(summary.tone, "orange"),
    }


def card(summary: ModelSummary, declared: Declared, contract: Contract | None, evaluation: Evaluation | None) -> str:
    """Return the section of a model card, in Markdown."""
    facts = [f"- {name}: {escape_markdown(text)}" for name, text in summary.facts.items()]
    rows: list[tuple[str, ...]] = [("quantity", "median", "95 % interval", "positive", "sign test p")]
    for title, group in summary.groups:
        rows += [(f"`{name}`, {title} ({group.size})", *group.evidence[name].cells) for name in GAINS]
    rows.insert(1, ("---",) * 5)
    parts = [
        "## What each forecast step reads",
        f"**{escape_markdown(summary.headline)}**: {escape_markdown(summary.because)}",
        "\n".join(facts),
        "\n".join(f"| {' | '.join(row)} |" for row in rows) if summary.done else "",
        "`g_own`: a step's own row explains it better than one vector for all steps. `g_shuffled`: another step's row "
        "does. `g_margin`: their difference. Shares of the variance of the forecasts.",
    ]
    if evaluation is not None and evaluation.done:
        parts += ["### GIFT-Eval", _scores(evaluation)]
    where = f" [Records]({declared.link})." if declared.link else ""
    parts.append(f"Audited by hrx {__version__}, weights sha256 `{summary.fingerprint[:16]}`.{where}")
    if contract is not None:
        parts.append(contract_markdown(contract))
    return "\n\n".join(part for part in parts if part) + "\n"


def _scores(evaluation: Evaluation) -> str:
    heads = ("configuration", "MASE", "CRPS", "MASE of seasonal naive")
    rows = [
        (row.config, *(_figure(row.metrics[name]) for name in ("MASE[0.5]", METRICS[-1])), _figure(row.seasonal_mase))
        for row in evaluation.done
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (heads, ("---",) * 4, *rows))
    count = f"{len(evaluation.done)} of {CONFIGURATIONS} configurations"
    return (
        f"Official windows of {count}, `{evaluation.official_call}`: MASE {_figure(evaluation.relative_mase)} of "
        f"seasonal naive's (geometric mean).\n\n{table}"
    )


def _figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "not known"


class _Results(NamedTuple):
    entries: str
    """`.eval_results/*.yaml`; empty without official scores: they stand on the page of the benchmark."""
    model_index: str


def _results(
    summary: ModelSummary, datasets: Sequence[str], declared: Declared, evaluation: Evaluation | None
) -> _Results:
    """Return official scores and gains in the hub's formats, by its own classes."""
    try:
        import yaml
        from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml
    except ImportError as error:
        command = install_command("publish")
        raise HrxError(f"hrx publish writes the hub's formats by huggingface_hub. Install it: {command}.") from error
    source: dict[str, Any] = {"source_url": declared.link, "source_name": "records"} if declared.link else {}
    entries, index = [], []
    for name in GAINS if summary.beating_naive.runs else ():
        if (value := number_or_none(summary.beating_naive.evidence[name].interval.point)) is not None:
            title = f"{name}, median of runs that beat naive"
            about = {"dataset_type": "hrx-audit", "dataset_name": f"audit of {counted(len(datasets), 'dataset')}"}
            named = {"metric_type": name, "metric_name": title, "metric_value": round(value, 6)}
            index.append(EvalResult(TASK, **about, **named, dataset_args={"datasets": [*datasets]}, **source))
    for row in () if evaluation is None else evaluation.done:
        for name in ("MASE[0.5]", METRICS[-1]):
            if math.isfinite(value := row.metrics[name]):
                task = f"{row.config.replace('/', '_')}_{SHORT[name]}"
                note = f"official windows, {evaluation.official_call}, hrx {evaluation.hrx}" if evaluation else ""
                entries.append(EvalResultEntry(GIFT_EVAL, task, value, notes=note, **source))
                about = {"dataset_type": GIFT_EVAL, "dataset_name": f"GIFT-Eval {row.config}"}
                named = {"metric_type": SHORT[name], "metric_name": name, "metric_value": value}
                index.append(EvalResult(TASK, **about, **named, dataset_config=row.config, **source))
    data = ModelCardData(model_name=clean(summary.model), eval_results=index) if index else ModelCardData()
    stored = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False) if entries else ""
    return _Results(stored, f"{data.to_yaml()}\n")


def refusal(evaluation: Evaluation | None, declared: Declared) -> str:
    """Return why there is no submission for the leaderboard; empty where there can be one."""
    if evaluation is None:
        return (
            "it needs an official evaluation. Make one with hrx evaluate MODEL --data gift-eval, and give --evaluation."
        )
    if not evaluation.quantiles:
        return f"the official call of {evaluation.model} gives no quantiles, and the leaderboard scores nine levels."
    done = {row.config for row in evaluation.done}
    if len(done) < CONFIGURATIONS:
        why = next((f" ({row.config}: {row.reason})" for row in evaluation.rows if row.reason), "")
        return (
            f"{len(done)} of {CONFIGURATIONS} configurations are evaluated{why}. Download the others: hrx data fetch."
        )
    wrong = [row.config for row in evaluation.done if not all(math.isfinite(row.metrics[name]) for name in METRICS)]
    if wrong:
        return f"{len(wrong)} configurations have a metric that is not finite, the first {wrong[0]}."
    if declared.leakage is None:
        return "it declares whether the model saw the test data. Say it: --leakage yes, or --leakage no."
    return ""


def submission(evaluation: Evaluation, declared: Declared) -> dict[str, str]:
    """Return `config.json` of a submission."""
    hub = evaluation.checkpoint if _HUB_ID.fullmatch(evaluation.checkpoint) else ""
    return {
        "model": evaluation.model,
        "model_type": declared.model_type,
        "model_dtype": evaluation.dtype,
        "model_link": f"https://huggingface.co/{hub}" if hub else declared.link,
        "code_link": declared.code,
        "org": declared.org or hub.partition("/")[0],
        "testdata_leakage": "Yes" if declared.leakage == "yes" else "No",
        "replication_code_available": "Yes" if declared.code else "No",
    }
