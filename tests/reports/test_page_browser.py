"""The page of a ledger in a real browser: what a person sees, clicks, types and prints."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import browser, crowd

from hrx.reports import read
from hrx.reports.page import write_report
from hrx.reports.runs import fold_seeds, median_interval
from hrx.reports.text import percent, signed

HOSTILE = "</script><img src=x onerror=document.body.dataset.owned=1>\u202eعربي " + "long" * 60


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium here: the page is not tested in a browser (apt-get install chromium, or HRX_CHROMIUM)")
    opened = browser.Browser(program)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A ledger of three models, one of them with a hostile name, and its page."""
    folder = tmp_path_factory.mktemp("report")
    many = crowd.records(900, models=3, datasets=6)
    for one in many:
        if one["model"] == "model-2":
            one |= {"model": HOSTILE, "key": str(one["key"])[::-1]}
        if one["dataset"] == "dataset_05/H":
            one["dataset"] = HOSTILE
    ledger = crowd.write(folder / "ledger.db", many, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hrx.reports.page.build.figures", lambda *_: [])
        return ledger, write_report(ledger, folder / "out").page


@pytest.fixture
def page(chromium: browser.Browser, report: tuple[Path, Path]) -> browser.Browser:
    chromium.open(report[1])
    return chromium


def chosen(report, **wanted):
    """The runs of the ledger with these values."""
    frame = read(report[0])
    for name, value in wanted.items():
        frame = frame[(frame[name] == value).fillna(False).astype(bool)]
    return frame


def choose(page: browser.Browser, name: str, value: str) -> None:
    page.run(f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')) }})(hrx.byId('filter-{name}'))")


def cells(page: browser.Browser, table: str, column: str) -> list[str]:
    return page.run(f"[...document.querySelectorAll('#{table} tbody [data-column={column}]')].map(c => c.textContent)")


def test_it_loads_without_a_complaint_and_asks_no_network(page):
    page.wait("document.body.dataset.window !== undefined")
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1


def test_unfiltered_numbers_are_the_tables_own(page, report):
    frame = chosen(report, status="done", beats_naive=1)
    assert cells(page, "groups", "n") != []
    for name, shown, interval, n, share in zip(
        *(cells(page, "groups", column) for column in ("name", "g_margin", "interval", "n", "positive")), strict=True
    ):
        if name.startswith("model-"):
            values = fold_seeds(frame[frame["model"] == name], ["g_margin"])["g_margin"].to_numpy()
            median, low, high = median_interval(values)
            assert (shown, interval) == (signed(median), f"[{signed(low)}, {signed(high)}]")
            assert (int(n), share) == (len(values), percent((values > 0).mean()))


def test_a_filter_leaves_the_runs_it_names_and_recomputes_their_numbers(page, report):
    choose(page, "setting", "512x96")
    choose(page, "domain", "Energy")
    frame = chosen(report, status="done", beats_naive=1, lookback=512, horizon=96, domain="Energy")
    values = fold_seeds(frame, ["g_margin"])["g_margin"].to_numpy()
    loaded = page.run("hrx.byId('matching').textContent")
    assert loaded.startswith(f"{len(frame)} scored runs that beat naive: median g_margin {signed(np.median(values))} [")
    assert f"positive in {percent((values > 0).mean())} of {len(values)} configurations" in loaded
    page.run("hrx.byId('clear').click()")
    whole = chosen(report, status="done", beats_naive=1)
    assert page.run("hrx.byId('matching').textContent").startswith(f"{len(whole)} scored runs")


@pytest.mark.parametrize("n", [1, 2, 3, 10, 31, 400])
def test_the_interval_of_a_filtered_view_is_the_bootstraps_limit(page, n):
    values = np.random.default_rng(n).normal(size=n)
    low, high = page.run(f"hrx.medianInterval({values.tolist()})")
    drawn = np.median(np.random.default_rng(0).choice(values, (20_000, n)), axis=1)
    # A quantile of 20,000 resamples lies within these shares of the limit.
    for limit, share in ((low, 0.025), (high, 0.975)):
        below, above = np.quantile(drawn, (max(0, share - 0.01), min(1, share + 0.01)))
        assert below - 0.02 <= limit <= above + 0.02


def test_a_click_on_a_column_sorts_by_it_and_again_the_other_way(page):
    def margins():
        return [float(cell) for cell in cells(page, "groups", "g_margin")]

    assert margins() == sorted(margins(), reverse=True)
    page.run("document.querySelector('#groups [data-sort=g_margin]').click()")
    assert margins() == sorted(margins())
    page.run("document.querySelector('#record-table [data-sort=g_margin]').click()")
    shown = [float(cell) for cell in cells(page, "record-table", "g_margin") if cell != "–"]
    assert len(shown) == 50
    assert shown == sorted(shown)


def test_a_number_leads_to_the_records_behind_it(page, report):
    page.run("document.querySelector('[data-by=dataset]').click()")
    page.run("document.querySelector('#groups tr[data-group=\"dataset_01/H\"] [data-column=g_margin] a').click()")
    page.wait("hrx.byId('records-count').textContent && location.hash.includes('records')")
    behind = chosen(report, status="done", beats_naive=1, dataset="dataset_01/H")
    assert page.run("hrx.byId('records-count').textContent") == f"{len(behind)} of 900 records."
    assert set(cells(page, "record-table", "dataset")) == {"dataset_01/H"}
    top = page.run("hrx.byId('records').getBoundingClientRect().top")
    assert abs(top) < 200


def test_the_record_in_full_has_the_ledgers_digits(page, report):
    page.run("document.querySelector('#record-table .key-button').click()")
    key = page.run("document.querySelector('#detail h3').textContent").split()[1].rstrip("…")
    frame = read(report[0])
    one = frame[frame["key"].str.startswith(key)].iloc[0]
    names, values = (
        page.run(f"[...document.querySelectorAll('#detail {tag}')].map(e => e.textContent)") for tag in ("dt", "dd")
    )
    loaded = dict(zip(names, values, strict=True))
    for name in ("g_own", "g_margin", "rank", "mse"):
        assert float(loaded[name]) == one[name]
    assert page.run("document.activeElement.id") == "detail"


def test_search_finds_reasons_and_excluded_runs_stay_visible(page, report):
    page.run("(s => { s.value = 'too short'; s.dispatchEvent(new Event('input')) })(hrx.byId('search'))")
    frame = read(report[0])
    excluded = frame["reason"].fillna("").str.contains("too short").sum()
    assert page.run("hrx.byId('records-count').textContent") == f"{excluded} of 900 records."


def test_a_view_is_kept_in_the_address(page, chromium, report):
    choose(page, "model", "model-1")
    page.run("document.querySelector('[data-by=domain]').click()")
    loaded = page.run("hrx.byId('matching').textContent")
    address = page.run("location.hash")
    chromium.open(report[1], hash_=address)
    assert chromium.run("hrx.byId('matching').textContent") == loaded
    assert chromium.run("hrx.byId('filter-model').value") == "model-1"


def test_a_hostile_name_is_text_everywhere(page):
    page.run("document.querySelector('[data-by=dataset]').click()")
    page.wait("document.body.dataset.window !== undefined")
    assert page.run("document.body.dataset.owned") is None
    assert page.run("document.querySelectorAll('img, iframe, object').length") == 0
    assert any(name.startswith("</script><img") for name in cells(page, "groups", "name"))
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.complaints == []


def test_the_value_under_the_pointer_is_the_matrixs(page, report):
    from hrx.audit.ledger.store import Ledger

    page.wait("document.body.dataset.window !== undefined")
    page.run("document.querySelector('.heat canvas').scrollIntoView({block: 'center'})")
    box = page.run(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('.heat canvas').getBoundingClientRect())"
    )
    page.mouse("mouseMoved", box[0] + 0.5 * box[2], box[1] + 0.6 * box[3])
    loaded = page.run("document.querySelector('.readout').textContent")
    step, position, value = re.match(r"Step (\d+) reads position (-\d+): E = ([\d.e+-]+),", loaded).groups()
    run = int(page.run("document.body.dataset.window"))
    with Ledger.open(report[0], create=False) as ledger:
        (stored,) = ledger.examples([read(report[0])["key"].iloc[run]])
    assert float(value) == pytest.approx(stored.matrix[int(step) - 1, int(position)], rel=6e-3)


def test_the_heat_map_obeys_the_keyboard_and_zooms(page):
    page.wait("document.body.dataset.window !== undefined")
    page.run("document.querySelector('.heat canvas').focus()")
    page.press("ArrowDown", times=2)
    page.press("ArrowLeft", shift=True)
    assert page.run("document.querySelector('.readout').textContent").startswith("Step 3 reads position -11:")
    before = page.run("document.querySelector('.heat canvas').toDataURL()")
    page.press("+")
    assert page.run("document.querySelector('.heat canvas').toDataURL()") != before
    page.press("0")
    assert page.run("document.querySelector('.heat canvas').toDataURL()") == before


def test_everything_is_reached_and_worked_by_the_keyboard_alone(page, report):
    page.run("hrx.byId('main').focus()")
    seen = []
    for _ in range(60):
        page.press("Tab")
        seen.append(
            page.run(
                "document.activeElement.id || document.activeElement.dataset.by || document.activeElement.dataset.sort"
            )
        )
        if seen[-1] == "domain":
            page.press("Enter")
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
    page.run("hrx.byId('theme').click()")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    assert page.pdf().startswith(b"%PDF")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.documentElement.dataset.theme") == "light"
    page.media(medium="print")
    assert page.run("getComputedStyle(document.querySelector('.parts')).display") == "none"
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.media()
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("getComputedStyle(document.body).backgroundColor") == dark
    page.run("hrx.byId('theme').click()")
