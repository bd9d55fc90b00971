"""`hrx explain`: one series of a person's own, one forecast, one page."""

import html
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.browser import open_browser

import hrx
from hrx.adapters import from_module
from hrx.audit import explain as explain_windows
from hrx.cli import main
from hrx.cli.explain import find_series
from hrx.errors import HrxError
from hrx.records.explanation import Explanation, Trust
from hrx.records.ledger import StoredCheck
from hrx.records.quantities import Skill
from hrx.reports.page.explain import render, trust_sentence

LOOKBACK, HORIZON = 32, 8


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two series by day, one of them with a gap, and a column of words."""
    rng = np.random.default_rng(0)
    days = np.arange("2024-01-01", "2024-10-01", dtype="datetime64[D]")
    units = 50 + 10 * np.sin(2 * np.pi * np.arange(len(days)) / 8) + rng.normal(size=len(days))
    lines = [f"{day},{value:.4f},{2 * value:.4f},fine" for day, value in zip(days, units, strict=True)]
    lines[100] = f"{days[100]},,1,fine"
    path = tmp_path / "sales.csv"
    path.write_text("day,units,returns,remark\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def model():
    """Forecasts the season of eight that it saw last: step h reads position h − 8 and nothing else."""

    class Season(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, -8:] * 1.0

    return from_module(Season(), name="season")


@pytest.fixture
def good(table, model) -> Explanation:
    """Can be read step by step."""
    return hrx.explain(model, find_series(f"{table}:units"), HORIZON, lookback=LOOKBACK, held_out=True)


def changed(x: Explanation, **values: object) -> Explanation:
    """The explanation with other held-out scores."""
    return replace(x, held_out=(replace(x.held_out[0], **values),))


def test_the_rows_are_those_of_the_last_window_and_the_forecast_is_in_the_series_own_unit(table, model, good):
    found = find_series(f"{table}:units")
    np.testing.assert_array_equal(good.x[0], found.series.values[-LOOKBACK:])
    np.testing.assert_allclose(good.forecast[0], found.series.values[-8:], rtol=1e-5)
    expected = np.zeros((HORIZON, LOOKBACK))
    expected[np.arange(8), LOOKBACK - 8 + np.arange(8)] = 1
    np.testing.assert_allclose(good.matrix[0], expected, atol=1e-6)
    x = torch.randn(1, LOOKBACK)
    np.testing.assert_allclose(explain_windows(model, x, HORIZON)[0].numpy(), expected, atol=1e-6)
    assert good.times[0].inputs[-1] == pd.Timestamp("2024-09-30")
    assert len(good.times[0].inputs) == LOOKBACK
    assert good.held_out[0].trust is Trust.OWN_ROWS


def test_the_verdict_is_the_first_reason_against_the_explanation(good, tmp_path):
    failed = StoredCheck("f", "l", "1", "t", "m", "32x8", "derivative", False, 1.0, 0.1, "differs")
    worse = Skill(2.0, 1.0, 1.0, 1.5, 1.0)
    verdicts = {
        Trust.NOT_ADMITTED: changed(good, checks=(*good.held_out[0].checks, failed), skill=worse),
        Trust.NOT_SCORED: changed(good, quantities=None, skill=None, unscored="constant forecast"),
        Trust.NOT_BETTER_THAN_NAIVE: changed(good, skill=worse),
        # t of the 4 degrees of freedom is 2.776, so an error of 0.02 gives ± 0.0555.
        Trust.NO_EVIDENCE: _with_gains(good, own=0.5, margin=0.055),
        Trust.SHARED: _with_gains(good, own=0.055, margin=0.056),
        Trust.OWN_ROWS: _with_gains(good, own=0.5, margin=0.5),
    }
    for trust, x in verdicts.items():
        assert x.held_out[0].trust is trust
        assert trust_sentence(x.held_out[0]).split(":")[0] in render(x)
    assert "derivative has 1 against 0.1" in render(verdicts[Trust.NOT_ADMITTED])
    assert "Made from Python, without a command." in good.write_page(tmp_path / "x.html").read_text()
    with pytest.raises(HrxError, match="held_out=True"):
        replace(good, held_out=()).write_page(tmp_path / "y.html")


@pytest.mark.parametrize(
    ("mse_seasonal", "sentence"),
    [
        (0.4, 'data-passed="unsure">Seasonal naive: squared error 0.5, not below repeating the last season (0.4).'),
        (0.6, 'data-passed="yes">Seasonal naive: squared error 0.5, below repeating the last season (0.6).'),
        (float("nan"), 'data-passed="unsure">Seasonal naive: unknown.'),
    ],
)
def test_seasonal_naive_stands_beside_the_naive_forecasts_and_decides_nothing(good, mse_seasonal, sentence):
    x = changed(good, skill=Skill(0.5, 0.5, 1.0, 1.0, mse_seasonal))
    assert sentence in render(x)
    assert x.held_out[0].trust is good.held_out[0].trust


def _with_gains(x: Explanation, own: float, margin: float) -> Explanation:
    quantities = x.held_out[0].quantities
    assert quantities is not None
    normalised = quantities.normalised._replace(g_own=own, g_margin=margin)
    error = quantities.error._replace(g_own=0.02, g_margin=0.02)
    return changed(x, quantities=replace(quantities, normalised=normalised, error=error))


def test_windows_whose_matrix_is_zero_are_reported_instead_of_a_rank(good):
    quantities = good.held_out[0].quantities
    assert "is zero" not in render(good)
    some = changed(good, quantities=replace(quantities, rank_dropped=1))
    assert "The matrix of 1 of 4 windows is zero and left out of both." in render(some)
    nothing = replace(quantities, rank=float("nan"), effective_lookback=float("nan"), rank_dropped=4)
    page = render(changed(good, quantities=nothing))
    assert "The matrix of every held-out window is zero: it has no rank" in page
    assert "Rank of the matrix" not in page


LEVEL = """
import torch, hrx

