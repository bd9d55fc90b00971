"""Pages of `hrx explain`, and the same heat map as a notebook's widget.

The page of one forecast says first whether its explanation can be trusted, and then shows it. With several models or
series one more page has their verdicts, figures and heat maps side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from hrx import __version__
from hrx.errors import HrxError, install_command
from hrx.records.explanation import Explanation, HeldOut, Trust, show_time
from hrx.records.quantities import GAINS, Floats, Quantities, Skill, show_p
from hrx.reports.channels import channels_figure, channels_heatmap
from hrx.reports.context import series_context
from hrx.reports.heatmap import heatmap_figure, picture
from hrx.reports.page import HEATMAP_SCRIPTS, asset, made_by, render_page
from hrx.reports.page.data import Json, example_json, palette
from hrx.reports.text import clean, counted, file_stem, listed, percent, shorten, signed, write_bytes

if TYPE_CHECKING:
    from anywidget import AnyWidget

SCRIPTS = (*HEATMAP_SCRIPTS, "page.js", "explain.js")
CHANCE = 0.05
"""Random rows reach a `p_margin` of at most this in as many cases."""
_LONGEST_NAME = 40
_MOST_POINTS = 10
_HEADS = (
    ("model", "wrap"), ("series", ""), ("verdict", "wrap"), ("squared error", "number minor"),
    ("naive, the better", "number minor"), ("g_own", "number minor"), ("g_margin", "number"), ("rank", "number minor"),
    ("effective lookback", "number minor"),
)  # fmt: skip
_FRAME = "padding: 0.6rem; background: #ffffff; color: #1c2024; font: 14px/1.5 system-ui, sans-serif;"
_SAYS = {
    Trust.NOT_ADMITTED: ("none", "Do not read it: the checkpoint fails an admission check"),
    Trust.NOT_SCORED: ("none", "Do not read it: the series cannot be scored"),
    Trust.NOT_BETTER_THAN_NAIVE: ("contrary", "Do not read it: on this series the forecast does not beat naive ones"),
    Trust.NO_EVIDENCE: ("no", "Not step by step: there is no evidence that a step reads points of its own here"),
    Trust.SHARED: (
        "partly",
        "Read the shared vector: there is no evidence that a step’s own row explains it better here",
    ),
    Trust.OWN_ROWS: ("yes", "Can be read step by step: on this series each step’s own row explains it best"),
}


def trust_sentence(held_out: HeldOut) -> str:
    """Return the verdict and its evidence in one line."""
    return f"{_SAYS[held_out.trust][1]}. {_because(held_out)}"


def setting_name(x: Explanation) -> str:
    """A file name without a suffix, of the first series."""
    return file_stem(x.model.name, x.items[0], f"{x.lookback}x{x.horizon}")


def write_explanation(x: Explanation, path: str | Path, command: str = "") -> Path:
    """Writes the page of one forecast, with the command that made it if there was one. Returns its path."""
    return write_bytes(Path(path), render(x, command).encode())


def render(x: Explanation, command: str = "") -> str:
    """Return the page of one forecast with its held-out scores."""
    (held_out,), (times,) = x.held_out, x.times
    tone, says = _SAYS[held_out.trust]
    model_name, series = (shorten(clean(name), _LONGEST_NAME) for name in (x.model.name, x.items[0]))
    heading = f"What {model_name} reads to forecast {series}"
    until = "" if times is None else f", up to {show_time(times.inputs[-1])}"
    quantities, model = held_out.quantities, x.model
    return render_page(
        "explain.html",
        SCRIPTS,
        {"window": _window(x)},
        title=f"{heading} – hrx explain",
        kicker="hrx explain",
        heading=heading,
        facts=_facts(x, until),
        tone=tone,
        says=says,
        because=_because(held_out),
        reasons=list(_reasons(x)),
        channels=[] if not x.effects else _channels(x),
        channel_pictures=[picture(channels_figure(x)), picture(channels_heatmap(x))] if x.effects else [],
        held_out=held_out,
        gains=[] if quantities is None else _gains(quantities),
        extent="" if quantities is None else _extent(quantities, x.lookback),
        context="" if held_out.context is None else series_context(held_out.context),
        command=command,
        versions={
            "checkpoint": model.checkpoint, "weights (sha256)": model.fingerprint, "library": model.library,
            "hrx": __version__,
        },
        footer=made_by(),
    )  # fmt: skip


def _facts(x: Explanation, until: str = "") -> str:
    output = "" if x.output == "point" else f"; explained is {'the spread ' if ':' in x.output else ''}{x.output}"
    return f"The last {x.lookback} values{until}, and the {x.horizon} steps after them, by {x.method.estimator}{output}"


def _channels(x: Explanation) -> list[tuple[str, ...]]:
    """What each channel does, the largest effect first: name, role, effect, its error, mean share, what is read."""
    rows = list[tuple[str, ...]]()
    for one in sorted(x.effects[0], key=lambda one: -one.total if one.measured else 0.0):
        share = "" if np.isnan(one.share).all() else percent(float(np.nanmean(one.share)))
        read = "no other block" if not one.measured else f"from step {one.read_from}" if one.read else "not read"
        values = ("", "") if not one.measured else (f"{one.total:.3g}", f"{one.total_error:.2g}")
        rows.append((shorten(clean(one.name), _LONGEST_NAME), one.role, *values, share, read))
    return rows


def _because(held_out: HeldOut) -> str:
    windows = f"{counted(held_out.windows, 'held-out window')} of this series"
    return f"Measured on {windows}: an indication for this series, not an audit of the checkpoint."


def _reasons(x: Explanation) -> Iterator[tuple[str, str]]:
    """Whether each reason speaks for the explanation (yes, no, unsure), and its sentence, in the order in which they
    decide. The seasonal forecast decides nothing.
    """
    (held_out,) = x.held_out
    for check in held_out.failed:
        yield "no", f"Admission: {check.check} has {check.figure:.2g} against {check.limit:.2g}: {check.note}."
    if held_out.checks and not held_out.failed:
        yield "yes", f"Admission: passes {listed(check.check for check in held_out.checks)} on these windows."
    if held_out.padded:
        zeros = f"its library puts {counted(held_out.padded, 'zero')} before these {x.lookback} values"
        yield "unsure", f"Padding: {zeros}, and the model reads them as observed values. A longer lookback has none."
    if held_out.skill is None or held_out.quantities is None:
        yield "no", f"Not scored: {held_out.unscored}."
        return
    skill = held_out.skill
    better, beats = ("below", "yes") if skill.beats_naive else ("not below", "no")
    both = f"both predicting the mean ({skill.mse_zero:.3g}) and repeating the last value ({skill.mse_last:.3g})"
    yield beats, f"Naive forecasts: squared error {skill.mse:.3g}, {better} {both}."
    yield _seasonal_reason(skill)
    shown = _with_errors(held_out.quantities)
    for gain, other in (("g_margin", "other steps’ rows"), ("g_own", "the shared vector")):
        sure = held_out.surely_positive(gain)
        lies = "lies above 0" if sure else "does not lie above 0"
        against = f"a step’s own row against {other}: the interval over draws {lies}"
        yield "yes" if sure else "no", f"{gain} {shown[gain]}, {against}."
    if few_values := held_out.quantities.few_values:
        yield "unsure", few_values
    p = held_out.quantities.p_margin
    says, bound = ("yes", f"at most {CHANCE:g}") if p <= CHANCE else ("unsure", f"above {CHANCE:g}")
    share = "the share of all assignments of rows to steps that explain the steps at least as well"
    yield says, f"p_margin {show_p(p)}: {share}, {bound}. It is not part of the verdict."


def _seasonal_reason(skill: Skill) -> tuple[str, str]:
    """Seasonal naive is shown beside the naive forecasts, and is not part of the verdict."""
    if not math.isfinite(skill.mse_seasonal):
        return "unsure", "Seasonal naive: unknown."
    beats, words = ("yes", "below") if skill.beats_seasonal else ("unsure", "not below")
    error = f"squared error {skill.mse:.3g}, {words} repeating the last season ({skill.mse_seasonal:.3g})"
    scaled = "" if math.isnan(skill.mase) else f" MASE {skill.mase:.3g}, that of the season {skill.seasonal_mase:.3g}."
    return beats, f"Seasonal naive: {error}. It is not part of the verdict.{scaled}"


def _gains(quantities: Quantities) -> list[tuple[str, str, str]]:
    """Each gain with its value and half of its 95 % interval over draws, empty where there is none."""
    errors = {gain: quantities.plus_minus(gain) for gain in GAINS}
    values = {gain: signed(getattr(quantities, gain)) for gain in GAINS}
    return [(gain, values[gain], "" if math.isnan(errors[gain]) else f"{errors[gain]:.2g}") for gain in GAINS]


def _with_errors(quantities: Quantities) -> dict[str, str]:
    """Each gain with its ± in one text."""
    return {gain: f"{value} ± {error}" if error else value for gain, value, error in _gains(quantities)}


def _extent(quantities: Quantities, lookback: int) -> str:
    """How many directions the matrices have and how far back they reach; one of zeros has neither."""
    if math.isnan(quantities.rank):
        return "The matrix of every held-out window is zero: it has no rank, and nothing is read."
    dropped = quantities.rank_dropped
    zero = f" The matrix of {dropped} of {quantities.windows} windows is zero and left out of both." if dropped else ""
    return (
        f"Rank of the matrix {quantities.rank:.2f}: 1 means that every step reads the same points. 90 % of a row’s "
        f"mass lies in the last {quantities.effective_lookback:.0f} of {lookback} values on average.{zero}"
    )


def _window(x: Explanation) -> Json:
    """Return the data of the page's script: the heat map, and what only this page shows."""
    (held_out,) = x.held_out
    curves = None if held_out.quantities is None else held_out.quantities.curves
    about = f"The last {x.lookback} values, and the forecast of what follows. {_SAYS[held_out.trust][1]}."
    return _heatmap_json(x, 0, curves) | {
        "title": clean(" ".join((about, *(f"{note}." for note in x.notes)))),
        "why": "" if held_out.trust in (Trust.OWN_ROWS, Trust.SHARED) else held_out.trust.value,
        "palette": palette(),
        "points": _top_points(np.asarray(x.matrix[0], dtype=np.float64)),
    }


