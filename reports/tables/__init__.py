"""The paper's tables from stored runs: one function each, listed here by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.reports import published
from hrx.reports.table import Table
from hrx.reports.tables import estimators, gains, matrix
from hrx.reports.tables.runs import DEFAULT_ESTIMATOR, Runs


class Recipe(NamedTuple):
    """How a table is made, and what a ledger must hold for it."""

    make: Callable[[Runs], Table]
    needs: str


_SCORED = "scored runs of that estimator with one row per forecast step"
RECIPES: dict[str, Recipe] = {
    "models": Recipe(gains.models, _SCORED),
    "models_full": Recipe(gains.models_full, _SCORED),
    "metrics": Recipe(gains.metrics, _SCORED),
    "axes": Recipe(gains.axes, _SCORED),
    "domains": Recipe(gains.domains, f"{_SCORED}, on datasets whose domain is known"),
    "datasets": Recipe(gains.datasets, _SCORED),
    "estimators": Recipe(estimators.estimators, "scored runs with one row per forecast step"),
    "estimators_plain": Recipe(estimators.estimators_plain, "runs of an estimator with the axis removed (axis whole)"),
    "cost": Recipe(estimators.cost, "runs with the time of their matrix and of a forward pass"),
    "seeds": Recipe(matrix.seeds, f"{_SCORED}, with two seeds or more"),
    "rank": Recipe(matrix.rank, _SCORED),
    "truncation": Recipe(matrix.truncation, "runs that scored truncations of the matrix"),
    "distance": Recipe(matrix.distance, "runs that scored rows at fixed distances"),
    "channels": Recipe(matrix.channels, "runs of windows with several variates, scored on the channel axis"),
}
NAMES: tuple[str, ...] = tuple(RECIPES)


def tables(
    frame: pd.DataFrame,
    names: Sequence[str] | None = None,
    *,
    against: Literal["published"] | None = None,
    estimator: str = DEFAULT_ESTIMATOR,
    fold: bool = True,
) -> list[Table]:
    """The named tables from the runs of `read(ledger)`; without names, all that the ledger can fill.

    `estimator` is whose runs are read by the tables that are not about estimators. Without `fold`, every seed counts as
    a run of its own. `against="published"` sets each cell beside the paper's.
    """
    if wrong := [name for name in names or () if name not in RECIPES]:
        raise HrxError(unknown("table", wrong[0], NAMES))
    runs = Runs(frame, estimator, fold)
    if estimator != DEFAULT_ESTIMATOR and runs.scored.empty:
        raise HrxError(f"No scored run is of the estimator {estimator!r}. {runs.holdings()}")
    made = {name: RECIPES[name].make(runs) for name in names or NAMES}
    for name in names or ():
        if not made[name].rows:
            raise HrxError(f"The table {name!r} cannot be filled: it needs {RECIPES[name].needs}. {runs.holdings()}")
    filled = [table for table in made.values() if table.rows]
    if not filled:
        raise HrxError(f"No table can be filled: there are no scored runs. {runs.holdings()}")
    return [published.beside(table) for table in filled] if against == "published" else filled
