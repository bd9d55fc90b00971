"""`hrx publish`: every file is read back by the hub's own classes; a submission only from an official evaluation."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hrx.cli import main
from hrx.errors import HrxError
from hrx.gift_eval.catalogue import configurations
from hrx.records.contract import Contract, Finding
from hrx.records.evaluation import METRICS, Evaluated, Evaluation
from hrx.reports import read
from hrx.reports.publish import Declared, write_publication
from hrx.reports.summary import summarise

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

LINK = "https://example.org/ledger"


@pytest.fixture
def stored(ledger, record) -> Path:
    """Twelve runs of bolt-mini, each of a source of its own, that gain."""
    gains = np.linspace(0.1, 0.3, 12)
    return ledger([record(dataset=f"s{i}/D", g_own=g, g_margin=2 * g, g_shuffled=-g) for i, g in enumerate(gains)])


@pytest.fixture
def fingerprint(stored: Path) -> str:
    return str(read(stored)["fingerprint"].iloc[0])


@pytest.fixture
def evaluation(fingerprint: str) -> Evaluation:
    """A whole evaluation of the leaderboard's configurations, with made-up scores."""
    rows = tuple(
        Evaluated(one.name, "Sales", 1, 1, 1, dict.fromkeys(METRICS, 0.5 + n / 100), 1.0)
        for n, one in enumerate(configurations())
    )
    about = ("bolt-mini", "acme/bolt-mini", fingerprint, "chronos-forecasting 2.3.2", "predict", "float32", True)
    return Evaluation(*about, "0", "2026-01-01", rows)


def test_the_files_are_read_back_by_the_hub(
    stored: Path, tmp_path_factory: pytest.TempPathFactory, evaluation: Evaluation
) -> None:
    tmp_path = tmp_path_factory.mktemp("published")
    declared = Declared(link=LINK, leakage="no", code="https://example.org/code")
    contract = Contract(
        "bolt-mini", "x 1", "predict", 96, 24, (Finding("finite", "holds", 0.0, "", "always", True),), 3
    )
    written = write_publication(stored, tmp_path, declared, contract=contract, evaluation=evaluation)
    assert not written.refused
    names = {path.relative_to(tmp_path).as_posix() for path in written.files}
    assert names == {
        "README-section.md", "model-index.yaml", ".eval_results/gift-eval.yaml", "badge.json", "contract.json",
        "gift-eval/bolt-mini/all_results.csv", "gift-eval/bolt-mini/config.json",
    }  # fmt: skip
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == names
    entries = hub.parse_eval_result_entries(yaml.safe_load((tmp_path / ".eval_results/gift-eval.yaml").read_text()))
    assert len(entries) == 2 * 97
    first = configurations()[0]
    assert entries[0].task_id == f"{first.name.replace('/', '_')}_mase"
    assert (entries[0].value, entries[0].dataset_id, entries[0].source_url) == (0.5, "Salesforce/GiftEval", LINK)
    section = (tmp_path / "README-section.md").read_text()
    whole = f"---\n{(tmp_path / 'model-index.yaml').read_text()}---\n\n{section}"
    read_back = hub.ModelCard(whole).data
    by_metric = {(one.metric_type, one.dataset_config): one.metric_value for one in read_back.eval_results}
    frame = read(stored)
    (summary,) = summarise(frame, [])
    assert by_metric[("mase", first.name)] == 0.5
    assert by_metric[("g_margin", None)] == pytest.approx(0.4)
    assert by_metric[("g_own", None)] == pytest.approx(0.2)
    assert f"**{summary.headline}**" in section
    assert LINK in section
    assert "## Contract" in section
    badge = json.loads((tmp_path / "badge.json").read_text())
    assert badge["schemaVersion"] == 1
    assert badge["message"] == summary.headline
    results = pd.read_csv(tmp_path / "gift-eval/bolt-mini/all_results.csv")
    assert results.shape == (97, 15)
    assert results["dataset"].tolist() == [one.name for one in configurations()]
    config = json.loads((tmp_path / "gift-eval/bolt-mini/config.json").read_text())
    assert config == {
        "model": "bolt-mini", "model_type": "zero-shot", "model_dtype": "float32",
        "model_link": "https://huggingface.co/acme/bolt-mini", "code_link": "https://example.org/code", "org": "acme",
        "testdata_leakage": "No", "replication_code_available": "Yes",
    }  # fmt: skip


def refused(stored: Path, out: Path, evaluation: Evaluation | None, leakage: str | None = "no") -> str:
    written = write_publication(stored, out, Declared(leakage=leakage), evaluation=evaluation)
    assert not list(out.rglob("all_results.csv"))
    return written.refused


def test_a_submission_is_refused_with_the_reason(stored: Path, tmp_path: Path, evaluation: Evaluation) -> None:
    assert "it needs an official evaluation" in refused(stored, tmp_path, None)
    assert not (tmp_path / ".eval_results").exists()
    assert "gives no quantiles" in refused(stored, tmp_path, replace(evaluation, quantiles=False))
    some = replace(evaluation, rows=evaluation.rows[:23])
    assert "23 of 97 configurations are evaluated" in refused(stored, tmp_path, some)
    failed = replace(evaluation.rows[0], metrics={}, reason="too short.")
    missing = replace(evaluation, rows=(failed, *evaluation.rows[1:]))
    assert f"96 of 97 configurations are evaluated ({failed.config}: too short.)" in refused(stored, tmp_path, missing)
    impossible = replace(evaluation.rows[5], metrics=dict.fromkeys(METRICS, math.inf))
    rows = (*evaluation.rows[:5], impossible, *evaluation.rows[6:])
    assert "1 configurations have a metric that is not finite" in refused(
        stored, tmp_path, replace(evaluation, rows=rows)
    )
    assert "--leakage yes, or --leakage no" in refused(stored, tmp_path, evaluation, None)
    with pytest.raises(HrxError, match=r"The evaluation is of bolt-mini .* Give those of one model"):
        refused(stored, tmp_path, replace(evaluation, fingerprint="0" * 64))


def test_the_command_names_what_it_wrote(stored: Path, tmp_path: Path, evaluation: Evaluation, capsys) -> None:
    assert main(["publish", str(stored), "--out", f"{tmp_path}/out"]) == 0
    shown = capsys.readouterr()
    assert "README-section.md: section for the model card" in shown.out
    assert "no submission for GIFT-Eval" in shown.err
    evaluation.save(tmp_path / "e.json")
    words = ["publish", str(stored), "--out", f"{tmp_path}/two", "--evaluation", f"{tmp_path}/e.json"]
    assert main(words) == 1
    assert main([*words, "--leakage", "yes"]) == 0
    assert json.loads((tmp_path / "two/gift-eval/bolt-mini/config.json").read_text())["testdata_leakage"] == "Yes"
    assert main(["publish", str(stored), "--model", "other", "--out", f"{tmp_path}/three"]) == 2
    assert not (tmp_path / "three").exists()