def _heatmap_json(x: Explanation, number: int, curves: Floats | None = None) -> Json:
    """One series as the scripts of the heat map take it: an example of a report without a truth."""
    model, name, times = clean(x.model.name), clean(x.items[number]), x.times[number]
    setting = f"{x.lookback}x{x.horizon}"
    return example_json(x.x[number], np.empty(0), x.forecast[number], x.matrix[number], curves) | {
        "steps": list(x.steps),
        "labels": None if times is None else [clean(show_time(time)) for time in times.inputs],
        "unit": "value",
        "heading": f"{model} on {name}, {setting}",
        "file": file_stem(x.model.name, x.items[number], setting),
    }


def _top_points(matrix: Floats) -> list[dict[str, object]]:
    """For each row the positions of its largest entries, their shares of the row and of the shared vector, in percent.

    `share` is the share of the row that these positions hold together.
    """
    matrix = np.nan_to_num(matrix)
    rows: list[dict[str, object]] = []
    shared, *shares = (values / (values.sum() or 1.0) for values in (matrix.mean(axis=0), *matrix))
    for row in shares:
        at = np.argsort(-row, kind="stable")[:_MOST_POINTS]
        points = [[int(position), percent(row[position]), percent(shared[position])] for position in at]
        rows.append({"share": percent(float(row[at].sum())), "points": points})
    return rows