def level():
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 8)
    return hrx.from_module(lambda x: torch.relu(layer(x)) + 1, name="level", scale=SCALE)
"""


@pytest.mark.parametrize("scale", ["'raw'", "'standardised'", "(40.0, 8.0)"])
def test_the_command_gives_forecast_matrix_and_notes_of_python(scale, table, tmp_path, capsys):
    (tmp_path / "level.py").write_text(LEVEL.replace("SCALE", scale))
    name = f"module:{tmp_path / 'level.py'}:level"
    words = ["--series", f"{table}:units", "--lookback", "32", "--horizon", "8", "--out", str(tmp_path / "x.html")]
    assert main(["explain", name, *words, "--estimator", "occlusion", "--json"]) == 0
    shown = capsys.readouterr()
    (printed,) = json.loads(shown.out)["explanations"]
    x = hrx.explain(name, f"{table}:units", HORIZON, lookback=LOOKBACK, estimator="occlusion")
    assert printed["forecast"] == x.forecast[0].tolist()
    assert printed["matrix"] == x.matrix[0].tolist()
    assert printed["steps"] == list(x.steps)
    assert printed["notes"] == list(x.notes)
    assert len(x.notes) == (scale != "'raw'")
    assert all(f"{sentence}." in shown.err for sentence in x.notes)
    # By hand: the layer reads values of its scale, and its forecast returns to the unit of the series.
    torch.manual_seed(0)
    layer, values = torch.nn.Linear(32, 8), find_series(f"{table}:units").series.values
    past = values[: len(values) - -(-len(values) // 5)]
    mean, std = {"'raw'": (0, 1), "(40.0, 8.0)": (40, 8)}.get(scale, (past.mean(), past.std()))
    z = torch.as_tensor((values[-LOOKBACK:] - mean) / std, dtype=torch.float32)
    by_hand = (torch.relu(layer(z)) + 1).detach().numpy() * std + mean
    np.testing.assert_allclose(x.forecast[0], by_hand, rtol=1e-5)


def test_a_gap_repeats_the_value_before_it_and_keeps_its_date(table):
    found = find_series(f"{table}:units")
    assert found.series.values[100] == found.series.values[99]
    assert found.series.missing == 1
    assert found.times[100] == pd.Timestamp("2024-04-10")


def test_a_table_without_dates_is_read_in_the_order_of_its_rows(tmp_path):
    (tmp_path / "plain.csv").write_text("step,value\n" + "".join(f"{k},{k * k}\n" for k in range(50)))
    found = find_series(f"{tmp_path / 'plain.csv'}:value")
    assert found.times is None
    np.testing.assert_array_equal(found.series.values, np.arange(50.0) ** 2)


def test_a_series_of_a_long_table_is_chosen_by_its_name(tmp_path):
    rows = [f"2024-01-{day:02d},{shop},{day + (shop == 'b') * 100}" for day in range(1, 29) for shop in "ab"]
    (tmp_path / "long.csv").write_text("date,shop,units\n" + "\n".join(rows) + "\n")
    np.testing.assert_array_equal(find_series(f"{tmp_path / 'long.csv'}:b").series.values, np.arange(101.0, 129))


def test_the_embedded_sample_can_be_explained_without_a_file():
    assert find_series("sample:elnino/M").series.item == "temperature"
    assert find_series("sample:seattle/D:wind").series.item == "wind"
    with pytest.raises(HrxError, match=r"holds 4 series: .*sample:seattle/D:precipitation"):
        find_series("sample:seattle/D")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (":unit", r"Unknown column 'unit'. Did you mean 'units'"),
        ("", r"holds 2 series: units, returns. Name one, as in --series .*sales.csv:units"),
        (":remark", r"row 2, column 'remark': 'fine' is not a number"),
    ],
)
def test_a_column_that_is_missing_or_ambiguous_is_refused(table, asked, sentence):
    with pytest.raises(HrxError, match=sentence):
        find_series(f"{table}{asked}")


def test_a_missing_file_and_a_short_series_are_sentences(table, tmp_path, capsys):
    common = ["--lookback", "300", "--horizon", "8", "--out", str(tmp_path / "page.html")]
    assert main(["explain", "bolt-mini", "--series", f"{tmp_path}/none.csv:units", *common]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["explain", "bolt-mini", "--series", f"{table}:units", *common]) == 2
    assert "274 values, but the setting 300x8 needs at least 308" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
def test_the_embedded_checkpoint_explains_a_series_of_ones_own(table, tmp_path, capsys):
    page = tmp_path / "new" / "page.html"
    command = [
        "explain",
        "bolt-mini",
        "--series",
        f"{table}:units",
        "--lookback",
        "96",
        "--horizon",
        "24",
        "--out",
        str(page),
    ]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert output.startswith("Verdict: ")
    shown = page.read_text()
    data = json.loads(re.search(r'id="window">(.*?)</script>', shown).group(1))
    assert (len(data["x"]), len(data["forecast"]), data["rows"]) == (96, 24, 24)
    assert data["labels"][-1] == "2024-09-30"
    (again,) = re.findall(r"<pre>(.*?)</pre>", shown)
    words = shlex.split(html.unescape(again).replace("PATH/", f"{table.parent}/"))
    assert [*words[1:], "--out", str(page)] == [*command[:-2], "--estimator", "input_gradient", *command[-2:]]
    _look(page)


def _look(page: Path) -> None:
    """In a browser, where there is one: no complaint, no request, and a step can be chosen."""
    with open_browser() as opened:
        opened.open(page, width=375, height=700)
        assert opened.run("document.documentElement.scrollWidth") == 375
        overflow = "[...document.querySelectorAll('.wide')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert opened.run(overflow) == 0
        opened.tab.locator("input[type=range]").fill("7")
        assert opened.text(".readout").startswith("Step 8 reads position -1 (2024-09-30)")
        assert opened.text("#steps-note").startswith("Step 8 of 24")
        assert len(opened.texts("#top-points tbody tr")) == 10
        with opened.tab.expect_download() as waiting:
            opened.tab.click("text=Save as PNG")
        assert waiting.value.suggested_filename == "bolt-mini--units--96x24.png"
        assert opened.complaints == []
        assert all(url.startswith("file:") for url in opened.requests)


def test_one_column_of_values_is_a_series_and_needs_a_header(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("load\n" + "".join(f"{value}\n" for value in range(5)))
    assert find_series(f"{path}:load").series.values.tolist() == [0, 1, 2, 3, 4]
    assert find_series(str(path)).series.item == "load"
    path.write_text("0.5\n1.5\n")
    with pytest.raises(HrxError, match="no header: its first row holds a number"):
        find_series(str(path))


def test_several_datasets_of_the_sample_are_refused_rather_than_cut_to_one() -> None:
    with pytest.raises(HrxError, match=r"several datasets\. Give one, as in sample:co2/W"):
        find_series("sample:co2,elnino")


FACTORIES = """
import torch

