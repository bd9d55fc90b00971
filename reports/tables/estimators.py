"""The tables about estimators: what a row per step adds to each, what each is worth without it, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from hrx.reports.cells import GAIN, INTERVAL, TIMES, Column, Format, Row
from hrx.reports.table import Table
from hrx.reports.tables.runs import BEATS_NAIVE, G_MARGIN, G_OWN, G_SHUFFLED, LEAKED, N, Runs, span, tail, values

LABELS = {
    "saliency": "Saliency",
    "gradient_x_input": "Gradient × input",
    "integrated_gradients": "Integrated gradients",
    "occlusion": "Occlusion",
    "dynamask": "Dynamask",
    "extremalmask": "ExtremalMask",
    "contralsp": "ContraLSP",
    "input_gradient": "Input gradient",
    "tsr": "TSR",
    "smoothgrad": "SmoothGrad",
}
"""What the paper calls the estimators, in its order."""
_UNSIGNED = Format("number", plus=False)


def estimators(runs: Runs) -> Table:
    """What a row per step adds to each estimator."""
    unsigned = Format("span", plus=False)
    gains = (G_OWN, G_SHUFFLED, G_MARGIN)
    pairs = [(replace(gain, format=_UNSIGNED), Column(f"{gain.name}_ci", "95% CI", unsigned)) for gain in gains]
    columns = (Column("estimator", "Estimator"), *(column for pair in pairs for column in pair), N, BEATS_NAIVE, LEAKED)
    rows = []
    for name, group in _by_estimator(runs.every_estimator):
        found = [values(group, gain.name) for gain in gains]
        n = found[-1].n
        cells = [
            cell
            for (median, interval), one in zip(pairs, found, strict=True)
            for cell in (median.cell(one.median, n=one.n), interval.cell(span(one), n=one.n))
        ]
        label = LABELS.get(name, name)
        row = (columns[0].cell(label, n=n), *cells, N.cell(n), *tail(group))
        rows.append(Row(row, key=label, where=(("estimator", name),)))
    title = "A row per forecast step for each estimator"
    return Table("estimators", title, columns, tuple(rows), runs.note(runs.every_estimator), "tab:methods")


def estimators_plain(runs: Runs) -> Table:
    """The estimators without the horizon axis, best first."""
    columns = (
        Column("estimator", "Estimator"),
        Column("gap", "Deletion gap", GAIN, hue="red"),
        Column("gap_ci", "95% CI", INTERVAL),
        N,
        BEATS_NAIVE,
        LEAKED,
    )
    found = []
    for name, group in _by_estimator(runs.whole):
        gap = values(group, "gap_shared")
        if not gap.n:
            continue
        label = LABELS.get(name, name)
        cells = (
            columns[0].cell(label, n=gap.n),
            columns[1].cell(gap.median, n=gap.n),
            columns[2].cell(span(gap), n=gap.n),
            N.cell(gap.n),
            *tail(group),
        )
        found.append((-gap.median, Row(cells, key=label, where=(("estimator", name), ("axis", "whole")))))
    rows = tuple(row for _, row in sorted(found, key=lambda pair: pair[0]))
    note = runs.note(runs.whole, "One row for the whole forecast, as each estimator was published.")
    title = "The estimators without the horizon axis"
    return Table("estimators_plain", title, columns, rows, note, "tab:methods_std")


def cost(runs: Runs) -> Table:
    """Wall time of the matrix in forward passes of the same model."""
    columns = (
        Column("estimator", "Estimator"),
        Column("cost", "Cost", TIMES, unit="forward passes"),
        N,
        BEATS_NAIVE,
        LEAKED,
    )
    rows = []
    for name, group in _by_estimator(runs.every_estimator):
        found = values(group, "cost")
        if found.n:
            label = LABELS.get(name, name)
            cells = (
                columns[0].cell(label, n=found.n),
                columns[1].cell(found.median, n=found.n),
                N.cell(found.n),
                *tail(group),
            )
            rows.append(Row(cells, key=label, where=(("estimator", name),)))
    note = runs.note(runs.every_estimator, "Median wall time of the matrix over that of one forward pass.")
    return Table("cost", "Cost of each estimator", columns, tuple(rows), note, "tab:methods_cost")


def _by_estimator(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The runs of each estimator, in the paper's order, others after them by name."""
    order = {name: index for index, name in enumerate(LABELS)}
    groups = [(str(name), group) for name, group in frame.groupby("estimator", sort=True)]
    return sorted(groups, key=lambda pair: order.get(pair[0], len(order)))
