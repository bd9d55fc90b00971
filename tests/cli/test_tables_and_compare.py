"""`hrx tables` and `hrx compare` as a person or a pipeline meets them."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs, store
from helpers.noisy import noisy_bolt_mini

import hrx
from hrx.cli import main
from hrx.reports import read
from hrx.reports.text import counted

MARKS = [f"series{i}" for i in range(20)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return store(_side("base", 0.0), tmp_path / "base.db")


@pytest.fixture
def worse(tmp_path: Path) -> Path:
    return store(_side("worse", -0.3), tmp_path / "worse.db")


def _side(model: str, shift: float):
    gains = np.linspace(0.1, 0.5, 20) + shift
    return runs(
        20, model=model, fingerprint=model * 10, series_fingerprint=MARKS, key=[f"{model}{m}" for m in MARKS],
        g_own=gains, g_margin=gains, rank=1.5, mse=1.0 - shift, mae=0.5,
    )  # fmt: skip


def output(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """What a command prints."""
    assert main([str(argument) for argument in arguments]) == code
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The sentence that a wrong request is answered with; nothing else may be printed."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_tables_shows_all_that_the_ledger_can_fill(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "tables", base)
    assert [title in out for title in ("by model", "by dataset", "Margin by distance")] == [True, True, False]
    assert "+0.300" in out


@pytest.mark.parametrize(
    ("form", "sign"),
    [("md", "| base |"), ("tex", r"\toprule"), ("csv", "\nbase,"), ("html", "<caption>"), ("json", '"tables"')],
)
def test_a_table_comes_in_every_form(base: Path, form: str, sign: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "tables", base, "--table", "models", "--format", form, "--against", "published")
    assert sign in out
    assert "0.3" in out


def test_python_takes_a_path_or_a_frame_and_gives_a_frame(base: Path) -> None:
    (table,) = hrx.tables(base, "models")
    assert str(table) == str(hrx.tables(hrx.read(base), ["models"])[0])
    assert repr(table) == f"<Table models: {counted(len(table.rows), 'row')} × {len(table.columns)} columns>"
    both = table.to_frame(), pd.read_csv(StringIO(table.to_csv()))
    frame, written = (one.astype(object).where(one.notna(), None) for one in both)
    pd.testing.assert_frame_equal(frame, written)
    assert hrx.compare(str(base), base).pairs == hrx.compare(hrx.read(base), hrx.read(base)).pairs > 0


def test_tables_go_to_a_file_or_one_file_each(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "tables", base, "--format", "tex", "--out", tmp_path / "sub" / "all.tex") == ""
    assert (tmp_path / "sub" / "all.tex").read_text().count(r"\end{table}") == 8
    output(capsys, "tables", base, "--format", "csv", "--out", tmp_path / "tables")
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {
        f"{n}.csv" for n in ("models", "models_full", "metrics", "axes", "datasets", "estimators", "rank", "accuracy")
    }
    whole = json.loads(output(capsys, "tables", base, "--format", "json"))
    assert whole["tables"][0]["name"] == "models"


def test_wrong_requests_for_tables_are_answered_in_words(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "A CSV file holds one table, and there are 8" in refused(capsys, "tables", base, "--format", "csv")
    assert "Did you mean 'models'" in refused(capsys, "tables", base, "--table", "model")
    assert "does not exist" in refused(capsys, "tables", tmp_path / "none.db")
    assert "is a ledger and would be overwritten" in refused(capsys, "tables", base, "--out", base)
    assert "--out: cannot create /proc/none" in refused(capsys, "tables", base, "--out", "/proc/none/x.txt")
    assert len(read(base)) == 20


def test_compare_passes_itself_and_exits_0(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "compare", base, base, "--gate", "g_margin >= -0", "--gate", "mse <= +0%", "--strict")
    assert "Verdict: passed: all 2 gates; over 20 pairs of runs in 20 series." in out


def test_a_failed_gate_exits_1_after_every_report_is_written(
    base: Path, worse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, junit, report = tmp_path / "summary.md", tmp_path / "junit.xml", tmp_path / "report.json"
    arguments = [base, worse, "--gate", "g_margin >= -0.02", "--summary", summary, "--junit", junit, "--json", report]
    out = output(capsys, "compare", *arguments, code=1)
    assert "FAILED     g_margin >= -0.02: the interval lies beyond the bound\n" in out
    assert "| **FAILED** |" in summary.read_text()
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    assert json.loads(report.read_text())["gates"][0]["outcome"] == "failed"
    output(capsys, "compare", *arguments, "--informational")


def test_compare_prints_json_alone_where_it_is_asked_to(
    base: Path, worse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(output(capsys, "compare", base, worse, "--json"))
    assert report["quantities"]["mse"]["relative"]["difference"] == pytest.approx(0.3)
    assert report["verdict"].startswith("informational")


def test_too_few_pairs_exit_4_with_the_report(
    base: Path, worse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    output(capsys, "compare", base, worse, "--min-pairs", "21", "--summary", summary, code=4)
    assert "undecided: 20 pairs of runs in 20 series, at least 21 series are needed" in summary.read_text()


def test_wrong_requests_to_compare_are_answered_in_words(
    base: Path, worse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "at position 10, not" in refused(capsys, "compare", base, worse, "--gate", "g_margin > 0")
    assert "Only one ledger was given" in refused(capsys, "compare", base)
    assert "does not exist" in refused(capsys, "compare", base, "none.db")
    # Before the ledgers, --json takes the first of them for its file.
    assert "is a ledger and would be overwritten" in refused(capsys, "compare", "--json", base, worse)
    both = store(pd.concat([read(base), read(worse)], ignore_index=True), base.with_name("both.db"))
    assert "BASE holds several models" in refused(capsys, "compare", both, both)
    assert len(read(base)) == 20


GATES = ("g_margin >= -0.02", "mse <= +2%", "beats_naive >= -5%", "parity <= 1e-5")
NOISE = (2, 15, 50)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bolt-mini and copies of it with noise on the weights, audited on the same eight series into one ledger."""
    folder = tmp_path_factory.mktemp("audited")
    noisy = [str(noisy_bolt_mini(folder, percent)) for percent in NOISE]
    cheap = ["--settings", "96x24", "--series", "4", "--seeds", "1", "--windows", "1", "--draws", "2"]
    assert main(["audit", "bolt-mini", *noisy, *cheap, "--out", str(folder)]) == 0
    return folder / "ledger.db"


