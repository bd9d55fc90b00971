"""The page of a ledger in a real browser: what a person sees, clicks, types and prints."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import bootstrap, crowd
from helpers.browser import OpenPage, open_browser

from hrx.records.ledger import Ledger
from hrx.reports import read, write_report

HOSTILE = "</script><img src=x onerror=document.body.dataset.owned=1>\u202eعربي " + "long" * 60


@pytest.fixture(scope="module")
def chromium() -> Iterator[OpenPage]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A ledger of three models, one of them with a hostile name, and its page."""
    folder = tmp_path_factory.mktemp("report")
    many = []
    for one in crowd.records(900, models=3, datasets=6):
        if one.model == "model-2":
            one = one.updated(model=HOSTILE, key=one.key[::-1])
        many.append(one.updated(dataset=HOSTILE) if one.dataset == "dataset_05/H" else one)
    ledger = crowd.write(folder / "ledger.db", many, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hrx.reports.page.report.figures", lambda *_: [])
        return ledger, write_report(ledger, folder / "out").page


@pytest.fixture
def page(chromium: OpenPage, report: tuple[Path, Path]) -> OpenPage:
    chromium.open(report[1])
    return chromium


def chosen(report, **wanted):
    """The runs of the ledger with these values."""
    frame = read(report[0])
    for name, value in wanted.items():
        frame = frame[(frame[name] == value).fillna(False).astype(bool)]
    return frame


def choose(page: OpenPage, name: str, value: str) -> None:
    page.tab.select_option(f"#filter-{name}", value)


def cells(page: OpenPage, table: str, column: str) -> list[str]:
    return page.texts(f"#{table} tbody [data-column={column}]")


def agrees(printed: tuple[str, ...], runs) -> bool:
    """Whether the page prints median source, interval, count and share of g_margin over these runs."""
    n = runs.groupby(["model", "dataset", "lookback", "horizon", "series"]).ngroups
    values = bootstrap.source_values(runs, "g_margin")
    low, high = bootstrap.order_statistics(values)
    figures = (f"{np.median(values):+.3f}", str(n), f"{100 * (values > 0).mean():.0f} %")
    interval = "–" if low is None else f"[{low:+.3f}, {high:+.3f}]"
    return (printed[0], *printed[2:]) == figures and printed[1].replace("(no interval)", "–") == interval


def test_it_loads_without_a_complaint_and_without_network(page):
    page.wait("document.body.dataset.example !== undefined")
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1


def shown(page: OpenPage) -> dict[str, tuple[str, ...]]:
    """Median, interval, count and share of every group of the table, by name."""
    columns = [cells(page, "groups", column) for column in ("g_margin", "low", "n", "positive")]
    return dict(zip(cells(page, "groups", "name"), zip(*columns, strict=True), strict=True))


def test_unfiltered_numbers_are_the_tables_own(page, report):
    frame = chosen(report, status="done", beats_naive=1)
    groups = {name: numbers for name, numbers in shown(page).items() if name.startswith("model-")}
    assert set(groups) == {"model-0", "model-1"}
    assert all(agrees(printed, frame[frame["model"] == name]) for name, printed in groups.items())


@pytest.mark.parametrize(("beats", "naive"), [("yes", 1), ("no", 0)])
def test_a_filter_shows_the_statistics_that_python_computed_for_its_runs(page, report, beats, naive):
    choose(page, "beats", beats)
    choose(page, "domain", "Energy")
    page.tab.click("[data-by=model]")
    frame = chosen(report, status="done", beats_naive=naive, domain="Energy")
    for name in ("model-0", "model-1"):
        assert agrees(shown(page)[name], frame[frame["model"] == name])
    choose(page, "setting", "512x96")
    frame = chosen(report, status="done", beats_naive=naive, domain="Energy", lookback=512, horizon=96)
    sentence = r"g_margin (\S+) ([\[(].*?[\])]), positive in (.*?) of \d+ s\w+, from (\d+) configurations\."
    median, interval, share, n = re.search(sentence, page.text("#matching")).groups()
    assert agrees((median, interval, n, share), frame)
    page.tab.click("#clear")
    whole = chosen(report, status="done", beats_naive=1)
    assert page.text("#matching").startswith(f"{len(whole)} scored runs that beat naive")


def test_a_click_on_a_column_sorts_by_it_and_again_the_other_way(page):
    def margins():
        return [float(cell) for cell in cells(page, "groups", "g_margin")]

    assert margins() == sorted(margins(), reverse=True)
    page.tab.click("#groups [data-sort=g_margin]")
    assert margins() == sorted(margins())
    page.tab.click("#record-table [data-sort=g_margin]")
    shown = [float(cell) for cell in cells(page, "record-table", "g_margin") if cell != "–"]
    assert len(shown) == 50
    assert shown == sorted(shown)


def test_a_number_leads_to_the_records_behind_it(page, report):
    page.tab.click("[data-by=dataset]")
    page.tab.click("#groups tr[data-group='dataset_01/H'] [data-column=g_margin] a")
    page.wait("hrx.byId('records-count').textContent && location.hash.includes('records')")
    behind = chosen(report, status="done", beats_naive=1, dataset="dataset_01/H")
    assert page.text("#records-count") == f"{len(behind)} of 900 records."
    assert set(page.texts("#record-table tbody [data-column=dataset] .name")) == {"dataset_01/H"}
    top = page.run("hrx.byId('records').getBoundingClientRect().top")
    assert abs(top) < 200


def test_the_record_in_full_has_the_ledgers_digits(page, report):
    page.tab.locator("#record-table .key-button").first.click()
    key = page.text("#detail h3").split()[1].rstrip("…")
    frame = read(report[0])
    one = frame[frame["key"].str.startswith(key)].iloc[0]
    loaded = dict(zip(page.texts("#detail dt"), page.texts("#detail dd"), strict=True))
    for name in ("g_own", "g_margin", "rank", "mse"):
        assert float(loaded[name]) == one[name]
    assert page.run("document.activeElement.id") == "detail"


def test_search_finds_reasons_and_excluded_runs_stay_visible(page, report):
    page.tab.fill("#search", "too short")
    frame = read(report[0])
    excluded = frame["reason"].fillna("").str.contains("too short").sum()
    assert page.text("#records-count") == f"{excluded} of 900 records."


def test_a_view_is_kept_in_the_address(page, chromium, report):
    choose(page, "model", "model-1")
    page.tab.click("[data-by=domain]")
    loaded = page.text("#matching")
    address = page.run("location.hash")
    chromium.open(report[1], address=address)
    assert chromium.text("#matching") == loaded
    assert chromium.run("hrx.byId('filter-model').value") == "model-1"


def test_a_hostile_name_is_text_everywhere(page):
    page.tab.click("[data-by=dataset]")
    page.wait("document.body.dataset.example !== undefined")
    assert page.run("document.body.dataset.owned") is None
    assert page.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert any(name.startswith("</script><img") for name in cells(page, "groups", "name"))
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.complaints == []


def test_the_value_under_the_pointer_is_the_matrixs(page, report):
    page.wait("document.body.dataset.example !== undefined")
    canvas = page.tab.locator(".heat canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.hover(position={"x": 0.5 * box["width"], "y": 0.6 * box["height"]})
    loaded = page.text(".readout")
    step, position, value = re.match(r"Step (\d+) reads position (-\d+): E = ([\d.e+-]+),", loaded).groups()
    run = int(page.run("document.body.dataset.example"))
    with Ledger.open(report[0], create=False) as ledger:
        (stored,) = ledger.examples([read(report[0])["key"].iloc[run]])
    assert float(value) == pytest.approx(stored.matrix[int(step) - 1, int(position)], rel=6e-3)


def test_the_heat_map_obeys_the_keyboard_and_zooms(page):
    page.wait("document.body.dataset.example !== undefined")
    page.run("document.querySelector('.heat canvas').focus()")
    for key in ("ArrowDown", "ArrowDown", "Shift+ArrowLeft"):
        page.tab.keyboard.press(key)
    assert page.text(".readout").startswith("Step 3 reads position -11:")
    before = page.run("document.querySelector('.heat canvas').toDataURL()")
    page.tab.keyboard.press("+")
    assert page.run("document.querySelector('.heat canvas').toDataURL()") != before
    page.tab.keyboard.press("0")
    assert page.run("document.querySelector('.heat canvas').toDataURL()") == before


def test_everything_is_reached_and_worked_by_the_keyboard_alone(page, report):
    page.run("hrx.byId('main').focus()")
    seen = []
    for _ in range(60):
        page.tab.keyboard.press("Tab")
        seen.append(
            page.run(
                "document.activeElement.id || document.activeElement.dataset.by || document.activeElement.dataset.sort"
            )
        )
        if seen[-1] == "domain":
            page.tab.keyboard.press("Enter")
            break
    assert "filter-model" in seen
    assert page.run("document.querySelector('[data-by=domain]').getAttribute('aria-pressed')") == "true"
    outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_scrolls_sideways(chromium, report, dark):
    chromium.open(report[1], width=375, height=700, dark=dark)
    assert chromium.run("document.documentElement.scrollWidth") == 375
    wide = chromium.run("""[...document.querySelectorAll('main *')].filter((e) => !e.closest('.wide') &&
        e.getClientRects().length && e.getBoundingClientRect().right > 376).map((e) => e.outerHTML.slice(0, 80))""")
    assert wide == []


CONTRAST = """(() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const silent = ['SCRIPT', 'OPTION', 'NOSCRIPT'];
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest(':disabled') || silent.includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const ink = e.namespaceURI.includes('svg') ? style.fill : style.color;
    const [a, b] = [light(parse(ink)), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(e.outerHTML.slice(0, 80));
  }
  return found;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(chromium, report, dark):
    chromium.open(report[1], dark=dark)
    chromium.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert chromium.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert chromium.run(CONTRAST) == []


def test_the_theme_can_be_changed_and_paper_is_light(page):
    page.tab.click("#theme")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert page.tab.pdf().startswith(b"%PDF")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.documentElement.dataset.theme") == "light"
    page.tab.emulate_media(media="print")
    assert page.run("getComputedStyle(document.querySelector('.parts')).display") == "none"
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.tab.emulate_media(media="screen")
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("getComputedStyle(document.body).backgroundColor") == dark
    page.tab.click("#theme")
