"""Audits that end before their plan is complete: `--budget`, `--until decided`, and what every report says of them."""

import json
from pathlib import Path

import pytest

from hrx.api.audit import AuditProgress
from hrx.api.progress import Stop
from hrx.audit.runner.plan import Run
from hrx.cli import main
from hrx.records.ledger import Ledger
from hrx.records.record import Record
from hrx.reports import read, summarise, tables
from hrx.reports.page.report import render_report

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Linear(24, 8)
"""
PLAN = ["--data", "sample:elnino/M,co2/W", "--settings", "24x8", "--seeds", "6", "--workers", "0"]
AUDIT = ["audit", "module:model.py:make", *PLAN]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hrx.api.audit.heatmaps", lambda *_: [])  # they take most of the time
    return tmp_path


@pytest.fixture
def over_after(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs after which every budget is over, whatever the clock says."""
    limit, stored = [1_000_000], [0]
    count = AuditProgress.stored

    def counting(self: AuditProgress, run: Run, record: Record) -> None:
        stored[0] += 1
        count(self, run, record)

    monkeypatch.setattr(AuditProgress, "stored", counting)
    monkeypatch.setattr(Stop, "over", property(lambda self: self.left is not None and stored[0] >= limit[0]))
    return limit


def test_a_budget_ends_an_audit_with_what_is_stored_and_the_same_command_completes_it(
    folder: Path, over_after: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    over_after[0] = 5
    assert main([*AUDIT, "--budget", "10m"]) == 0
    output, errors = capsys.readouterr()
    assert "5 of 12 planned runs stored" in " ".join(output.split())
    assert "--budget is over. 5 of 12 runs are in hrx-audit/ledger.db. Repeat the command to continue." in errors
    ledger = folder / "hrx-audit" / "ledger.db"
    assert len(read(ledger)) == 5

    page = render_report(ledger, read(ledger), [])[0]
    assert page.count("Rests on 5 of 12 planned runs.") == 1
    assert "5 of 12 planned runs stored" in page
    assert main(["tables", str(ledger), "--table", "models"]) == 0
    assert "Rests on 5 of 12 planned runs of this ledger." in capsys.readouterr().out
    assert tables(read(ledger), ["models"])[0].note.count("Rests on") == 0  # a frame knows no plan

    over_after[0] = 1_000_000
    assert main([*AUDIT, "--budget", "10m", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["plan"] == {"stored": 12, "planned": 12, "until_decided": None}
    assert "Rests on" not in found["verdict"]
    with Ledger.open(ledger, create=False) as opened:
        assert "budget" not in json.loads(opened.audits()[0].settings)
        assert len(opened.audits()) == len(opened.plans()) == 1
        assert summarise(read(ledger), [], opened.plans())[0].plan.planned == 12  # type: ignore[union-attr]


def test_a_budget_without_a_single_run_is_incomplete_and_names_the_model(
    folder: Path, over_after: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    over_after[0] = 0
    assert main([*AUDIT, "--budget", "1s"]) == 3
    assert "model:make: no verdict, none of its 12 planned runs is stored." in capsys.readouterr().out
    assert main([*AUDIT, "--budget", "1s", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["without_runs"] == {"model:make": 12}


def test_a_ledger_that_does_not_know_its_plan_says_so_on_its_page(folder: Path, over_after: list[int]) -> None:
    over_after[0] = 2
    assert main([*AUDIT, "--budget", "1h"]) == 0
    ledger = folder / "hrx-audit" / "ledger.db"
    with Ledger.open(ledger) as opened:
        opened._connection.execute("DELETE FROM plans")
    page = render_report(ledger, read(ledger), [])[0]
    assert "how many were planned is not stored" in page
    assert "Rests on" not in page
    assert summarise(read(ledger), [])[0].as_json()["plan"] is None


def test_until_decided_reports_the_sign_the_runs_and_that_intervals_are_not_corrected(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("hrx.audit.runner.scheduler", "hrx.reports.runs"):
        monkeypatch.setattr(f"{module}.sign_of", lambda *_: -1)
    assert main([*AUDIT, "--until", "decided", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    decided = {"sign": "negative", "used": 6, "planned": 12}
    assert found["plan"] == {"stored": 6, "planned": 12, "until_decided": [decided]}
    about = "Most of the 12 planned runs that count have a negative g_margin (decided after 6)"
    sentence = f"{about}; this says nothing about other data. The intervals are not corrected"
    assert sentence in found["verdict"]
    ledger = folder / "hrx-audit" / "ledger.db"
    assert sentence in render_report(ledger, read(ledger), [])[0]
    assert main([*AUDIT, "--until", "decided"]) == 0
    output, errors = capsys.readouterr()
    assert output.startswith("model:make · 6 runs · ")
    assert "12 runs (1 model, 2 datasets), 6 of them stored" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "2"], "'2' has no unit: give 2s, 2m or 2h"),
        (["--budget", "0"], "'0' is not a time above zero such as 90s, 10m or 2h"),
        (["--budget", "ten"], "'ten' is not a time above zero such as 90s, 10m or 2h"),
        (["--until", "bored"], "invalid choice: 'bored'"),
        (["--budget", "1h", "--recheck", "3"], "--recheck 3 measures that many runs, whatever --budget is"),
    ],
)
def test_a_stop_that_cannot_be_understood_is_refused(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([*AUDIT, *words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err
    assert not (folder / "hrx-audit").exists()


def test_times_have_seconds_minutes_and_hours() -> None:
    from hrx.cli.main import parse_request

    found = [parse_request(["audit", "--budget", text]).budget for text in ("90s", "10m", "1.5min", "2h")]
    assert found == [90, 600, 90, 7200]
