"""Settings files, plans before a run, rechecks, and shares that other interpreters take."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from helpers.damage import change
from helpers.records import replace_record

import hrx
from hrx.adapters import EMBEDDED
from hrx.api.audit_plan import OtherInterpreter, divide, family_of
from hrx.api.progress import Progress, Stop
from hrx.audit.request import AuditRequest
from hrx.cli import main
from hrx.cli.main import AuditCommand, parse_request
from hrx.errors import HrxError
from hrx.options import as_settings, as_toml, from_settings
from hrx.records.ledger import Ledger
from hrx.reports import read

MODEL = """
import torch

def line():
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 8)
    return lambda x: layer(x[:, -24:])
"""
PLAN = ["--data", "sample:elnino/M", "--settings", "24x8", "--windows", "2", "--draws", "2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a tell-tale name, a model and a way not to wait for pictures."""
    place = tmp_path / "alice wonderland"
    place.mkdir()
    (place / "line.py").write_text(MODEL)
    monkeypatch.chdir(place)
    monkeypatch.setattr("hrx.api.audit.heatmaps", lambda *_: [])
    return place


def options(*arguments: str) -> AuditCommand:
    request = parse_request(["audit", *arguments])
    assert isinstance(request, AuditCommand)
    return request


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(folder: Path) -> None:
    (folder / "audit.toml").write_text(
        'models = ["bolt-mini", "ttm-r2"]\nsettings = ["96x24", "512x96"]\nseries = 5\nseeds = 1\njson = true\n'
        'memory = 1.5\n[python]\n"timesfm-2.5" = "/bin/a"\ntimer = "/bin/b"\n'
    )
    found = options("--config", "audit.toml", "--series", "3", "--seeds=2")
    assert found.models == ("bolt-mini", "ttm-r2")
    assert (found.settings, found.series, found.seeds, found.effort, found.memory) == (
        "96x24,512x96",
        3,
        2,
        "light",
        1.5,
    )
    assert found.json is True
    assert found.python == ("timesfm-2.5=/bin/a", "timer=/bin/b")
    alone = options("chronos-2", "--config", "audit.toml", "--python", "timer=/bin/c")
    assert alone.models == ("chronos-2",)
    assert alone.python == ("timer=/bin/c",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("data = 'sample'\nserie = 3", "audit.toml, line 2: Unknown option 'serie'. Did you mean 'series'"),
        ("\nseries = 0", "audit.toml, line 2: series = 0: '0' is not a whole number"),
        ("series = true", "line 1: series = True: True is not a valid value"),
        ("json = 'yes'", "line 1: json = 'yes': 'yes' is neither true nor false"),
        ("engine = 'spark'", "line 1: engine = 'spark': invalid choice"),
        ("# all\nmemory = 'much'", "line 2: memory = 'much': 'much' is not a valid amount of memory"),
        ("series = 3\nseries = 4", "is not TOML"),
        ("series", "is not TOML"),
        ("dry-run = true", "Unknown option 'dry-run'"),
        ("config = 'other.toml'", "Unknown option 'config'"),
        ("series = [1, [2]]", "line 1: series = [1, [2]]"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(
    folder: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "audit.toml").write_text(text)
    assert main(["audit", "--config", "audit.toml"]) == 2
    assert sentence in capsys.readouterr().err
    assert not (folder / "hrx-audit").exists()


def test_a_file_that_is_not_there_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--config", "absent.toml"]) == 2
    assert "absent.toml cannot be read" in capsys.readouterr().err


def test_a_request_is_the_same_after_a_settings_file_and_after_json(folder: Path) -> None:
    given = options(
        "ttm:some dir", "--workers", "2", "--python", "timer=/bin/b", "--estimator-setting", "a=1", "--json",
        "--budget", "1.5min", "--precision", "1e-3", "--out", "x y",
    )  # fmt: skip
    (folder / "again.toml").write_text(as_toml(given))
    assert replace(options("--config", "again.toml"), config=None) == given
    assert from_settings(AuditCommand, json.loads(json.dumps(as_settings(given)))) == given
    assert tomllib.loads(as_toml(given))["budget"] == 90
    assert (given.budget, given.precision, given.out) == (90, 0.001, Path("x y"))


def test_python_names_an_unknown_keyword_a_wrong_value_and_what_is_for_the_command_only(folder: Path) -> None:
    for given, sentence in (
        ({"serie": 2}, r"run_audit: Unknown keyword 'serie'\. Did you mean 'series'"),
        ({"series": 0}, "run_audit: series=0: '0' is not a whole number"),
        ({"engine": "spark"}, "run_audit: engine='spark': invalid choice: 'spark' .choose from local, ray"),
        ({"channels": 1}, "run_audit: channels=1: 1 is neither true nor false"),
        ({"json": True}, "Unknown keyword 'json'"),
    ):
        with pytest.raises(HrxError, match=sentence):
            hrx.run_audit("bolt-mini", **given)
    assert not (folder / "hrx-audit").exists()


def test_an_unknown_sweep_is_refused_with_its_near_match(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "module:line.py:line", *PLAN, "--sweeps", "distanc"]) == 2
    assert "Unknown sweep 'distanc'. Did you mean 'distance'" in capsys.readouterr().err


def test_sweeps_and_estimators_reach_the_protocol_of_the_runs(folder: Path) -> None:
    more = ["--sweeps", "truncation,distance,fine", "--estimator", "gradient_x_input"]
    assert main(["audit", "module:line.py:line", *PLAN, *more, "--seeds", "1", "--json"]) == 0
    (record,) = read("hrx-audit/ledger.db").to_dict("records")
    assert (record["truncation"], record["distance"], record["estimator"]) == (1, 1, "gradient_x_input")
    assert abs(record["g_own_rank_1"]) < 1e-12
    assert record["fine"] == 1
    assert record["g_margin_fine"] == record["g_own_fine"] - record["g_shuffled_fine"]


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["audit", "module:line.py:line", *PLAN, "--data", "sample:elnino/M,co2/W", "--settings", "24x8,2000x8"]
    assert main([*plan, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "8 runs (1 model, 2 datasets)" in out
    assert "2 cannot run: too few values for 2000x8" in out
    assert 'settings = "24x8,2000x8"' in out
    assert sorted(path.name for path in folder.iterdir()) == ["line.py"]
    assert main([*plan, "--dry-run", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["plan"]["runs"]
    assert [run["state"] for run in runs].count("cannot run") == 2
    assert all(run["seconds"] > 0 for run in runs if run["setting"] == "24x8")


def test_the_plan_counts_what_is_stored_and_the_ledger_keeps_the_settings_without_paths(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = ["audit", f"module:{folder}/line.py:line", *PLAN]
    assert main(audit) == 0
    assert main([*audit, "--seeds", "3", "--dry-run"]) == 0
    assert "3 runs (1 model, 1 dataset), 2 of them stored" in capsys.readouterr().out
    with Ledger.open(folder / "hrx-audit" / "ledger.db", create=False) as ledger:
        (stored,) = ledger.audits()
        text = json.dumps([list(map(asdict, ledger.records())), ledger.checks(), ledger.audits()])
        made_by = {record.request for record in ledger.records()}
    assert made_by == {hashlib.sha256(f"{hrx.__version__}\n{stored.settings}".encode()).hexdigest()[:16]}
    settings = json.loads(stored.settings)
    assert settings["models"] == ["module:PATH/line.py:line"]
    assert settings["data"] == "sample:elnino/M"
    for tell_tale in ("alice", "wonderland", str(folder), os.path.expanduser("~")):
        assert tell_tale not in text


def test_a_recheck_of_a_ledger_that_was_changed_names_the_column_and_ends_with_3(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = ["audit", "module:line.py:line", *PLAN]
    for form in ([], ["--json"]):  # nothing to compare is no success
        assert main([*audit, "--recheck", "2", *form]) == 2
    assert main(audit) == 0
    assert main([*audit, "--recheck", "2"]) == 0
    assert "2 of 2 stored runs have the same numbers" in capsys.readouterr().out
    path = folder / "hrx-audit" / "ledger.db"
    with Ledger.open(path) as ledger:
        (stored,) = (one for one in ledger.records() if one.seed == 1)
        replace_record(ledger, stored.updated(mse=(stored.mse or 0.0) * 1.01))
    assert main([*audit, "--recheck", "2"]) == 3
    out = capsys.readouterr().out
    assert "seed 1: DIFFERENT: mse is" in out
    assert "1 of 2 stored runs" in out
    change(path, "UPDATE runs SET mse = mse + 0.01 WHERE seed = 1")  # which leaves the checksum as it was
    assert main([*audit, "--recheck", "2"]) == 3
    out, errors = capsys.readouterr()
    assert "1 of 1 stored runs" in out
    assert "seed 1" in errors
    assert "it is not as it was written" in errors


def test_a_model_goes_to_the_interpreter_of_its_family(checkpoints: dict[str, Path]) -> None:
    python = sys.executable
    names = [EMBEDDED, "module:a.py:b", "ttm-r2@auto", "timer:./x", os.fspath(checkpoints["ttm"]), "owner/name"]
    assert [family_of(name) for name in names] == ["chronos-bolt", "module", "ttm", "timer", "ttm", ""]
    shares = divide(names, [f"ttm={python}", f"timer={python}"])
    assert shares[None] == [EMBEDDED, "module:a.py:b", "owner/name"]
    assert shares[Path(python)] == ["ttm-r2@auto", "timer:./x", os.fspath(checkpoints["ttm"])]
    for entry, sentence in (("ttm", "is not FAMILY=PATH"), ("tmm=x", "Did you mean 'ttm'"), ("ttm=./no", "not a file")):
        with pytest.raises(HrxError, match=sentence):
            divide(names, [entry])


def test_a_failed_admission_in_another_interpreter_is_a_result_and_a_failed_import_is_not(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    other = OtherInterpreter(python, ["ttm-r2"], AuditRequest(out=tmp_path))
    assert other.audit(Stop(Progress(io.StringIO()))) == 1
    for fails in (lambda: other.plan(estimate=False), lambda: other.audit(Stop(Progress(io.StringIO())), recheck=1)):
        with pytest.raises(HrxError, match="could not audit ttm-r2"):
            fails()


@pytest.mark.slow
def test_a_share_in_another_interpreter_ends_in_the_same_ledger_and_the_same_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "here.py").write_text(MODEL.replace("manual_seed(0)", "manual_seed(1)"))
    other = Path(sys.executable).parent.parent.parent / ".venv-generate" / "bin" / "python"
    python = other if other.exists() else Path(sys.executable)
    plan = ["audit", "module:line.py:line", *PLAN, "--python", f"module={python}", "--json"]
    assert main(plan) == 0
    output = json.loads(capsys.readouterr().out)
    assert [(model["model"], model["runs"]) for model in output["models"]] == [("line:line", 2)]
    # In a process of its own too: what other tests loaded into this one may move the last digits.
    alone_plan = ["audit", "module:line.py:line", *PLAN, "--out", "alone"]
    subprocess.run([sys.executable, "-m", "hrx.cli", *alone_plan], check=True, capture_output=True)
    apart, alone = read("hrx-audit/ledger.db"), read("alone/ledger.db")
    assert apart["g_own"].tolist() == alone["g_own"].tolist()
    assert main([*plan, "--recheck", "1"]) == 0
