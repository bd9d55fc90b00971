"""`hrx audit --rank-only` and `hrx verify --sanity`, through the command line."""

import json
from pathlib import Path
from statistics import median

import pytest
import torch
from helpers.by_definition import participation_ratio

from hrx.audit import explain
from hrx.cli.main import main
from hrx.gift_eval import cut, open_source
from hrx.reports import read

RANK_ONE = """
import torch

def outer():
    torch.manual_seed(0)
    linear = torch.nn.Linear(32, 8)
    with torch.no_grad():
        linear.weight.copy_(torch.outer(torch.rand(8) + 0.5, torch.randn(32)))
    return linear

def full():
    torch.manual_seed(0)
    return torch.nn.Linear(32, 8)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    file = tmp_path / "models.py"
    file.write_text(RANK_ONE)
    return file


def ranked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["audit", *arguments, "--rank-only", "--settings", "32x8", "--seeds", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_rank_of_every_dataset_is_the_median_of_its_runs(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hrx.adapters import load

    found = ranked(capsys, f"module:{models}:full")["models"][0]["ranks"]
    model = load(f"module:{models}:full")
    datasets = {dataset.name: dataset for dataset in open_source("sample")}
    assert {row["dataset"] for row in found} == set(datasets)
    for row in found:
        ranks = []
        for index in range(min(3, datasets[row["dataset"]].count)):
            x = torch.as_tensor(cut(datasets[row["dataset"]].read(index), 32, 8, 4, 0).x, dtype=torch.float32)
            each = [participation_ratio(matrix.numpy()) for matrix in explain(model, x, 8)]
            ranks.append(sum(each) / len(each))
        assert row["rank"] == pytest.approx(median(ranks), rel=1e-6)
        assert row["rank_entropy"] >= row["rank"]
        assert row["worth"] == "yes"


def test_a_model_of_rank_one_is_not_worth_an_axis(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for row in ranked(capsys, f"module:{models}:outer")["models"][0]["ranks"]:
        assert row["rank"] == pytest.approx(1, abs=1e-6)
        assert (row["worth"], row["published_g_own"]) == ("no", 0.015)


def test_rank_only_writes_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "here"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert main(["audit", f"module:{models}:outer", "--rank-only", "--settings", "32x8", "--seeds", "1"]) == 0
    out = capsys.readouterr().out
    assert list(empty.iterdir()) == []
    assert "Verdict: the axis is worth resolving in 0 of 9" in out
    assert "no ledger was written" in out
    assert max(map(len, out.splitlines())) <= 100


def test_runs_without_a_rank_are_counted_with_their_reason(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--settings", "32x8,32x90000", "--seeds", "1", "--json")
    assert main(["audit", f"module:{models}:full", "--rank-only", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)["models"][0]
    assert {row["setting"] for row in found["ranks"]} == {"32x8"}
    assert sum(reason["runs"] for reason in found["not_measured"]) == sum(row["runs"] for row in found["ranks"])
    assert all("too short" in reason["reason"] for reason in found["not_measured"])


def test_verify_shows_sanity_checks_on_request_and_they_do_not_decide_admission(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", f"module:{models}:full", "--settings", "32x8", "--sanity", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    names = [check["check"] for check in output["checks"]]
    assert names[-3:] == ["randomised parameters", "stable size", "stable order"]
    assert all({"figure", "limit", "setting", "passed"} <= set(check) for check in output["checks"])

    models.write_text(
        RANK_ONE + "\ndef fixed():\n    weight = full().weight.detach()\n    return lambda x: x @ weight.T\n"
    )
    assert main(["verify", f"module:{models}:fixed", "--settings", "32x8", "--sanity", "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert output["admitted"]
    failed = [check for check in output["checks"] if not check["passed"]]
    assert [check["check"] for check in failed] == ["randomised parameters"]
    assert failed[0]["figure"] is None


SOMETIMES = """
import torch

class Sometimes(torch.nn.Module):
    def __init__(self, floor):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.floor = torch.nn.Linear(32, 8), floor

    def forward(self, x):
        read = (x[:, :1] > x[:, -1:] + self.floor).float()
        return self.layer(x) * read + torch.arange(8.0)

def some():
    return Sometimes(0.0)

def never():
    return Sometimes(1e9)
"""


def test_windows_whose_matrix_is_zero_are_left_out_of_the_rank_as_in_an_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sometimes.py").write_text(SOMETIMES)
    arguments = [f"module:{tmp_path / 'sometimes.py'}:some", "--data", "sample:seattle/H", "--series", "1"]
    arguments += ["--effort", "paper"]
    (row,) = ranked(capsys, *arguments)["models"][0]["ranks"]
    request = ["audit", *arguments, "--settings", "32x8", "--seeds", "1", "--out", str(tmp_path / "out")]
    assert main(request) == 0
    (record,) = read(tmp_path / "out" / "ledger.db").to_dict("records")
    assert record["status"] == "done", record["reason"]
    assert 0 < record["rank_dropped"] < 4
    assert row["rank"] == pytest.approx(record["rank"], rel=1e-9)
    assert row["worth"] == "yes"


def test_a_model_that_reads_nothing_has_no_rank_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sometimes.py").write_text(SOMETIMES)
    found = ranked(capsys, f"module:{tmp_path / 'sometimes.py'}:never", "--data", "sample:co2/W")["models"][0]
    assert found["ranks"] == []
    assert found["not_measured"] == [
        {"reason": "the matrix of every window is zero: the forecast ignores its input", "runs": 1}
    ]
