"""The page in a real browser: each section shows the selection, and what it saves explains itself."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from helpers import bootstrap, crowd
from helpers.browser import OpenPage, open_browser
from matplotlib import colormaps
from matplotlib.image import imread

from hrx.records.ledger import Ledger
from hrx.records.record import StoredCheck
from hrx.reports import read, write_report

FORMULA = '=SUM(1)+"x",y'
VISIBLE = "[...document.querySelectorAll({})].filter((e) => e.getClientRects().length)"


class Report(NamedTuple):
    """The runs of a ledger and its page."""

    frame: pd.DataFrame
    page: Path

    def chosen(self, **wanted: object) -> pd.DataFrame:
        """The runs with these values."""
        frame = self.frame
        for name, value in wanted.items():
            frame = frame[(frame[name] == value).fillna(False).astype(bool)]
        return frame


@pytest.fixture(scope="module")
def chromium() -> Iterator[OpenPage]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("selection")
    many = []
    for one in crowd.records(600, models=2, datasets=4):
        changes = {"dataset_02/H": {"mse_seasonal": None}, "dataset_03/H": {"dataset": FORMULA}}.get(one.dataset, {})
        if one.dataset == "dataset_00/H" and one.mse is not None:
            changes = {"mse_seasonal": 0.001 if one.model == "model-0" else 9.0}
        many.append(one.updated(**changes))
    path = crowd.write(folder / "ledger.db", many, 12)
    with Ledger.open(path) as ledger:
        ledger.write_all(
            StoredCheck(
                f"{m:064x}", "library 1.0", "1", "2.10.0", f"model-{m}", s, "equivalence", True, f, 1e-5, "note"
            )
            for m, s, f in ((0, "512x96", 1e-7), (1, "512x96", 2e-7), (1, "96x96", 4e-7))
        )
    frame = read(path)
    frame["setting"] = frame["lookback"].astype(str) + "x" + frame["horizon"].astype(str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hrx.reports.page.report.figures", lambda *_: [])
        return Report(frame, write_report(path, folder / "out").page)


@pytest.fixture
def page(chromium: OpenPage, report: Report) -> OpenPage:
    chromium.open(report.page)
    return chromium


def choose(page: OpenPage, **filters: str) -> None:
    for name, value in filters.items():
        page.tab.select_option(f"#filter-{name}", value)
    page.wait("hrx.waiting.size === 0")


def visible(page: OpenPage, selector: str) -> list[str]:
    """The texts of the elements that a reader sees."""
    return list(page.run(VISIBLE.format(f"`{selector}`") + ".map((e) => e.textContent)"))


def folded(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.groupby(["model", "dataset", "setting", "series"])[["g_own", "g_margin"]].mean()


def test_every_section_shows_the_selection_of_three_filters(page, report):
    where = {"model": "model-1", "dataset": "dataset_01/H", "setting": "512x96"}
    choose(page, **where)
    runs = report.chosen(**where)
    done = runs[runs["status"] == "done"]
    beats = done[done["beats_naive"] == 1]
    values = folded(beats)
    assert page.text("#selection") == "model model-1, dataset dataset_01/H, setting 512x96: runs that beat naive"
    by_series = bootstrap.source_values(beats, "g_margin")
    low, high = bootstrap.order_statistics(by_series)
    gain = f"g_margin {np.median(by_series):+.3f} [{low:+.3f}, {high:+.3f}], positive in"
    share = f"{100 * (by_series > 0).mean():.0f} % of {len(by_series)} series, from {len(values)} configurations."
    assert f"{gain} {share}" in page.text("#matching")
    assert page.text("#verdict-note").startswith("Of the selection only: model model-1, dataset dataset_01/H, setting")
    (card,) = visible(page, ".verdict")
    assert f"{gain} {(by_series > 0).sum()} of {len(by_series)} series, p = " in card
    assert f"{len(beats)} of {len(done)} scored runs" in card
    seasonal = int((done["mse"] < done["mse_seasonal"]).sum())
    assert f"beats seasonal naive{100 * seasonal / len(done):.0f} %{seasonal} of {len(done)} scored runs" in card
    assert visible(page, "#groups tbody [data-column=runs]") == [str(len(beats))]
    assert page.text("#rank-note").startswith(f"{len(values)} configurations")
    assert (
        page.text("#excluded-note")
        == f"{len(runs) - len(done)} of {len(runs)} runs of the selection were excluded or failed."
    )
    (check,) = visible(page, "#admission-checks tbody tr")
    assert "2e-07" in check
    assert page.text("#records-count") == f"{len(runs) - len(done) + len(beats)} of 600 records."
    examples = page.texts("#example option")
    assert all(text.startswith("model-1 · dataset_01/H") for text in examples)
    assert page.complaints == []


def test_without_filters_the_verdicts_are_those_of_the_summary_and_filters_that_exclude_each_other_show_nothing(page):
    whole = visible(page, ".verdict .says")
    choose(page, dataset="dataset_01/H")
    assert visible(page, ".verdict .whole") == []
    choose(page, domain="Nature")
    assert visible(page, ".verdict .says") == ["No run in this selection"] * 2
    assert page.text("#matching") == "0 scored runs that beat naive."
    assert page.text("#rank-note") == "0 configurations in this selection: too few to draw."
    assert page.text("#records-count") == "0 of 600 records."
    page.tab.click("#clear")
    assert visible(page, ".verdict .says") == whole
    assert page.text("#verdict-note") == "Of all runs of the ledger."


def test_the_verdict_of_a_selection_says_where_most_runs_that_beat_naive_lose_to_the_season(page, report):
    choose(page, dataset="dataset_00/H")
    for card, model in zip(visible(page, ".verdict"), ("model-0", "model-1"), strict=True):
        beats = report.chosen(dataset="dataset_00/H", model=model, status="done", beats_naive=1)
        lost = int((beats["mse"] >= beats["mse_seasonal"]).sum())
        sentence = f"But {lost} of {len(beats)} runs that beat naive lose to seasonal naive."
        assert (sentence in card) == (2 * lost > len(beats))
        assert (lost > 0) == (model == "model-0")


def test_a_verdict_says_that_it_does_not_follow_the_filter_on_naive_forecasts(page):
    choose(page, beats="no")
    assert "counts the runs that beat naive, whatever the filter" in page.text("#verdict-note")


def test_the_first_picture_is_of_a_run_that_beats_naive_and_another_one_says_why_not(page, report):
    page.wait("document.body.dataset.example !== undefined")
    run = report.frame.iloc[int(page.run("document.body.dataset.example"))]
    assert run["beats_naive"] == 1
    assert "The run beats naive" in page.text(".heat-title")
    choose(page, beats="no")
    page.wait("document.querySelector('.heat-title').textContent.includes('Not to be interpreted')")
    assert "the run does not beat naive, so its gains are not meaningful" in page.text(".heat-title")
    choose(page, setting="96x96")
    assert page.text("#examples-note").startswith("0 of 12 stored examples")
    assert visible(page, ".heat canvas") == []


def test_a_selection_without_an_interpretable_example_says_so_and_offers_the_others(page, report):
    losers = report.chosen(setting="512x96", beats_naive=0)
    shown = [report.frame.iloc[run] for run in page.run("hrx.data('examples').shown.map((item) => item.run)")]
    beating = {(one["model"], one["dataset"]) for one in shown if one["beats_naive"] == 1}
    model, dataset = next(
        (one["model"], one["dataset"]) for one in shown if (one["model"], one["dataset"]) not in beating
    )
    assert len(losers)
    choose(page, model=model, dataset=dataset)
    assert page.text("#examples-note").startswith("No stored example of the selection is of a run that beats naive.")
    page.tab.click("#other-examples")
    page.wait("document.querySelector('.heat-title').textContent.includes('Not to be interpreted')")
    assert page.run("hrx.byId('filter-beats').value") == "all"


def saved(page: OpenPage, action: str) -> tuple[str, bytes]:
    """The name and content of what a click on an element saves."""
    with page.tab.expect_download() as waiting:
        page.tab.click(action)
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


@pytest.mark.parametrize("dark", [False, True])
def test_a_saved_heat_map_has_a_name_a_title_a_legend_and_a_colour_bar(chromium, report, dark):
    chromium.open(report.page, dark=dark)
    chromium.wait("document.body.dataset.example !== undefined")
    run = report.frame.iloc[int(chromium.run("document.body.dataset.example"))]
    before = chromium.run("document.querySelector('.heat canvas').toDataURL()")
    name, content = saved(chromium, "text=Save as PNG")
    assert name == f"{run['model']}--{run['dataset'].replace('/', '-').replace('_', '-').lower()}--t0--512x96.png"
    image = np.round(255 * imread(io.BytesIO(content))).astype(int)[..., :3]
    assert image.shape[1] == 2200
    assert image[0, 0].tolist() == [255, 255, 255]  # light on any theme
    bar = image[:, 2 * (1100 - 96 + 20) + 10]
    colours = [np.round(255 * np.array(colormaps["cividis"](end)[:3])) for end in (0, 255)]
    least, most = (np.flatnonzero(np.abs(bar - colour).max(axis=1) <= 2) for colour in colours)
    assert most.min() < least.max()  # the largest value is above
    ink = (image.max(axis=2) < 140).any(axis=1)
    assert ink[20:80].any()  # the title
    legend = image[-2 * 40 :]
    orange = (legend[..., 0] > 170) & (legend[..., 2] < 60)
    assert orange.any()  # the line of the forecast
    assert chromium.run("document.querySelector('.heat canvas').toDataURL()") == before
    assert chromium.complaints == []


def table(content: bytes) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def test_the_groups_are_saved_with_their_digits_and_a_formula_is_text(page, report):
    page.tab.click("[data-by=dataset]")
    choose(page, model="model-0")
    name, content = saved(page, "#save-groups")
    assert name == "hrx-gains-by-dataset--model-0.csv"
    rows = {row["dataset"]: row for row in table(content)}
    assert set(rows) == {"dataset_00/H", "dataset_01/H", "dataset_02/H", f"'{FORMULA}"}
    for dataset, row in rows.items():
        runs = report.chosen(model="model-0", dataset=dataset.removeprefix("'"), status="done")
        beats = runs[runs["beats_naive"] == 1]
        values = bootstrap.source_values(beats, "g_margin")
        assert float(row["g_margin"]) == pytest.approx(np.median(values), rel=1e-8)
        ends = bootstrap.order_statistics(values)
        assert len(values) >= 5
        assert (float(row["g_margin_low"]), float(row["g_margin_high"])) == pytest.approx(ends, rel=1e-8)
        assert (int(row["n"]), row["count_once"]) == (len(folded(beats)), f"{len(values)} series")
    assert rows["dataset_02/H"]["beats_seasonal"] == ""  # unknown


def test_the_records_of_the_list_are_saved_in_full_precision(page, report):
    choose(page, dataset=FORMULA, beats="all")
    name, content = saved(page, "#save-records")
    assert name == "hrx-records--sum-1-x-y--beats-naive-all.csv"
    rows = table(content)
    runs = report.chosen(dataset=FORMULA)
    assert [row["key"] for row in rows] == [key[:16] for key in runs["key"]]
    assert {row["dataset"] for row in rows} == {f"'{FORMULA}"}
    for column in ("g_own", "mse", "rank"):
        assert [row[column] == "" for row in rows] == runs[column].isna().tolist()
        known = [float(row[column]) for row in rows if row[column]]
        assert known == runs[column].dropna().tolist()


def test_tables_that_python_wrote_are_saved_as_the_selection_shows_them(page):
    choose(page, model="model-1", setting="96x96")
    name, content = saved(page, "[data-csv=admission-checks]")
    assert name == "hrx-admission-checks.csv"
    assert [(row["model"], row["worst figure"], row["settings"]) for row in table(content)] == [
        ("model-1", "4e-7", "96x96")
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_a_record_shows_its_model_and_status(chromium, report, dark):
    chromium.open(report.page, width=390, height=800, dark=dark)
    assert chromium.run("document.documentElement.scrollWidth") == 390
    places = chromium.run(
        VISIBLE.format("'#record-table tbody tr:first-child td'")
        + """.map((e) => [e.dataset.column, e.getBoundingClientRect()])
        .map(([column, box]) => [column, box.left >= 0 && box.right <= 390])"""
    )
    assert dict(places) == dict.fromkeys(("key", "model", "dataset", "status", "g_margin"), True)
    assert chromium.run("hrx.byId('filter-box').open") is False
    assert chromium.text("#record-table tbody [data-column=dataset] small") in set(report.frame["setting"])


def test_every_control_has_a_name_and_every_scrolling_table_can_be_reached(page):
    nameless = page.run(
        VISIBLE.format("'button, select, input, canvas, [role=region]'")
        + """.filter((e) => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim())
        .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert page.run("[...document.querySelectorAll('.wide')].every((e) => e.tabIndex === 0)") is True