def compared(capsys: pytest.CaptureFixture[str], ledger: Path, new: str, *options: str, code: int) -> dict[str, Any]:
    """The report on a model of the ledger against bolt-mini, under the default gates of the action."""
    gates = [part for expression in GATES for part in ("--gate", expression)]
    both = ["--base-model", "bolt-mini", "--new-model", new]
    return json.loads(output(capsys, "compare", ledger, *both, *gates, *options, "--json", code=code))


@pytest.mark.slow
def test_a_real_checkpoint_compared_with_itself_passes(audited: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = compared(capsys, audited, "bolt-mini", "--strict", code=0)
    assert report["pairs"] == 12
    moved = {(q["difference"], q["low"], q["high"]) for name, q in report["quantities"].items() if name != "parity"}
    assert moved == {(0, 0, 0)}
    assert {gate["outcome"] for gate in report["gates"]} == {"passed"}


@pytest.mark.slow
@pytest.mark.parametrize("percent", NOISE)
def test_noise_on_the_weights_lists_the_datasets_whose_error_rose_and_much_of_it_fails(
    audited: Path, percent: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rise of each dataset is computed here from the records, at one setting: the median series."""
    frame = read(audited)
    errors = {
        model: frame[frame["model"] == model]
        .set_index(["dataset", "series", "seed"])["mse"]
        .groupby(level=[0, 1])
        .mean()
        for model in ("bolt-mini", f"noise{percent}")
    }
    base, new = errors["bolt-mini"], errors[f"noise{percent}"]
    median = (new / base - 1).groupby(level=0).median()
    rose = {name for name in median.index if median[name] > 0.02}
    assert rose, "this noise harms no dataset: the test shows nothing"
    report = compared(capsys, audited, f"noise{percent}", "--informational", code=0)
    (error,) = [gate for gate in report["gates"] if gate["gate"] == "mse <= +2%"]
    assert {one["dataset"] for one in error["datasets"]} == rose
    compared(capsys, audited, f"noise{percent}", code=1 if report["verdict"].startswith("failed") else 4)
    if percent == max(NOISE):
        assert error["outcome"] == "failed"


def test_a_terminal_without_a_letter_shows_a_question_mark_and_the_exit_code_stays(base: Path) -> None:
    command = [sys.executable, "-m", "hrx.cli", "tables", str(base), "--table", "rank", "--against", "published"]
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    command = [sys.executable, "-m", "hrx.cli", "tables", str(base), "--table", "Δ"]
    done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Unknown table '?'" in done.stderr


def test_an_estimator_that_no_run_has_is_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = refused(capsys, "tables", base, "--estimator", "occlusion")
    assert "No scored run is of the estimator 'occlusion'. The ledger holds" in output


def test_a_ledger_is_never_overwritten_by_an_export_or_an_explanation(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = base.read_bytes()
    assert "is a ledger and would be overwritten" in refused(capsys, "export", base, "--format", "csv", "--out", base)
    setting = ("--lookback", "96", "--horizon", "24")
    output = refused(capsys, "explain", "bolt-mini", "--series", "sample:co2", *setting, "--out", base)
    assert "is a ledger and would be overwritten" in output
    assert base.read_bytes() == before
