"""The commands on a page measure the runs of its ledger again: they plan runs with the same keys."""

import html
import io
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.browser import open_browser

from hrx.api.audit_plan import AuditPlan, plan_audit
from hrx.api.progress import Progress
from hrx.cli.main import parse_request
from hrx.records.ledger import Ledger, StoredAudit
from hrx.records.record import DONE
from hrx.reports import write_report

AUDITS = (
    ("bolt-mini", "--data=sample:co2,elnino", "--settings=96x24,64x8", "--series=1", "--seeds=2", "--windows=1"),
    ("bolt-mini", "--data=sample:elnino", "--settings=64x8", "--draws=2", "--precision=0.05", "--axis=whole"),
    ("--data=sample:elnino", "--settings=quick", "--seeds=1", "--estimator=integrated_gradients",
     "--estimator-setting=points=3", "--sweeps=truncation,distance"),
    ("chronos-bolt:{folder}/bolt mini", "--data=csv:{folder}/it's.csv?date=ds&value=y", "--settings=16x4", "--seeds=1"),
)  # fmt: skip


@dataclass
class Reproduced:
    """A ledger with the runs of one audit, and its page."""

    folder: Path
    keys: set[str]
    page: Path


def planned(words: list[str]) -> AuditPlan:
    return plan_audit(parse_request(words), Progress(io.StringIO()))


@pytest.fixture(params=range(len(AUDITS)), ids=["sample", "whole", "estimator", "files"])
def reproduced(request, tmp_path, monkeypatch) -> Reproduced:
    """The runs of an audit are written, not measured: keys depend on the plan alone."""
    monkeypatch.setattr("hrx.reports.page.report.figures", lambda *_: [])
    source = Path(__file__).parents[2] / "adapters" / "bolt_mini"
    (tmp_path / "bolt mini").symlink_to(source, target_is_directory=True)
    rows = [f"2020-01-{day:02d} {hour:02d}:00,{(day * hour) % 7}" for day in range(1, 9) for hour in range(24)]
    (tmp_path / "it's.csv").write_text("\n".join(["ds,y", *rows]))
    asked = planned(["audit", *(word.format(folder=tmp_path) for word in AUDITS[request.param])])
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        settings = json.dumps(asked.request.stored(), sort_keys=True)
        ledger.write_audit(StoredAudit("2026-01-01T00:00:00+00:00", "0.1.0", settings))
        for run in asked.runs:
            ledger.write(run.record(DONE))
    page = write_report(tmp_path / "ledger.db", tmp_path / "out").page
    return Reproduced(tmp_path, {run.key for run in asked.runs}, page)


def test_the_command_on_the_page_plans_the_runs_of_the_ledger(reproduced):
    shown = reproduced.page.read_text(encoding="utf-8")
    assert str(reproduced.folder) not in shown
    command, report = html.unescape(re.search(r"<pre>(hrx audit.*?)</pre>", shown, re.DOTALL).group(1)).split("\n")
    words = shlex.split(command.replace("PATH/", f"{reproduced.folder}/"))
    assert {run.key for run in planned(words[1:]).runs} == reproduced.keys
    assert shlex.split(report) == ["hrx", "report", "ledger.db", "--out", "hrx-report"]


def test_the_command_of_a_record_plans_a_run_with_its_key(reproduced):
    with open_browser() as browser:
        browser.open(reproduced.page, address="#beats=all")
        browser.tab.locator("#record-table .key-button").last.click()
        key = browser.text("#detail h3").split()[1].rstrip("…")
        command = browser.text("#record-command")
    words = shlex.split(command.replace("PATH/", f"{reproduced.folder}/"))
    keys = [run.key for run in planned(words[1:]).runs]
    assert any(one.startswith(key) for one in keys)
    assert set(keys) <= reproduced.keys


@pytest.mark.slow
def test_the_command_on_the_page_measures_the_same_digits_again(tmp_path, monkeypatch, capsys):
    from hrx.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hrx.reports.page.report.figures", lambda *_: [])
    options = ["--data=sample:elnino", "--settings=64x8", "--series=1", "--seeds=1", "--windows=1", "--draws=2"]
    assert main(["audit", "bolt-mini", *options]) == 0
    shown = write_report("hrx-audit/ledger.db", "page").page.read_text(encoding="utf-8")
    (command,) = re.findall(r"<pre>(hrx audit.*?)\n", shown)
    (again,) = re.findall(r"With <code>(.*?)</code>", shown)
    capsys.readouterr()
    words = shlex.split(html.unescape(f"{command} {again}").replace("ledger.db", "hrx-audit/ledger.db"))
    assert main(words[1:]) == 0
    assert "1 of 1 stored runs have the same numbers." in capsys.readouterr().out
