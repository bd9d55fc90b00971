"""The command line as a person meets it: real processes for the whole, direct calls for the sentences."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hrx.cli import main
from hrx.reports import read
from hrx.reports.runs import fold_seeds
from hrx.reports.statistics import describe

TIMES = ["forward_seconds", "matrix_seconds", "seconds", "created"]
QUICK = ["--data", "sample:elnino/M,co2/W", "--settings", "96x24", "--windows", "2", "--draws", "2"]


def hrx(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hrx.cli", *arguments], cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The embedded checkpoint, audited on two embedded datasets by a process of its own."""
    folder = tmp_path_factory.mktemp("audited")
    return folder, hrx("audit", *QUICK, cwd=folder)


@pytest.mark.slow
def test_an_audit_ends_with_a_verdict_a_ledger_and_one_heat_map(audited) -> None:
    folder, done = audited
    assert done.returncode == 0, done.stderr
    assert "\nFINDING " in done.stdout
    assert "\nNEXT      hrx report hrx-audit/ledger.db --out hrx-audit/page" in done.stdout
    assert len(done.stdout.splitlines()) <= 24 + 3
    assert "\x1b" not in done.stdout + done.stderr
    assert "4/4 runs" in done.stderr
    (figure,) = (folder / "hrx-audit").glob("*.png")
    assert figure.name in ("bolt-mini--co2-w--co2--96x24.png", "bolt-mini--elnino-m--temperature--96x24.png")
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_repeating_it_runs_nothing_and_says_the_same(audited) -> None:
    folder, first = audited
    before = (folder / "hrx-audit" / "ledger.db").read_bytes()
    again = hrx("audit", *QUICK, cwd=folder)
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert "4 of them stored" in again.stderr
    assert (folder / "hrx-audit" / "ledger.db").read_bytes() == before


