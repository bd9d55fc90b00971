"""`hrx explain` with several models or series: one page with their verdicts, figures and heat maps side by side.

Each forecast has a page of its own beside it, where its heat map answers to the pointer.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from hrx.records.explained import ExplainedForecast
from hrx.reports.page import Row, fill_page, html_table, made_by
from hrx.reports.page.explain import says
from hrx.reports.text import clean, counted, escape_html, shorten, signed, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST_NAME = 40
_HEADS = (
    ("model", "wrap"), ("series", ""), ("verdict", "wrap"), ("squared error", "number minor"),
    ("naive, the better", "number minor"), ("g_own", "number minor"), ("g_margin", "number"), ("rank", "number minor"),
    ("effective lookback", "number minor"),
)  # fmt: skip


class ExplainedPage(NamedTuple):
    """One forecast, the name of its own page in the same folder, and its heat map."""

    forecast: ExplainedForecast
    page: str
    figure: Figure


def write_several(pages: Sequence[ExplainedPage], path: Path) -> Path:
    """Writes the page with all forecasts. Returns its path."""
    return write_bytes(path, render_several(pages).encode())


def render_several(pages: Sequence[ExplainedPage]) -> str:
    """The page with a table of all forecasts and their heat maps, models of one series beside each other."""
    models, series = (list(dict.fromkeys(getattr(one.forecast, name) for one in pages)) for name in ("model", "series"))
    heading = f"{counted(len(models), 'model')} on {len(series)} series"
    first = pages[0].forecast
    return fill_page(
        "explain_several.html",
        ("core.js",),
        {
            "title": f"{escape_html(heading)} – hrx explain",
            "kicker": "hrx explain",
            "heading": escape_html(heading),
            "facts": escape_html(
                f"The last {len(first.x)} values, and the {len(first.forecast)} steps after them, by {first.estimator}"
            ),
            "table": html_table(_HEADS, map(_row, pages), label="Forecasts"),
            "pictures": "".join(
                _pictures(name, [one for one in pages if one.forecast.series == name]) for name in series
            ),
            "footer": made_by(),
        },
    )


def _name(text: str) -> str:
    return escape_html(shorten(clean(text), _LONGEST_NAME))


def _link(one: ExplainedPage, text: str) -> str:
    return f'<a href="{quote(one.page)}">{text}</a>'


def _row(one: ExplainedPage) -> Row:
    forecast = one.forecast
    quantities, skill = forecast.quantities, forecast.skill
    errors = ("–", "–") if skill is None else (f"{skill.mse:.3g}", f"{min(skill.mse_zero, skill.mse_last):.3g}")
    gains = ["–"] * 4
    if quantities is not None:
        gains = [
            *(
                f"{signed(getattr(quantities, gain))} ± {getattr(quantities.error, gain):.2g}"
                for gain in ("g_own", "g_margin")
            ),
            f"{quantities.rank:.2f}",
            f"{quantities.effective_lookback:.0f}",
        ]
    trust = escape_html(forecast.trust.value)
    series = f'<span class="name">{_name(forecast.series)}</span>'
    return Row((_link(one, _name(forecast.model)), series, trust, *errors, *gains))


def _pictures(series: str, pages: Sequence[ExplainedPage]) -> str:
    """The heat maps of the models on one series."""
    figures = "".join(
        f'<figure><img alt="Heat map of {_name(one.forecast.model)}" src="{_png(one.figure)}">'
        f"<figcaption>{_link(one, _name(one.forecast.model))}: {escape_html(says(one.forecast))}.</figcaption></figure>"
        for one in pages
        if one.forecast.series == series
    )
    return f'<h3>{_name(series)}</h3><div class="side-by-side">{figures}</div>'


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
