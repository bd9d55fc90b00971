"""`hrx explain`: one forecast as one page: first whether its explanation can be trusted, then the explanation."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hrx import __version__
from hrx.records.explained import SURE, ExplainedForecast, Trust
from hrx.records.ledger import StoredExample
from hrx.records.quantities import GAINS, Floats, Quantities, Skill
from hrx.reports.heatmap import speaking_name
from hrx.reports.page import HEATMAP_SCRIPTS, Row, embed, fact_list, fill_page, html_table, made_by
from hrx.reports.page.context import series_context
from hrx.reports.page.data import example_json, palette
from hrx.reports.text import clean, counted, escape_html, listed, percent, shorten, signed, write_bytes

SCRIPTS = (*HEATMAP_SCRIPTS, "page.js", "explain.js")
_LONGEST_NAME = 40
_MOST_POINTS = 10
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


def says(explained: ExplainedForecast) -> str:
    """The verdict in a few words."""
    return _SAYS[explained.trust][1]


def trust_sentence(explained: ExplainedForecast) -> str:
    """The verdict and its evidence in one line."""
    return f"{says(explained)}. {_because(explained)}"


def write_explanation(explained: ExplainedForecast, path: str | Path, command: str = "") -> Path:
    """Writes the page of one forecast, with the command that made it if there was one. Returns its path."""
    return write_bytes(Path(path), render(explained, command).encode())


def render(explained: ExplainedForecast, command: str = "") -> str:
    """The page of one forecast."""
    tone, says = _SAYS[explained.trust]
    series, model = (shorten(clean(name), _LONGEST_NAME) for name in (explained.series, explained.model))
    heading = f"What {model} reads to forecast {series}"
    lookback, horizon = len(explained.x), len(explained.forecast)
    until = f", up to {explained.labels[-1]}" if explained.labels else ""
    reasons = (f'<li data-passed="{passed}">{escape_html(sentence)}</li>' for passed, sentence in _reasons(explained))
    return fill_page(
        "explain.html",
        SCRIPTS,
        {
            "title": f"{escape_html(heading)} – hrx explain",
            "kicker": "hrx explain",
            "heading": escape_html(heading),
            "facts": escape_html(
                f"The last {lookback} values{until}, and the {horizon} steps after them, by {explained.estimator}"
            ),
            "tone": tone,
            "says": escape_html(says),
            "because": escape_html(_because(explained)),
            "reasons": "".join(reasons),
            "measured": _measured(explained)
            + ("" if explained.context is None else str(series_context(explained.context))),
            "reproduce": _reproduce(explained, command),
            "footer": made_by(),
            "data": embed("window", _window(explained)),
        },
    )


def _because(explained: ExplainedForecast) -> str:
    held_out = f"{counted(explained.windows, 'held-out window')} of this series"
    return f"Measured on {held_out}: an indication for this series, not an audit of the checkpoint."


def _reasons(explained: ExplainedForecast) -> Iterator[tuple[str, str]]:
    """Whether each reason speaks for the explanation (yes, no, unsure), and its sentence, in the order in which they
    decide. The seasonal forecast decides nothing.
    """
    for check in explained.failed:
        yield "no", f"Admission: {check.check} has {check.figure:.2g} against {check.limit:.2g}: {check.note}."
    if explained.checks and not explained.failed:
        yield "yes", f"Admission: passes {listed(check.check for check in explained.checks)} on these windows."
    if explained.padded:
        zeros = f"its library puts {counted(explained.padded, 'zero')} before these {len(explained.x)} values"
        yield "unsure", f"Padding: {zeros}, and the model reads them as observed values. A longer lookback has none."
    if explained.skill is None or explained.quantities is None:
        yield "no", f"Not scored: {explained.unscored}."
        return
    skill = explained.skill
    better = "below" if skill.beats_naive else "not below"
    yield (
        "yes" if skill.beats_naive else "no",
        f"Naive forecasts: squared error {skill.mse:.3g}, {better} both predicting the mean ({skill.mse_zero:.3g}) and "
        f"repeating the last value ({skill.mse_last:.3g}).",
    )
    yield _seasonal_reason(skill)
    for gain, other in (("g_margin", "other steps’ rows"), ("g_own", "the shared vector")):
        value, error = getattr(explained.quantities.normalised, gain), getattr(explained.quantities.error, gain)
        sure = explained.surely_positive(gain)
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


def _measured(explained: ExplainedForecast) -> str:
    """The gains with their errors, and the rank."""
    if explained.quantities is None:
        return f"<p>{escape_html(explained.unscored)}</p>"
    quantities = explained.quantities
    heads = (("gain", ""), ("value", "number"), ("± error", "number"))
    rows = [
        Row((gain, signed(getattr(quantities.normalised, gain)), f"{getattr(quantities.error, gain):.2g}"))
        for gain in GAINS
    ]
    return (
        "<p>Shares of the forecasts’ variance; the error is that of the random replacements "
        f"({quantities.draws} draws).</p>{html_table(heads, rows, label='Gains', kind='slim')}"
        f"<p>{_extent(quantities, explained)}</p>"
    )


def _extent(quantities: Quantities, explained: ExplainedForecast) -> str:
    """How many directions the matrices have and how far back they reach; one of zeros has neither."""
    if math.isnan(quantities.rank):
        return "The matrix of every held-out window is zero: it has no rank, and nothing is read."
    dropped = quantities.rank_dropped
    zero = f" The matrix of {dropped} of {explained.windows} windows is zero and left out of both." if dropped else ""
    return (
        f"Rank of the matrix {quantities.rank:.2f}: 1 means that every step reads the same points. 90 % of a row’s "
        f"mass lies in the last {quantities.effective_lookback:.0f} of {len(explained.x)} values on average.{zero}"
    )


def _reproduce(explained: ExplainedForecast, command: str) -> str:
    path = "<p>Replace PATH by the folder of that file or directory.</p>" if "PATH/" in command else ""
    shown = f"{path}<pre>{escape_html(command)}</pre>" if command else "<p>Made from Python, without a command.</p>"
    weights = {"checkpoint": explained.checkpoint, "weights (sha256)": explained.fingerprint}
    facts = fact_list(weights | {"library": explained.library, "hrx": __version__})
    return f"{shown}{facts}"


def _window(explained: ExplainedForecast) -> dict[str, object]:
    """The data of the page's script: an example without a truth, and what only this page shows."""
    matrix = np.asarray(explained.matrix, dtype=np.float64)
    curves = None if explained.quantities is None else explained.quantities.curves
    series, model = clean(explained.series), clean(explained.model)
    return example_json(StoredExample("", explained.x, np.empty(0), explained.forecast, matrix, curves)) | {
        "steps": [step + 1 for step in explained.steps],
        "labels": None if explained.labels is None else [clean(label) for label in explained.labels],
        "unit": "value",
        "title": f"The last {len(explained.x)} values, and the forecast of what follows. {_SAYS[explained.trust][1]}.",
        "why": "" if explained.trust in (Trust.OWN_ROWS, Trust.SHARED) else explained.trust.value,
        "file": speaking_name(explained.model, explained.series, f"{len(explained.x)}x{len(explained.forecast)}"),
        "heading": f"{model} on {series}, {len(explained.x)}x{len(explained.forecast)}",
        "palette": palette(),
        "points": _top_points(matrix),
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
