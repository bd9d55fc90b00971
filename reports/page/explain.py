"""`hrx explain`: one forecast as one page: the verdict on its reading first, the reading below."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hrx import __version__
from hrx.audit.runner.explained import SURE, ExplainedForecast, Trust
from hrx.audit.scoring.quantities import GAINS, Quantities
from hrx.reports.files import make_directory, write_bytes
from hrx.reports.layout import clean, shorten
from hrx.reports.page.html import embed, page, text
from hrx.reports.page.pictures import pack, palette, rounded
from hrx.reports.words import listed, signed

SCRIPTS = ("core.js", "heatmap.js", "heatdraw.js", "explain.js")
_LONGEST_NAME = 40
_SAYS = {
    Trust.NOT_ADMITTED: ("none", "Do not read it: the checkpoint fails an admission check"),
    Trust.NOT_SCORED: ("none", "Do not read it: the series cannot be scored"),
    Trust.NOT_BETTER_THAN_NAIVE: ("contrary", "Do not read it: on this series the forecast does not beat naive ones"),
    Trust.NO_EVIDENCE: ("no", "Not step by step: there is no evidence that a step reads points of its own here"),
    Trust.SHARED: ("partly", "Read the shared vector: it explains the forecast at least as well as rows of their own"),
    Trust.OWN_ROWS: ("yes", "May be read step by step: on this series each step’s own row explains it best"),
}


class Reason(NamedTuple):
    """One thing that speaks for the reading, or against it."""

    passed: bool
    sentence: str


def trust_sentence(reading: ExplainedForecast) -> str:
    """The verdict and what it rests on, in one line."""
    return f"{_SAYS[reading.trust][1]}. {_because(reading)}"


def write_explanation(reading: ExplainedForecast, path: str | Path) -> Path:
    """Writes the page of one forecast. Returns its path."""
    path = Path(path)
    make_directory(path.parent)
    return write_bytes(path, render(reading).encode())


def render(reading: ExplainedForecast) -> str:
    """The page of one forecast."""
    tone, says = _SAYS[reading.trust]
    series, model = (shorten(clean(name), _LONGEST_NAME) for name in (reading.series, reading.model))
    heading = f"What {model} reads to forecast {series}"
    lookback, horizon = len(reading.x), len(reading.forecast)
    until = f", up to {reading.labels[-1]}" if reading.labels else ""
    reasons = (f'<li data-passed="{_word(reason)}">{text(reason.sentence)}</li>' for reason in _reasons(reading))
    return page(
        "explain.html",
        SCRIPTS,
        {
            "title": f"{text(heading)} – hrx explain",
            "heading": text(heading),
            "facts": text(
                f"The last {lookback} values{until}, and the {horizon} steps after them, by {reading.estimator}"
            ),
            "tone": tone,
            "says": text(says),
            "because": text(_because(reading)),
            "reasons": "".join(reasons),
            "measured": _measured(reading),
            "reproduce": _reproduce(reading),
            "footer": text(f"Made by hrx {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."),
            "data": embed("window", _window(reading)),
        },
    )


def _word(reason: Reason) -> str:
    return "yes" if reason.passed else "no"


def _because(reading: ExplainedForecast) -> str:
    held_out = f"{reading.windows} held-out window{'s' if reading.windows > 1 else ''} of this series"
    return f"Measured on {held_out}: an indication for this series, not an audit of the checkpoint."


def _reasons(reading: ExplainedForecast) -> Iterator[Reason]:
    """The reasons in the order in which they decide."""
    if reading.failed:
        for check in reading.failed:
            yield Reason(
                False, f"Admission: {check.check} has {check.figure:.2g} against {check.limit:.2g}: {check.note}."
            )
    elif reading.checks:
        names = listed(check.check for check in reading.checks)
        yield Reason(True, f"Admission: passes {names} on these windows.")
    if reading.skill is None or reading.quantities is None:
        yield Reason(False, f"Not scored: {reading.unscored}.")
        return
    skill = reading.skill
    better = "below" if skill.beats_naive else "not below"
    yield Reason(
        skill.beats_naive,
        f"Naive forecasts: squared error {skill.mse:.3g}, {better} both predicting the mean ({skill.mse_zero:.3g}) and "
        f"repeating the last value ({skill.mse_last:.3g}).",
    )
    for gain, meaning in (
        ("g_margin", "a step’s own row against other steps’ rows"),
        ("g_own", "a step’s own row against the shared vector"),
    ):
        value, error = getattr(reading.quantities.normalised, gain), getattr(reading.quantities.error, gain)
        sure = reading.surely_positive(gain)
        side = "above" if sure else "not above"
        yield Reason(sure, f"{gain} {signed(value)} ± {error:.2g}, {meaning}: {side} 0 by {SURE:g} Monte Carlo errors.")


def _measured(reading: ExplainedForecast) -> str:
    """The gains with their errors, and the rank."""
    if reading.quantities is None:
        return f"<p>{text(reading.unscored)}</p>"
    quantities = reading.quantities
    rows = "".join(
        f'<tr><th scope="row">{gain}</th><td class="number">{text(signed(getattr(quantities.normalised, gain)))}</td>'
        f'<td class="number">{getattr(quantities.error, gain):.2g}</td></tr>'
        for gain in GAINS
    )
    return (
        "<p>Shares of the forecasts’ variance; the error is that of the random replacements "
        f"({quantities.draws} draws).</p>"
        '<div class="wide"><table class="data slim"><thead><tr><th scope="col">gain</th>'
        '<th scope="col" class="number">value</th><th scope="col" class="number">± error</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f"<p>{_extent(quantities, reading)}</p>"
    )


def _extent(quantities: Quantities, reading: ExplainedForecast) -> str:
    """How many directions the matrices have and how far back they reach; one of zeros has neither."""
    if math.isnan(quantities.rank):
        return "The matrix of every held-out window is zero: there is no rank, and nothing that is read."
    dropped = quantities.rank_dropped
    zero = f" The matrix of {dropped} of {reading.windows} windows is zero and left out of both." if dropped else ""
    return (
        f"Rank of the matrix {quantities.rank:.2f}: 1 means that every step reads the same points. 90 % of a row’s "
        f"mass lies in the last {quantities.effective_lookback:.0f} of {len(reading.x)} values on average.{zero}"
    )


def _reproduce(reading: ExplainedForecast) -> str:
    settings = f"--lookback {len(reading.x)} --horizon {len(reading.forecast)} --estimator {reading.estimator}"
    command = f"hrx explain {clean(reading.model)} --series FILE:{clean(reading.series)} {settings}"
    facts = (
        ("checkpoint", reading.checkpoint),
        ("weights (sha256)", reading.fingerprint),
        ("library", reading.library),
        ("hrx", __version__),
    )
    listing = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in facts)
    return f'<pre>{text(command)}</pre><dl class="record">{listing}</dl>'


def _window(reading: ExplainedForecast) -> dict[str, object]:
    """What the page's script draws."""
    matrix = np.asarray(reading.matrix, dtype=np.float64)
    largest = float(matrix.max(initial=0.0))
    curves = None if reading.quantities is None else reading.quantities.curves
    return {
        "x": rounded(reading.x),
        "truth": [],
        "forecast": rounded(reading.forecast),
        "rows": len(matrix),
        "steps": [step + 1 for step in reading.steps],
        "largest": largest,
        "matrix": pack(matrix / largest if largest > 0 else matrix),
        "curves": None if curves is None else [[rounded(line) for line in pair] for pair in curves],
        "labels": None if reading.labels is None else [clean(label) for label in reading.labels],
        "unit": "value",
        "title": f"{clean(reading.series)}: the last {len(reading.x)} values, and the forecast of what follows.",
        "palette": palette(),
    }
