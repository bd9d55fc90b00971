"""`--rows` and `--accelerate`: how the models are computed, through the command line."""

import json
from pathlib import Path

import pytest

from hrx.adapters.acceleration import obstacle
from hrx.cli import main
from hrx.reports import read

MODEL = """
import torch

def line():
    torch.manual_seed(0)
    return torch.nn.Linear(32, 8)
"""
SMALL = ["--data", "sample:co2/W", "--settings", "32x8", "--windows", "2", "--draws", "2"]


@pytest.fixture
def line(tmp_path: Path) -> str:
    (tmp_path / "line.py").write_text(MODEL)
    return f"module:{tmp_path / 'line.py'}:line"


def test_verify_tells_how_a_model_is_computed_and_what_each_strategy_took(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ["verify", line, "--data", "sample:co2/W", "--settings", "32x8,40x8"]
    assert main([*request[:-1], "32x8", "--json"]) == 0
    (way,) = json.loads(capsys.readouterr().out)["ways"]
    assert (way["setting"], way["accelerations"], way["notes"]) == ("32x8", [], [])
    assert way["rows"] == min(way["probe"]["rows"], key=way["probe"]["rows"].get)
    assert set(way["probe"]["rows"]) == {"batched", "bare", "replicas"}
    assert main([*request[:-1], "32x8"]) == 0
    assert "32x8: rows are ba" in capsys.readouterr().out


def test_rows_are_had_as_asked_and_the_record_says_so(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", line, *SMALL, "--rows", "loop", "--out", str(tmp_path / "out")]) == 0
    frame = read(tmp_path / "out" / "ledger.db")
    assert set(frame["rows_strategy"]) == {"loop"}
    assert all(set(json.loads(probe)["rows"]) == {"loop"} for probe in frame["probe"])
    assert set(frame["accelerations"]) == {""}
    assert " is off" not in capsys.readouterr().err


def test_an_acceleration_that_is_not_to_be_had_is_told_and_the_audit_goes_on(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not obstacle("cuda"):
        pytest.skip("there is a GPU")
    assert main(["audit", line, *SMALL, "--accelerate", "cuda", "--out", str(tmp_path / "out")]) == 0
    assert "line 32x8: cuda is off: torch finds no GPU." in capsys.readouterr().err
    frame = read(tmp_path / "out" / "ledger.db")
    assert set(frame["status"]) == {"done"}
    assert set(frame["accelerations"]) == {""}


def test_a_settings_file_may_ask_for_both(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "audit.toml").write_text('rows = "replicas"\naccelerate = "cuda"\n')
    request = ["audit", line, *SMALL, "--config", str(tmp_path / "audit.toml"), "--out", str(tmp_path / "out")]
    assert main(request) == 0
    assert set(read(tmp_path / "out" / "ledger.db")["rows_strategy"]) == {"replicas"}


@pytest.mark.parametrize("verb", ["audit", "verify"])
def test_an_acceleration_that_does_not_exist_is_a_wrong_request(
    line: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = [verb, line, "--data", "sample:co2/W", "--settings", "32x8", "--accelerate", "compil"]
    assert main([*request, *(["--out", str(tmp_path / "out")] if verb == "audit" else [])]) == 2
    told = capsys.readouterr().err
    assert "'compil'" in told
    assert "compile" in told
    assert not (tmp_path / "out").exists()


def test_verify_keeps_its_checks_where_the_probe_fails(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> object:
        raise ValueError("too many windows")

    monkeypatch.setattr("hrx.cli.verify.choose", broken)
    assert main(["verify", line, "--data", "sample:co2/W", "--settings", "32x8"]) == 0
    told = capsys.readouterr().out
    assert "derivative" in told
    assert "32x8: rows are as the family declares." in told
    assert "32x8: the probe failed: ValueError: too many windows." in told


def test_spaces_between_accelerations_are_no_mistake(line: str, tmp_path: Path) -> None:
    assert main(["audit", line, *SMALL, "--accelerate", "cuda, bf16", "--out", str(tmp_path), "--dry-run"]) == 0