class ExplainedPage(NamedTuple):
    """An explanation of one series, and the name of its own page in the same folder."""

    x: Explanation
    page: str


def write_several(pages: Sequence[ExplainedPage], path: Path) -> Path:
    """Write a page with a table of all forecasts and their heat maps, models of one series beside each other.

    Return its path.
    """
    models = dict.fromkeys(one.x.model.name for one in pages)
    by_series: dict[str, list[dict[str, object]]] = {}
    forecasts = [_forecast(one) for one in pages]
    for one in forecasts:
        by_series.setdefault(str(one["series"]), []).append(one)
    heading = f"{counted(len(models), 'model')} on {len(by_series)} series"
    page = render_page(
        "explain_several.html",
        ("core.js",),
        {},
        title=f"{heading} – hrx explain",
        kicker="hrx explain",
        heading=heading,
        facts=_facts(pages[0].x),
        heads=_HEADS,
        forecasts=forecasts,
        by_series=by_series,
        footer=made_by(),
    )
    return write_bytes(path, page.encode())


def _forecast(one: ExplainedPage) -> dict[str, object]:
    """One forecast for the template: names, the other cells of its row, and its heat map."""
    held_out = one.x.held_out[0]
    quantities, skill = held_out.quantities, held_out.skill
    errors = ("–", "–") if skill is None else (f"{skill.mse:.3g}", f"{min(skill.mse_zero, skill.mse_last):.3g}")
    gains = ["–"] * 4
    if quantities is not None:
        shown = _with_errors(quantities)
        gains = [shown["g_own"], shown["g_margin"], f"{quantities.rank:.2f}", f"{quantities.effective_lookback:.0f}"]
    return {
        "page": quote(one.page),
        "model": one.x.model.name,
        "series": one.x.items[0],
        "cells": (held_out.trust.value, *errors, *gains),
        "says": _SAYS[held_out.trust][1],
        "picture": picture(heatmap_figure(one.x)),
    }


def heatmap_widget(x: Explanation) -> AnyWidget:
    """Return the heat maps of some series, one at a time. `series`, `step` and `position` follow the chosen cell."""
    title = f"What each step of the forecast reads, by {x.method.estimator}. {'. '.join((*x.notes, ''))}".strip()
    items = [
        _heatmap_json(x, number) | {"name": clean(name), "title": clean(title), "why": ""}
        for number, name in enumerate(x.items)
    ]
    return _widget_class()(items=items, palette=palette())


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise HrxError(f"A widget needs anywidget, which is not installed. {install_command('notebook')}") from error

    class HeatmapWidget(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget is optional, and not typed here
        """Interactive heat map; the chosen cell is in `series`, `step` (from 1) and `position` (-1 is the last)."""

        _esm = "\n".join(map(asset, (*HEATMAP_SCRIPTS, "widget.js")))
        # Nested, so that the styles reach nothing else of a notebook.
        _css = f".hrx-heat {{ {_FRAME}\n{asset('heatmap.css')}}}\n"
        items = traitlets.List().tag(sync=True)
        palette = traitlets.Unicode().tag(sync=True)
        series = traitlets.Unicode().tag(sync=True)
        step = traitlets.Int(1).tag(sync=True)
        position = traitlets.Int(-1).tag(sync=True)

        def __repr__(self) -> str:
            return f"<heat maps of {counted(len(self.items), 'series', 'series')}, in a notebook that runs>"

    return HeatmapWidget
