"""The heat map as a widget: what anywidget sends to a notebook, and what a browser makes of it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.browser import OpenPage, open_browser

from hrx.errors import HrxError
from hrx.records.explanation import ExplainedModel, ExplainedTimes, Explanation, Method
from hrx.reports.page.explain import _widget_class, heatmap_widget

pytest.importorskip("anywidget", reason="no anywidget: pip install anywidget")

# What anywidget does in a notebook: it imports the module, adds the style sheet, and calls render with a model.
NOTEBOOK = """<!doctype html><meta charset="utf-8"><body><button id="other">Run</button>
<div id="a"></div><div id="b"></div>
<script type="module">
const state = JSON.parse(document.getElementById("state").textContent);
const sheet = document.createElement("style");
const plain = getComputedStyle(document.getElementById("other")).borderRadius;
sheet.textContent = state._css;
document.head.append(sheet);
const module = await import(URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" })));
window.states = [];
window.ends = ["a", "b"].map((id) => {
  const mine = { ...state };
  window.states.push(mine);
  const model = { get: (name) => mine[name], set: (name, value) => { mine[name] = value; }, save_changes() {} };
  return module.default.render({ model, el: document.getElementById(id) });
});
window.same = plain === getComputedStyle(document.getElementById("other")).borderRadius;
document.body.dataset.ready = "yes";
</script>"""


def explanation(*items: str) -> Explanation:
    rng = np.random.default_rng(0)
    x = np.stack([np.sin(np.arange(40) / (3 + number)) for number in range(len(items))])
    days = pd.Index([f"day {day}" for day in range(52)])
    return Explanation(
        matrix=2 * rng.random((len(items), 3, 40)),
        signed=None,
        forecast=x[:, :12],
        x=x,
        observed=np.ones_like(x, dtype=bool),
        steps=(1, 6, 12),
        items=items,
        times=(ExplainedTimes(days[:40], days[40:]),) * len(items),
        seasons=(1,) * len(items),
        scales=(None,) * len(items),
        model=ExplainedModel("model", "model", "0", "torch"),
        method=Method("hand", "{}", "", 0),
    )


EXPLAINED = explanation("<b>first</b>", "second")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    widget = heatmap_widget(EXPLAINED)
    state = widget.get_state(["items", "palette", "series", "step", "position"])
    state |= {"_esm": widget._esm, "_css": widget._css}
    data = json.dumps(state, default=str).replace("<", "\\u003c")
    path: Path = tmp_path_factory.mktemp("widget") / "notebook.html"
    path.write_text(f'{NOTEBOOK}<script type="application/json" id="state">{data}</script>', encoding="utf-8")
    with open_browser() as opened:
        opened.open(path)
        opened.wait("document.querySelectorAll('[data-ready=\"0\"]').length === 2")
        yield opened


def test_the_widget_reads_the_matrix_and_sends_the_chosen_cell_to_python(page: OpenPage) -> None:
    page.tab.focus("#a canvas")
    for key in ("ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.tab.keyboard.press(key)
    assert page.run("[states[0].series, states[0].step, states[0].position]") == ["<b>first</b>", 6, -3]
    value = EXPLAINED.matrix[0, 1, -3]
    assert f"Step 6 reads position -3 (day 37): E = {float(f'{value:.3g}')}" in page.text("#a .readout")
    assert page.run("[states[1].step, states[1].position]") == [1, -1], "the other widget stays where it is"


def test_another_series_is_chosen_by_name(page: OpenPage) -> None:
    page.tab.select_option("#b select", "second")
    page.wait("states[1].series === 'second'")
    assert page.run("states[1].position") == -1
    assert page.text("#b .heat-title strong") == "model on second, 40x12."


def test_it_leaves_the_rest_of_a_notebook_alone(page: OpenPage) -> None:
    assert page.complaints == []
    assert page.run("same") is True
    assert page.run("document.documentElement.dataset.theme === undefined")
    assert page.run("document.querySelectorAll('b').length") == 0
    ids = page.run("[...document.querySelectorAll('[id^=heat-help]')].map((one) => one.id)")
    assert len(set(ids)) == len(ids) == 2


def test_a_saved_picture_is_of_the_widgets_own_colours_and_leaves_its_theme(page: OpenPage) -> None:
    with page.tab.expect_download() as download:
        page.tab.click("#a button:has-text('Save as PNG')")
    assert download.value.suggested_filename == "model--b-first-b--40x12.png"
    assert page.run("document.querySelector('#a [data-theme]').dataset.theme") == "light"


def test_without_anywidget_the_sentence_names_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    _widget_class.cache_clear()
    with pytest.raises(HrxError, match=r"A widget needs anywidget, which is not installed\. .*install.*notebook"):
        heatmap_widget(EXPLAINED)
