"""One audit of many misbehaving models and two healthy ones.

Each misbehaving model gets the stated outcome, the healthy ones the digits that they have alone, and standard output
holds the document of `--json` and nothing else.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from faults.conftest import sample
from helpers.fork_server import processes_with, running, wait_until
from helpers.misbehaving import CASES, Case
from helpers.records import VOLATILE

from hrx.errors import Exit
from hrx.reports import read

PLAN = ["--data", "sample:elnino/M", "--settings", "24x8", "--windows", "2", "--draws", "2", "--seeds", "1"]
HEALTHY = Case("", "healthy", "built", "pass", "done")
OWN = ["key", "model", "checkpoint", "fingerprint", "rewrites"]
"""What differs between two models that compute the same."""
MARK = "HRX_TEST_MARK"
"""An environment variable by which the processes of one audit are found, wherever they have gone."""


def write_models(folder: Path, cases: list[Case]) -> list[str]:
    """One file per case; the models as `hrx audit` takes them."""
    for number, case in enumerate(cases):
        (folder / f"m{number}.py").write_text(case.source())
    return [f"module:{folder}/m{number}.py:build" for number in range(len(cases))]


def audit(models: list[str], folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """`hrx audit` as a user runs it."""
    command = [sys.executable, "-m", "hrx.cli", "audit", *models, *PLAN, "--out", "out", "--json", *more]
    mark = {MARK: uuid.uuid4().hex}
    ended = subprocess.run(command, cwd=folder, env=os.environ | mark, capture_output=True, text=True)
    wait_until(lambda: not any(map(running, processes_with(mark[MARK]))))
    return ended


def numbers(record: pd.Series) -> dict[str, object]:
    """What two models of the same weights have in common, as text: every digit counts, and a missing value is one."""
    return {name: str(value) for name, value in record.drop([*VOLATILE, *OWN]).items()}


def problem(case: Case, record: pd.Series, alone: pd.Series) -> str:
    """Why the record of a case is not the stated one; empty where it is."""
    if record["status"] != case.status:
        return f"{case.kind}, {case.name}: {record['status']} ({record['reason']}), expected {case.status}"
    if case.status != "done":
        return "" if re.search(case.reason, str(record["reason"])) else f"{case.name}: {record['reason']}"
    changed = [name for name, value in numbers(record).items() if value != numbers(alone)[name]]
    return f"{case.kind}, {case.name}: other digits in {', '.join(changed)}" if changed else ""


@pytest.mark.slow
def test_misbehaving_models_have_the_stated_outcome_and_leave_the_others_alone(
    tmp_path: Path, figure: Callable[..., None]
) -> None:
    cases = [HEALTHY, *sample(CASES, 12), HEALTHY._replace(code="x = 0")]
    (tmp_path / "alone").mkdir()
    single = audit(write_models(tmp_path / "alone", [HEALTHY]), tmp_path / "alone")
    assert single.returncode == 0, single.stderr
    alone = read(tmp_path / "alone" / "out" / "ledger.db").iloc[0]

    ended = audit(write_models(tmp_path, cases), tmp_path, "--workers", "2", "--timeout", "8s")
    assert ended.returncode == Exit.GATE_FAILED, ended.stderr  # models of the table fail an admission check
    assert "Traceback" not in ended.stderr
    assert "\x1b" not in ended.stderr
    assert len(json.loads(ended.stdout)["models"]) == len(cases)
    records = read(tmp_path / "out" / "ledger.db").set_index("model", drop=False)
    problems = [problem(case, records.loc[f"m{number}:build"], alone) for number, case in enumerate(cases)]
    made = Counter(case.kind for case in cases if case.kind)
    wrong = Counter(case.kind for case, text in zip(cases, problems, strict=True) if text)
    for kind, count in made.items():
        figure("misbehaving models", f"model: {kind}", made=count, handled=count - wrong[kind])
    assert "\n".join(text for text in problems if text) == ""