class Last(torch.nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = torch.nn.Parameter(torch.tensor(float(period)))
        self.count = period

    def forward(self, x):
        return torch.cat([x[:, -self.count:]] * 8, dim=1)[:, :8] * (self.period / self.count)

def weekly(): return Last(8)
def daily(): return Last(1)
"""


def test_several_models_and_series_stand_once_each_on_one_page_with_files_in_new_folders(
    table, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(FACTORIES)
    pd.read_csv(table, parse_dates=["day"]).drop(columns="remark").to_parquet(tmp_path / "sales.parquet")
    series = ["--series", "sales.parquet:units", "--series", "sales.parquet:returns"]
    common = ["--lookback", "32", "--horizon", "8", "--out", "page.html", "--csv", "new/x.csv", "--png", "made/x.png"]
    twice = ["module:models.py:weekly", "module:models.py:daily", "module:models.py:weekly"]
    assert main(["explain", *twice, *series, *series[:2], *common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["explanations"]
    names = [("models:weekly", "units"), ("models:weekly", "returns"), ("models:daily", "units")]
    assert [(one["model"], one["series"]) for one in found][:3] == names
    assert found[0]["forecast_times"] == [f"2024-10-0{day}" for day in range(1, 9)]
    np.testing.assert_allclose(np.argmax(found[0]["matrix"], axis=1), np.arange(24, 32))
    np.testing.assert_allclose(np.argmax(found[2]["matrix"], axis=1), 31)
    assert len(found) == 4
    written = pd.read_csv("new/x.csv", parse_dates=["forecast_time", "input_time"])
    assert len(written) == 4 * 8 * 32
    assert (written["forecast_time"] - written["input_time"] == pd.to_timedelta(written["lag"], unit="D")).all()
    read = written[(written["model"] == "models:weekly") & (written["item"] == "returns") & (written["importance"] > 0)]
    assert (read["lag"] == 8).all()
    page = Path("page.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    links = set(re.findall(r"href=\"([^\"#]+\.html)\"", page))
    assert links == {path.name for path in Path().glob("page--*.html")}
    assert len(links) == 4
    pictures = sorted(Path("made").glob("x--*.png"))
    assert pictures[0].name == "x--1--models-weekly--units--32x8.png"
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--png", "x.jpg"], "has the suffix '.jpg'"),
        (["--csv", "sales.csv"], "sales.csv"),
        (["--csv", "sales.csv/x.csv"], "--csv: sales.csv may not be written: it is not a directory"),
        (["--csv", "page.html"], "--out and --csv name the same file"),
        (["--series", "gift-eval:nothing"], "GIFT"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(words, sentence, table, monkeypatch, capsys):
    monkeypatch.chdir(table.parent)
    monkeypatch.setenv("GIFT_EVAL", "nowhere")
    common = ["--series", "sales.csv:units", "--lookback", "32", "--horizon", "8", "--out", "page.html"]
    before = table.read_bytes()
    assert main(["explain", "bolt-mini", *common, *words]) == 2
    assert sentence in capsys.readouterr().err
    assert table.read_bytes() == before
    assert not Path("page.html").exists()


def test_the_needed_context_of_a_series_is_printed_and_on_the_page(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "season.py").write_text("def season():\n    return lambda x: x[:, -8:] * 1.0\n")
    page = tmp_path / "page.html"
    asked = ["explain", f"module:{tmp_path / 'season.py'}:season", "--series", f"{table}:units", "--lookback=32"]
    assert main([*asked, "--horizon=8", "--out", str(page), "--sweeps", "context", "--context-bound=0.02"]) == 0
    shown = capsys.readouterr().out
    assert "Needed context, to keep the forecasts within 2 % of their variance: at most 8 of 32" in shown
    assert "Really cut to 8, the forecasts change by 0 %" in shown
    text = html.unescape(page.read_text())
    assert "p_margin <0.001: the share of all assignments" in text
    assert "within 2 % of their variance: at most 8 of 32" in text
    assert "--sweeps context --context-bound 0.02" in text
    assert main([*asked, "--horizon=8", "--out", str(page), "--sweeps", "context", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["explanations"]
    assert found["p_margin"] == pytest.approx(1 / 40320)  # eight steps, each of which reads a value of its own
    assert found["context"] == {"bound": 0.01, "needed": 8, "outcome": "holds", "shortest_cut": 8}
    assert main([*asked, "--horizon=8", "--out", str(page)]) == 0
    assert "Needed context" not in capsys.readouterr().out + page.read_text()


BOX = """
import hrx

def forecaster(past, ahead):
    last = past[past["step"] == 0].set_index("window")["load"]
    return 0.5 * last.loc[ahead["window"]].to_numpy() + 2 * ahead["temp"]

def box():
    return hrx.from_callable(forecaster, frame=True)
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A table whose last rows are the steps ahead, a model that reads its known future, and their words."""
    rng, rows = np.random.default_rng(0), 200 + HORIZON
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=rows, freq="h"), "temp": rng.normal(size=rows)})
    frame["price"] = rng.normal(size=rows)
    frame["load"] = 50 + 2 * frame["temp"] + rng.normal(size=rows)
    frame.loc[200:, ["load", "price"]] = np.nan
    frame.to_csv(tmp_path / "load.csv", index=False)
    (tmp_path / "box.py").write_text(BOX)
    monkeypatch.chdir(tmp_path)
    size = ["--lookback", str(LOOKBACK), "--horizon", str(HORIZON), "--estimator", "occlusion"]
    return ["explain", "module:box.py:box", "--series", "load.csv", *size]


def test_columns_have_roles_and_the_page_says_what_each_channel_does(
    load: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*load, "--target", "load", "--past", "price", "--future", "temp", "--csv", "all.csv", "--json"]
    assert main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)["explanations"]
    read = {(one["channel"], one["role"]): one["read"] for one in found["channels"]}
    assert read == {("load", "target"): True, ("price", "past"): False, ("temp", "future"): True}
    table = pd.read_csv("all.csv")
    assert table[table["channel"] == "temp"]["position"].max() == HORIZON - 1
    page = html.unescape(Path("hrx-explain.html").read_text(encoding="utf-8"))
    assert "What each channel does" in page
    section = page[page.index('id="channels"') :]
    rows = re.findall(r"<tr>(.*?)</tr>", section[: section.index("</table>")], re.S)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) for row in rows]
    assert [[one[0], one[1], one[5]] for one in cells if one] == [
        ["temp", "future", "from step 1"], ["load", "target", "from step 1"], ["price", "past", "not read"],
    ]  # fmt: skip
    assert "--future temp" in page  # the command that makes it again


def test_a_column_without_a_role_and_a_wrong_output_are_sentences(
    load: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for more, sentence in (
        (["--target", "load", "--future", "temp"], "price"),
        (["--target", "load", "--past", "price", "--future", "temp", "--output", "highest"], "is not an output"),
        (["--target", "load", "--past", "price", "--future", "temp", "--output", "0.9"], "gives no quantiles"),
        (["--target", "load", "--past", "prices", "--future", "temp"], "prices"),
    ):
        assert main([*load, *more]) == 2
        assert sentence in capsys.readouterr().err
    assert not Path("hrx-explain.html").exists()
