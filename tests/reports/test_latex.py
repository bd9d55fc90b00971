"""Every LaTeX table compiles with pdflatex and fits the page."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs, store

from hrx.cli import main
from hrx.reports import tables
from hrx.reports.cells import TableColumn, TableRow
from hrx.reports.latex import latex_document
from hrx.reports.published import datasets
from hrx.reports.table import ReportTable

LATEX = shutil.which("pdflatex")
needs_latex = pytest.mark.skipif(
    LATEX is None, reason="pdflatex is not installed: apt-get install texlive-latex-extra texlive-latex-recommended"
)
NAMES = [
    "[1.0, 1.1)", "* starred", "[", r"\input{/etc/passwd} $x^2$ 50% #1 {a} ~b & c_d", "a^b `c` \"d\" <e> |f|",
    "x" * 5000,
    "数据集" * 30, "שלום", "Zürich Łódź Ålesund naïve Ő ș", "±°µ≤≥–—’“”×−∞Δπ", "a" + "\u0301" * 500, "", "-",
]  # fmt: skip


def compiled(source: str, folder: Path, name: str = "document") -> str:
    """What pdflatex printed about a document that it could compile."""
    (folder / f"{name}.tex").write_text(source, encoding="utf-8")
    command = [str(LATEX), "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", f"{name}.tex"]
    # A document that never ends is an error of the table, and of this test only after it was stopped.
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    printed = done.stdout.decode("utf-8", errors="replace")
    assert done.returncode == 0, printed[-3000:]
    assert (folder / f"{name}.pdf").stat().st_size > 1000
    return printed


def troubles(printed: str) -> list[str]:
    """The complaints of pdflatex about what does not fit."""
    return [line for line in printed.splitlines() if "Overfull" in line or "Float too large" in line]


def a_whole_ledger() -> pd.DataFrame:
    """Runs of three models that fill every table, on all datasets of the paper and one more."""
    rng = np.random.default_rng(0)
    names = [*(one.dataset or one.name for one in datasets().values()), "my very own dataset, with a long name/15T"]
    models = [("Chronos-2", "amazon/chronos-2"), ("ttm", "ibm-granite/granite-timeseries-ttm-r2"), ("mine", "mine")]
    measured = [
        "g_own", "g_shuffled", "g_margin", "comprehensiveness", "aopc", "sufficiency", "insertion", "gap_shared",
        "g_own_channel", "matrix_seconds", "forward_seconds", "mse", "mse_zero", "mse_last", "mse_seasonal", "mase",
        "naive_mase", "seasonal_mase", *(f"g_own_rank_{r}" for r in (1, 2, 4, 8)),
        *(f"g_distance_{d}" for d in (1, 2, 4, 8, 16, 32)),
    ]  # fmt: skip
    frames = []
    for model, checkpoint in models:
        for axis, seed in (("step", 0), ("step", 1), ("whole", 0)):
            n = 3 * len(names)
            columns = {name: rng.lognormal(size=n) for name in measured} | {
                name: 1 + 3 * rng.random(n) for name in ("rank", "rank_channel")
            }
            about = {"model": model, "checkpoint": checkpoint, "fingerprint": model, "dataset": names * 3}
            series = [f"{model}{i}" for i in range(n)]
            keys = [f"{mark}{axis}{seed}" for mark in series]
            settings = {"lookback": [96] * len(names) + [512] * 2 * len(names), "horizon": 96}
            frames.append(
                runs(n, **about, **settings, series_fingerprint=series, key=keys, axis=axis, seed=seed,
                     leakage=["declared", "unknown", "none declared"] * len(names), **columns)
            )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return a_whole_ledger()


@needs_latex
@pytest.mark.parametrize("against", [None, "published"])
def test_every_table_compiles_and_fits_a_wide_page_and_a_narrow_one(
    frame: pd.DataFrame, against: str | None, tmp_path: Path
) -> None:
    made = tables(frame, against=against)
    assert len(made) == 15
    document = latex_document(table.to_latex() for table in made)
    assert troubles(compiled(document, tmp_path)) == []
    # The text of the standard class is 12 cm wide.
    narrow = document.replace(r"\usepackage[margin=2cm]{geometry}", "")
    assert narrow != document
    assert troubles(compiled(narrow, tmp_path)) == []


@needs_latex
def test_names_from_anywhere_compile_and_never_become_options_of_a_command(tmp_path: Path) -> None:
    columns = (TableColumn("name", "Name"), TableColumn("n", "n"))
    rows = [TableRow.of(columns, (name, 1), section=section) for section in ("", "[section]") for name in NAMES]
    total = TableRow(rows[0].cells, total=True)
    table = ReportTable("t", "A title with [brackets]", columns, (*rows, total), " ".join(NAMES[:5]))
    printed = compiled(latex_document([table.to_latex()]), tmp_path)
    assert troubles(printed) == []
    assert "root:" not in printed


@needs_latex
def test_a_directory_of_tables_has_a_document_that_reads_them_all(frame: pd.DataFrame, tmp_path: Path) -> None:
    ledger = store(frame.iloc[:60], tmp_path / "ledger.db")
    assert main(["tables", str(ledger), "--format", "tex", "--out", str(tmp_path / "out")]) == 0
    document = (tmp_path / "out" / "all.tex").read_text()
    names = {path.stem for path in (tmp_path / "out").glob("*.tex")} - {"all"}
    assert all(rf"\input{{{name}}}" in document for name in names)
    assert troubles(compiled(document, tmp_path / "out", "all")) == []
    assert main(["tables", str(ledger), "--format", "tex", "--out", str(tmp_path / "one.tex")]) == 0
    assert (tmp_path / "one.tex").read_text().startswith(r"\documentclass")


def test_a_row_stays_on_one_page_with_its_published_values(frame: pd.DataFrame) -> None:
    (table,) = tables(frame, ["datasets"], against="published")
    pages = table.to_latex().split(r"\begin{table}")[1:]
    assert len(pages) > 4
    assert all(page.count(r"\midrule") == 1 and f"of {len(pages)})" in page for page in pages)
    for page in pages:
        first = page.partition("\\midrule\n")[2].splitlines()[0]
        assert "published" not in first
        assert page.count(" \\\\\n") <= 44