def test_combinations_that_were_not_computed_show_counts_and_say_so(chromium, report, tmp_path, monkeypatch):
    monkeypatch.setattr("hrx.reports.page.report.figures", lambda *_: [])
    monkeypatch.setattr("hrx.reports.page.data.MOST_GROUPS", 30)
    ledger = report.page.parents[1] / "ledger.db"
    chromium.open(write_report(ledger, tmp_path).page)
    choose(chromium, setting="512x96", domain="Energy", model="model-1")
    runs = report.chosen(setting="512x96", domain="Energy", model="model-1", status="done", beats_naive=1)
    sentence = f"{len(runs)} scored runs that beat naive. Medians of this combination of filters are not computed"
    assert chromium.text("#matching").startswith(sentence)
    assert set(visible(chromium, "#groups tbody [data-column=g_margin]")) == {"–"}
    assert visible(chromium, "#groups tbody [data-column=runs]") == [str(len(runs))]
    assert visible(chromium, ".verdict .says") == ["Not computed"]
    assert chromium.complaints == []


@pytest.fixture
def parted(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same page with its data in parts beside it, as a large ledger has it."""
    monkeypatch.setattr("hrx.reports.page.report.figures", lambda *_: [])
    monkeypatch.setattr("hrx.reports.page.report.MOST_EMBEDDED", 0)
    monkeypatch.setattr("hrx.reports.page.data.FIRST_GROUPS", 10)
    monkeypatch.setattr("hrx.reports.page.data.RECORDS", 90)
    return write_report(report.page.parents[1] / "ledger.db", tmp_path / "parted").page


def test_parts_are_loaded_when_they_are_read_and_say_the_same(chromium, report, parted):
    def seen() -> tuple[object, ...]:
        choose(chromium, beats="all")
        chromium.tab.click("#record-table [data-sort=g_margin]")
        choose(chromium, setting="512x96", model="model-1")
        chromium.wait("document.body.dataset.example && hrx.byId('records-count').textContent.includes(' of ')")
        chromium.wait("hrx.byId('rank-note').textContent")
        cells = ("#groups tbody td", "#record-table tbody td", ".verdict .says", "#matching", "#example option")
        return tuple(visible(chromium, where) for where in cells)

    chromium.open(parted)
    loaded = {request.rsplit("/", 1)[1] for request in chromium.requests if "index-data" in request}
    assert {"records-0.js", "rank-yes.js"} <= loaded
    assert "records-3.js" not in loaded
    found = seen()
    assert chromium.complaints == []
    assert any("further-groups.js" in request for request in chromium.requests)
    chromium.open(report.page)
    assert seen() == found
    assert not any("index-data" in request for request in chromium.requests)


def test_a_page_without_its_parts_names_them(chromium, parted):
    for path in (parted.parent / "index-data").iterdir():
        path.unlink()
    chromium.open(parted)
    chromium.wait("hrx.byId('records-count').textContent.includes('missing')")
    assert chromium.text("#records-count") == "index-data/records-0.js is missing beside this page: keep both together."
    choose(chromium, setting="512x96", model="model-1", domain="Energy")
    chromium.wait("hrx.byId('matching').textContent.includes('further-groups.js is missing')")
