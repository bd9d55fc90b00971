"""`hrx calibrate` as a person meets it, on one small shape so that it takes seconds."""

import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hrx.api import checkpoints as verb
from hrx.audit.calibration import CalibrationSize
from hrx.cli import main
from hrx.records.calibration import GENERATORS, Calibration
from hrx.reports.calibration import calibration_json, render_calibration, write_calibration
from hrx.reports.published import published_ground_truth

SMALL = CalibrationSize("quick", ((64, 24),), seeds=1, ranks=(1, 4, 12), windows=2)


@pytest.fixture(scope="module")
def made() -> Calibration:
    return verb.run_calibration(["linear"], effort=SMALL)


@pytest.fixture
def quickly(made: Calibration, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The verb on a calibration that is there already."""

    monkeypatch.setattr(verb, "QUICK", SMALL)
    monkeypatch.setattr(verb, "run_calibration", lambda backbones, **options: unpictured(made))
    return monkeypatch


def unpictured(made: Calibration) -> Calibration:
    """Without its examples: drawing them takes most of the time."""
    return replace(made, examples=())


def broken(made: Calibration) -> Calibration:
    return replace(made, results=tuple(replace(result, g_own=-result.g_own - 1) for result in made.results))


@pytest.mark.slow
def test_it_ends_with_a_verdict_tables_beside_the_published_ones_and_a_figure_of_each_generator(
    quickly: pytest.MonkeyPatch, made: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quickly.setattr(verb, "run_calibration", lambda backbones, **options: made)
    assert main(["calibrate", "--backbones", "linear", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "Verdict: sound" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80  # the last line names the directory
    for shown in ("AUPRC vector", "0.586", "0.983", "+0.142", "-0.215", "+0.357", "-0.089", *GENERATORS):
        assert shown in out
    files = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {f"{name}.png" for name in (*GENERATORS, "planted-rank")}
    assert files == pictures | {"calibration.md", "calibration.json", "results.csv"}
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_json_has_what_the_design_promises_and_equals_the_results_file(
    quickly: pytest.MonkeyPatch, made: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--backbones", "linear", "--out", str(tmp_path), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [cell["generator"] for cell in output["backbones"]] == list(GENERATORS)
    with open(tmp_path / "results.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["curve_only"] == "False"]
    for cell, row in zip(output["backbones"], rows, strict=True):
        assert cell["learned"] == cell["runs"] == 1
        for name in ("g_own", "g_shuffled", "g_margin", "auprc_vector", "auprc_matrix", "aur_matrix"):
            assert cell[name] == float(row[name])
    assert [round(point["planted"]) for point in output["planted_rank"]] == [1, 4, 8, 12]
    assert output["verdict"].startswith("sound")
    assert output == json.loads((tmp_path / "calibration.json").read_text()) == calibration_json(made)


def test_a_failing_criterion_is_exit_code_1_after_the_report(
    quickly: pytest.MonkeyPatch, made: Calibration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quickly.setattr(verb, "run_calibration", lambda backbones, **options: broken(unpictured(made)))
    assert main(["calibrate", "--backbones", "linear", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "Verdict: NOT sound" in out
    assert "gains in the ideal directions  FAIL" in out
    assert "**Verdict:** NOT sound" in (tmp_path / "calibration.md").read_text()


def test_what_was_not_learned_shows_its_share_and_no_figure(made: Calibration) -> None:
    results = tuple(replace(t, explained=0.5) if t.generator == "lagmix" else t for t in made.results)
    forgetful = replace(made, results=results)
    (line,) = (one for one in render_calibration(forgetful).splitlines() if one.startswith("lagmix"))
    assert line.split() == ["lagmix", "0.5000", "-", "-", "-", "-", "+0.813", "-"]
    (cell,) = (one for one in calibration_json(forgetful)["backbones"] if one["generator"] == "lagmix")  # type: ignore[attr-defined]
    assert cell["learned"] == 0
    assert cell["g_own"] is None


def test_another_estimator_stands_beside_its_own_published_row(made: Calibration) -> None:
    shown = render_calibration(replace(made, estimator="dynamask"))
    assert "0.756" in shown
    assert "0.983" not in shown
    assert "-0.089" not in shown
    assert "tab:gt_body" in shown


def test_the_same_calibration_writes_the_same_bytes(made: Calibration, tmp_path: Path) -> None:
    small = replace(made, examples=made.examples[:1])
    one, two = (write_calibration(small, tmp_path / name) for name in ("one", "two"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_published_gains_are_consistent() -> None:
    tables = published_ground_truth()
    for row in tables["backbones"].rows.values():
        assert row["g_margin"] == pytest.approx(row["g_own"] - row["g_shuffled"], abs=0.0011)
    assert all(row["sparsenull"] < 0 for row in tables["gaps"].rows.values())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--backbones", "lineer"], "Unknown backbone 'lineer'. Did you mean 'linear'?"),
        (["--backbones", ","], "No backbone is given. Known: linear, cnn, transformer."),
        (["--estimator", "dynamsk"], "Unknown estimator 'dynamsk'. Did you mean 'dynamask'"),
        (["--out", "/proc/hrx"], "cannot create /proc/hrx"),
    ],
)
def test_a_wrong_request_is_a_sentence_before_any_training(
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "run_calibration", None)
    assert main(["calibrate", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_directory_that_may_not_be_written_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "run_calibration", None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a test may run as a user who may write anywhere
    assert main(["calibrate", "--out", str(tmp_path)]) == 2
    assert "may not be written" in capsys.readouterr().err


def test_stopping_it_leaves_nothing_behind(tmp_path: Path) -> None:
    # The script and not `python -m`, which Python ends by the signal itself where it was interrupted within `exec`, as
    # in the making of a dataclass; a shell reports 130 for both.
    command = [sys.executable, "-u", str(Path(sys.executable).with_name("hrx")), "calibrate", "--out", "out"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # Whoever starts the tests in the background has switched this signal off for all below.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert "31 models" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Nothing was written" in said
    assert list(tmp_path.iterdir()) == []