@pytest.mark.slow
def test_json_has_what_the_design_promises_and_equals_the_ledger(
    audited, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = audited
    monkeypatch.chdir(folder)
    assert main(["audit", *QUICK, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    (model,) = output["models"]
    assert {"model", "checkpoint", "admitted", "runs", "excluded", "failed", "beats_naive", "rank"} <= set(model)
    frame = read(folder / output["ledger"])
    assert model["runs"] == len(frame) == 4
    assert model["beats_naive"] == frame["beats_naive"].mean()
    folded = frame.groupby("dataset")["g_own"].mean()
    assert model["g_own"]["median"] == pytest.approx(folded.median(), rel=1e-12)
    for gain in ("g_own", "g_shuffled", "g_margin"):
        assert set(model[gain]) == {"median", "positive", "n", "evidence"}
    assert model["g_own"]["n"] == model["g_own"]["evidence"]["clusters"] == len(folded)
    assert model["g_own"]["evidence"]["p"] == (1.0 if folded.min() < 0 < folded.max() else 0.5)  # of two signs


@pytest.mark.slow
def test_a_killed_audit_goes_on_where_it_stopped_and_ends_with_the_same_digits(audited, tmp_path: Path) -> None:
    reference, _ = audited
    command = [sys.executable, "-m", "hrx.cli", "audit", *QUICK]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger = tmp_path / "hrx-audit" / "ledger.db"
    deadline = time.monotonic() + 120
    while not stored(ledger) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = stored(ledger)
    assert 1 <= kept < 4
    again = hrx("audit", *QUICK, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"{kept} of them stored" in again.stderr
    one, two = (read(p / "hrx-audit" / "ledger.db").drop(columns=TIMES) for p in (reference, tmp_path))
    assert one.sort_values("key").reset_index(drop=True).equals(two.sort_values("key").reset_index(drop=True))


def stored(ledger: Path) -> int:
    if not ledger.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    except sqlite3.OperationalError:  # it is being made
        return 0


def test_verify_shows_six_checks_and_admits_the_embedded_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bolt-mini", "--settings", "96x24", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["admitted"] is True
    assert [c["check"] for c in output["checks"]] == [
        "equivalence", "isolation", "determinism", "gradient path", "trained head", "derivative",
    ]  # fmt: skip
    assert all(c["setting"] == "96x24" and c["passed"] for c in output["checks"])
    assert output["parity"] == output["checks"][0]["figure"]


CHEAT = """
import torch

def sampled():
    return lambda x: x[:, :24] + 0.1 * torch.randn(len(x), 24)
"""


def test_verify_of_a_model_that_cheats_fails_and_says_what_it_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cheat.py").write_text(CHEAT)
    assert main(["verify", f"module:{tmp_path / 'cheat.py'}:sampled", "--settings", "96x24"]) == 1
    out = capsys.readouterr().out
    assert "NOT admitted" in out
    assert "the forecast is sampled" in out


def test_verify_shows_a_setting_beyond_the_models_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bolt-mini", "--settings", "600x24"]) == 1
    assert "reads a lookback of at most 512, not 600" in capsys.readouterr().out


def test_models_and_datasets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    models = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert next(iter(models)) == "bolt-mini"
    assert {"chronos-2", "ttm-r2", "chronos-bolt-base"} <= set(models)
    assert (models["bolt-mini"]["inputs"]["targets"], models["chronos-2"]["inputs"]["targets"]) == ([1, 1], [1, None])
    assert models["chronos-2"]["inputs"]["future"]["accepts"] == "optional"
    assert models["bolt-mini"]["outputs"]["point"] == "median"
    assert main(["datasets", "--json"]) == 0
    listed = {d["name"]: d for d in json.loads(capsys.readouterr().out)}
    assert listed["seattle/D"]["series"] == 4
    assert main(["models"]) == 0
    table, _, families, *_ = capsys.readouterr().out.split("\n\n")
    assert max(map(len, f"{table}\n{families}".split("\n"))) <= 100
    (row,) = (line.split() for line in families.split("\n") if line.startswith("timer "))
    assert row == ["timer", "one", "target", "point"]
    assert main(["datasets"]) == 0
    assert "elnino/M" in capsys.readouterr().out


def wrong(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence that a wrong request is answered with; nothing else may be printed."""
    try:
        code = main(list(arguments))
    except SystemExit as ended:  # of the parser
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_a_mistyped_verb_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong(capsys, "adit", "bolt-mini").startswith("hrx: Unknown verb 'adit'. Did you mean 'audit'")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bolt-mni"], "Did you mean 'bolt-mini'"),
        (["./no/such/path"], "Unknown model './no/such/path'"),
        (["--data", "samples"], "Unknown source 'samples'. Did you mean 'sample'"),
        (["--data", "sample:elnin/M"], "Unknown dataset 'elnin/M'. Did you mean 'elnino/M'"),
        (["--data", "./nowhere"], "Unknown source"),
        (["--settings", "96"], "Unknown settings '96'"),
        (["--settings", "600x24"], "reads a lookback of at most 512, not 600"),
        (["--settings", "90000x24"], "too few for 90000x24"),
        (["--draws", "3"], "come in pairs"),
        (["--memory", "0"], "is not a valid amount of memory"),
        (["--memory", "inf"], "is not a valid amount of memory"),
        ([""], "Unknown model ''"),
        (["--data", ""], "Unknown source ''"),
        (["--precision", "-1"], "is not a number above 0"),
    ],
)
def test_a_wrong_request_is_answered_in_words(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in wrong(capsys, "audit", *arguments)
    assert not list(tmp_path.glob("**/*.png"))


def test_a_ledger_that_is_not_one_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("years of work " * 200)
    assert "is not a ledger" in wrong(capsys, "audit", *QUICK, "--ledger", str(file), "--out", str(tmp_path))
    assert file.read_text() == "years of work " * 200


def test_damaged_weights_are_named(
    tmp_path: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(checkpoints["ttm"], tmp_path / "damaged")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    assert "model.safetensors is damaged" in wrong(capsys, "audit", str(path), *QUICK, "--out", str(tmp_path))


def test_a_damaged_dataset_makes_the_audit_incomplete_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hrx.api import audit_plan as module
    from hrx.gift_eval import Dataset, open_source

    broken = Dataset.damaged("broken/H", "broken/H/data.arrow is cut short")
    monkeypatch.setattr(module, "open_source", lambda spec: [*open_source("sample:elnino/M"), broken])
    options = ["--settings", "96x24", "--windows", "1", "--draws", "2", "--seeds", "1", "--out", str(tmp_path)]
    assert main(["audit", *options]) == 3
    out = capsys.readouterr().out
    assert "2 runs (1 failed) · 2 datasets" in out
    assert "data.arrow is cut short" in out


@pytest.mark.parametrize("verb", ["audit", "verify", "models", "datasets", "merge", "export"])
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"Example: hrx {verb}" in capsys.readouterr().out


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys\n"
        "try:\n    from hrx.cli import main; main(['audit', '--help'])\n"
        "except SystemExit:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


PUBLISHED_MARGIN = 0.118
"""Median g_margin of the published zero-shot runs."""


def test_audit_on_real_weights_and_real_data_reads_what_was_published(real_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    done = hrx(
        "audit", os.fspath(real_data / "checkpoints" / "ttm-r2"), "--data", os.fspath(real_data / "gift_eval"),
        "--settings", "512x24,512x96", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    frame = read(folder / "hrx-audit" / "ledger.db")
    scored = frame[frame["status"] == "done"]
    assert len(scored) >= 30
    assert scored["parity"].max() <= 1e-6
    assert (scored["g_margin"] > 0).mean() > 0.5
    beating = fold_seeds(scored[scored["beats_naive"] == 1], ["g_margin"])
    margin = describe(beating["g_margin"])
    assert 0 < margin.low <= PUBLISHED_MARGIN <= margin.high
    # The card of the checkpoint, which is known by its content, names these two among its training data.
    seen = scored["dataset"].str.startswith(("us_births/", "saugeenday/"))
    assert set(scored[seen]["leakage"]) == {"declared"}
    assert set(scored[~seen]["leakage"]) == {"none declared"}
    by_horizon = scored.groupby("horizon")["g_own"].median()
    assert by_horizon[96] > by_horizon[24]
