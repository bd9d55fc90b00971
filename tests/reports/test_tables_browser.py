"""The page of tables in a real browser, on a screen and on a phone."""

from pathlib import Path

import pandas as pd
import pytest
from helpers.browser import open_browser
from helpers.constructed import runs

from hrx.reports import tables
from hrx.reports.table import html_page

NARROW = """() => [...document.querySelectorAll("tbody .text, tbody .number")].filter((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
  return lines > 1 && cell.textContent.trim().length / lines < 4;
}).map((cell) => cell.textContent)"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_tables_beside_published_ones_break_no_word_into_letters_and_scroll_by_themselves(
    width: int, tmp_path: Path
) -> None:
    about = {"checkpoint": "amazon/chronos-2", "lookback": 512, "horizon": 96, "g_shuffled": -0.1, "g_margin": 0.2}
    frame = pd.concat(
        [
            runs(12, dataset=name, g_own=0.1, rank=1.2, mse=0.5, **about)
            for name in ("us_births/D", "a_long_name_of/15T")
        ]
    )
    page = tmp_path / "tables.html"
    page.write_text(html_page(tables(frame, against="published")), encoding="utf-8")
    with open_browser() as opened:
        opened.tab.set_viewport_size({"width": width, "height": 900})
        opened.tab.goto(page.as_uri())
        assert opened.run("document.documentElement.scrollWidth") <= width
        assert opened.run(NARROW) == []
        assert opened.run("document.querySelectorAll('tr.published').length") > 5
        assert opened.run("Math.min(...[...document.querySelectorAll('tbody th')].map((th) => th.clientWidth))") > 60
