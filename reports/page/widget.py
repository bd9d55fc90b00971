"""The heat map of the pages as a notebook's widget: the same scripts and styles, handed to anywidget."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hrx.errors import HrxError
from hrx.install import install_command
from hrx.records.ledger import StoredExample
from hrx.records.quantities import Floats
from hrx.reports.heatmap import speaking_name
from hrx.reports.page import HEATMAP_SCRIPTS, asset
from hrx.reports.page.data import example_json, palette
from hrx.reports.text import clean, counted

if TYPE_CHECKING:
    from anywidget import AnyWidget

_FRAME = "padding: 0.6rem; background: #ffffff; color: #1c2024; font: 14px/1.5 system-ui, sans-serif;"


class ShownItem(NamedTuple):
    """One series of a widget."""

    model: str
    name: str
    x: Floats
    """`(L,)`"""
    forecast: Floats
    """`(H,)`"""
    matrix: Floats
    """`(R, L)`"""
    steps: Sequence[int]
    """The forecast steps of the `R` rows, from 1."""
    labels: Sequence[str] | None
    """The time of each input, if there are times."""
    title: str
    """The sentence below the heading."""


def heatmap_widget(items: Sequence[ShownItem]) -> "AnyWidget":
    """The heat maps of some series, one at a time. `series`, `step` and `position` follow the chosen cell."""
    return _widget_class()(items=[_item_json(item) for item in items], palette=palette())


def _item_json(item: ShownItem) -> Mapping[str, object]:
    matrix = np.asarray(item.matrix, dtype=np.float64)
    model, name, setting = clean(item.model), clean(item.name), f"{len(item.x)}x{len(item.forecast)}"
    return example_json(StoredExample("", item.x, np.empty(0), item.forecast, matrix, None)) | {
        "name": name,
        "steps": list(item.steps),
        "labels": None if item.labels is None else [clean(label) for label in item.labels],
        "unit": "value",
        "heading": f"{model} on {name}, {setting}",
        "title": clean(item.title),
        "why": "",
        "file": speaking_name(item.model, item.name, setting),
    }


def script() -> str:
    """The module that a notebook imports: the scripts of the heat map, and what binds them to a widget."""
    return "\n".join(map(asset, (*HEATMAP_SCRIPTS, "widget.js")))


def style() -> str:
    """The styles of the heat map, nested so that they reach nothing else of a notebook."""
    return f".hrx-heat {{ {_FRAME}\n{asset('heatmap.css')}}}\n"


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise HrxError(f"A widget needs anywidget, which is not installed. {install_command('notebook')}") from error

    class HeatmapWidget(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget is optional, and not typed here
        """The interactive heat map; the chosen cell is in `series`, `step` (from 1) and `position` (-1 is the last)."""

        _esm = script()
        _css = style()
        items = traitlets.List().tag(sync=True)
        palette = traitlets.Unicode().tag(sync=True)
        series = traitlets.Unicode().tag(sync=True)
        step = traitlets.Int(1).tag(sync=True)
        position = traitlets.Int(-1).tag(sync=True)

        def __repr__(self) -> str:
            return f"<heat maps of {counted(len(self.items), 'series', 'series')}, in a notebook that runs>"

    return HeatmapWidget
