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
from hrx.errors import HrxError
from hrx.install import install_command
from hrx.records.explanation import SURE, Explanation, HeldOut, Trust, show_time
from hrx.records.quantities import GAINS, Floats, Quantities, Skill
from hrx.reports.context import series_context
from hrx.reports.heatmap import heatmap_figure, picture
from hrx.reports.page import HEATMAP_SCRIPTS, Row, asset, embed, fact_list, fill_page, html_table, made_by
from hrx.reports.page.data import Json, example_json, palette
from hrx.reports.text import (
    clean,
    counted,
    escape_html,
    file_stem,
    listed,
    percent,
    shorten,
    signed,
    write_bytes,
)  # fmt: skip

if TYPE_CHECKING:
    from anywidget import AnyWidget

SCRIPTS = (*HEATMAP_SCRIPTS, "page.js", "explain.js")
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


def says(held_out: HeldOut) -> str:
    """The verdict in a few words."""
    return _SAYS[held_out.trust][1]


def trust_sentence(held_out: HeldOut) -> str:
    """The verdict and its evidence in one line."""
    return f"{says(held_out)}. {_because(held_out)}"


def setting_name(x: Explanation) -> str:
    """A file name without a suffix, of the first series."""
    return file_stem(x.model.name, x.items[0], f"{x.lookback}x{x.horizon}")


def write_explanation(x: Explanation, path: str | Path, command: str = "") -> Path:
    """Writes the page of one forecast, with the command that made it if there was one. Returns its path."""
    return write_bytes(Path(path), render(x, command).encode())


def render(x: Explanation, command: str = "") -> str:
    """The page of one forecast with its held-out scores."""
    (held_out,), (times,) = x.held_out, x.times
    tone, says = _SAYS[held_out.trust]
    heading = f"What {_short(x.model.name)} reads to forecast {_short(x.items[0])}"
    until = "" if times is None else f", up to {show_time(times.inputs[-1])}"
    reasons = (f'<li data-passed="{passed}">{escape_html(sentence)}</li>' for passed, sentence in _reasons(x))
    context = "" if held_out.context is None else str(series_context(held_out.context))
    return fill_page(
        "explain.html",
        SCRIPTS,
        {
            "title": f"{escape_html(heading)} – hrx explain",
            "kicker": "hrx explain",
            "heading": escape_html(heading),
            "facts": escape_html(
                f"The last {x.lookback} values{until}, and the {x.horizon} steps after them, by {x.method.estimator}"
            ),
            "tone": tone,
            "says": escape_html(says),
            "because": escape_html(_because(held_out)),
            "reasons": "".join(reasons),
            "measured": _measured(x) + context,
            "reproduce": _reproduce(x, command),
            "footer": made_by(),
            "data": embed("window", _window(x)),
        },
    )


def _short(name: str) -> str:
    return shorten(clean(name), _LONGEST_NAME)


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
    better = "below" if skill.beats_naive else "not below"
    yield (
        "yes" if skill.beats_naive else "no",
        f"Naive forecasts: squared error {skill.mse:.3g}, {better} both predicting the mean ({skill.mse_zero:.3g}) and "
        f"repeating the last value ({skill.mse_last:.3g}).",
    )
    yield _seasonal_reason(skill)
    for gain, other in (("g_margin", "other steps’ rows"), ("g_own", "the shared vector")):
        value, error = getattr(held_out.quantities.normalised, gain), getattr(held_out.quantities.error, gain)
        sure = held_out.surely_positive(gain)
        against = f"a step’s own row against {other}: {'above' if sure else 'not above'} 0"
        yield (
            "yes" if sure else "no",
            f"{gain} {signed(value)} ± {error:.2g}, {against} by {SURE:g} Monte Carlo errors.",
        )


def _seasonal_reason(skill: Skill) -> tuple[str, str]:
    """Seasonal naive is shown beside the naive forecasts, and is not part of the verdict."""
    if not math.isfinite(skill.mse_seasonal):
        return "unsure", "Seasonal naive: unknown."
    words = "below" if skill.beats_seasonal else "not below"
    error = f"squared error {skill.mse:.3g}, {words} repeating the last season ({skill.mse_seasonal:.3g})"
    scaled = "" if math.isnan(skill.mase) else f" MASE {skill.mase:.3g}, that of the season {skill.seasonal_mase:.3g}."
    verdict = f"Seasonal naive: {error}. It is not part of the verdict.{scaled}"
    return "yes" if skill.beats_seasonal else "unsure", verdict


def _measured(x: Explanation) -> str:
    """The gains with their errors, and the rank."""
    quantities = x.held_out[0].quantities
    if quantities is None:
        return f"<p>{escape_html(x.held_out[0].unscored)}</p>"
    heads = (("gain", ""), ("value", "number"), ("± error", "number"))
    rows = [
        Row((gain, signed(getattr(quantities.normalised, gain)), f"{getattr(quantities.error, gain):.2g}"))
        for gain in GAINS
    ]
    return (
        "<p>Shares of the forecasts’ variance; the error is that of the random replacements "
        f"({quantities.draws} draws).</p>{html_table(heads, rows, label='Gains', kind='slim')}"
        f"<p>{_extent(quantities, x.held_out[0].windows, x.lookback)}</p>"
    )


def _extent(quantities: Quantities, windows: int, lookback: int) -> str:
    """How many directions the matrices have and how far back they reach; one of zeros has neither."""
    if math.isnan(quantities.rank):
        return "The matrix of every held-out window is zero: it has no rank, and nothing is read."
    dropped = quantities.rank_dropped
    zero = f" The matrix of {dropped} of {windows} windows is zero and left out of both." if dropped else ""
    return (
        f"Rank of the matrix {quantities.rank:.2f}: 1 means that every step reads the same points. 90 % of a row’s "
        f"mass lies in the last {quantities.effective_lookback:.0f} of {lookback} values on average.{zero}"
    )


def _reproduce(x: Explanation, command: str) -> str:
    path = "<p>Replace PATH by the folder of that file or directory.</p>" if "PATH/" in command else ""
    shown = f"{path}<pre>{escape_html(command)}</pre>" if command else "<p>Made from Python, without a command.</p>"
    weights = {"checkpoint": x.model.checkpoint, "weights (sha256)": x.model.fingerprint}
    facts = fact_list(weights | {"library": x.model.library, "hrx": __version__})
    return f"{shown}{facts}"


def _window(x: Explanation) -> Json:
    """The data of the page's script: the heat map, and what only this page shows."""
    (held_out,) = x.held_out
    curves = None if held_out.quantities is None else held_out.quantities.curves
    about = f"The last {x.lookback} values, and the forecast of what follows. {says(held_out)}."
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
    """Writes the page with all forecasts. Returns its path."""
    return write_bytes(path, render_several(pages).encode())


def render_several(pages: Sequence[ExplainedPage]) -> str:
    """The page with a table of all forecasts and their heat maps, models of one series beside each other."""
    models, series = dict.fromkeys(p.x.model.name for p in pages), dict.fromkeys(p.x.items[0] for p in pages)
    heading = f"{counted(len(models), 'model')} on {len(series)} series"
    first = pages[0].x
    facts = f"The last {first.lookback} values, and the {first.horizon} steps after them, by {first.method.estimator}"
    return fill_page(
        "explain_several.html",
        ("core.js",),
        {
            "title": f"{escape_html(heading)} – hrx explain",
            "kicker": "hrx explain",
            "heading": escape_html(heading),
            "facts": escape_html(facts),
            "table": html_table(_HEADS, map(_row, pages), label="Forecasts"),
            "pictures": "".join(_pictures(name, [one for one in pages if one.x.items[0] == name]) for name in series),
            "footer": made_by(),
        },
    )


def _link(one: ExplainedPage) -> str:
    return f'<a href="{quote(one.page)}">{escape_html(_short(one.x.model.name))}</a>'


def _row(one: ExplainedPage) -> Row:
    (held_out,) = one.x.held_out
    quantities, skill = held_out.quantities, held_out.skill
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
    series = f'<span class="name">{escape_html(_short(one.x.items[0]))}</span>'
    return Row((_link(one), series, escape_html(held_out.trust.value), *errors, *gains))


def _pictures(series: str, pages: Sequence[ExplainedPage]) -> str:
    """The heat maps of the models on one series."""
    figures = "".join(
        f'<figure><img alt="Heat map of {escape_html(_short(one.x.model.name))}" '
        f'src="{picture(heatmap_figure(one.x))}">'
        f"<figcaption>{_link(one)}: {escape_html(says(one.x.held_out[0]))}.</figcaption></figure>"
        for one in pages
    )
    return f'<h3>{escape_html(_short(series))}</h3><div class="side-by-side">{figures}</div>'


def heatmap_widget(x: Explanation) -> AnyWidget:
    """The heat maps of some series, one at a time. `series`, `step` and `position` follow the chosen cell."""
    title = f"What each step of the forecast reads, by {x.method.estimator}. {'. '.join((*x.notes, ''))}".strip()
    items = [
        _heatmap_json(x, number) | {"name": clean(name), "title": clean(title), "why": ""}
        for number, name in enumerate(x.items)
    ]
    return _widget_class()(items=items, palette=palette())


def widget_script() -> str:
    """The module that a notebook imports: the scripts of the heat map, and what binds them to a widget."""
    return "\n".join(map(asset, (*HEATMAP_SCRIPTS, "widget.js")))


def widget_style() -> str:
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

        _esm = widget_script()
        _css = widget_style()
        items = traitlets.List().tag(sync=True)
        palette = traitlets.Unicode().tag(sync=True)
        series = traitlets.Unicode().tag(sync=True)
        step = traitlets.Int(1).tag(sync=True)
        position = traitlets.Int(-1).tag(sync=True)

        def __repr__(self) -> str:
            return f"<heat maps of {counted(len(self.items), 'series', 'series')}, in a notebook that runs>"

    return HeatmapWidget
