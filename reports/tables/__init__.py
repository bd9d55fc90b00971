"""The paper's tables from stored runs: one function each, listed here by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.reports import published
from hrx.reports.table import ReportTable
from hrx.reports.tables import definitions
from hrx.reports.tables.scored import DEFAULT_ESTIMATOR, ScoredRuns


class TableRecipe(NamedTuple):
    """The function that makes a table, and what the ledger must hold for it."""

    make: Callable[[ScoredRuns], ReportTable]
    needs: str


_SCORED = "scored runs of that estimator with one row per forecast step"
RECIPES: dict[str, TableRecipe] = {
    "models": TableRecipe(definitions.models, _SCORED),
    "models_full": TableRecipe(definitions.models_full, _SCORED),
    "metrics": TableRecipe(definitions.metrics, _SCORED),
    "axes": TableRecipe(definitions.axes, _SCORED),
    "domains": TableRecipe(definitions.domains, f"{_SCORED}, on datasets with a known domain"),
    "datasets": TableRecipe(definitions.datasets, _SCORED),
    "estimators": TableRecipe(definitions.estimators, "scored runs with one row per forecast step"),
    "estimators_plain": TableRecipe(definitions.estimators_plain, "runs of an estimator without the horizon axis"),
    "cost": TableRecipe(definitions.cost, "runs with the time of their matrix and of a forward pass"),
    "seeds": TableRecipe(definitions.seeds, f"{_SCORED}, with two seeds or more"),
    "rank": TableRecipe(definitions.rank, _SCORED),
    "truncation": TableRecipe(definitions.truncation, "runs that scored truncations of the matrix"),
    "distance": TableRecipe(definitions.distance, "runs that scored rows at fixed distances"),
    "channels": TableRecipe(definitions.channels, "runs of windows with several variates, scored on the channel axis"),
}
NAMES: tuple[str, ...] = tuple(RECIPES)


def tables(
    frame: pd.DataFrame,
    names: Sequence[str] | None = None,
    *,
    against: Literal["published"] | None = None,
    estimator: str = DEFAULT_ESTIMATOR,
    fold: bool = True,
) -> list[ReportTable]:
    """The named tables from the runs of `read(ledger)`; without names, all that the ledger can fill.

    `estimator` selects the runs of all tables that do not compare estimators. Without `fold`, every seed counts as a
    run. `against="published"` puts the paper's value beside each cell.
    """
    if wrong := [name for name in names or () if name not in RECIPES]:
        raise HrxError(unknown("table", wrong[0], NAMES))
    runs = ScoredRuns(frame, estimator, fold)
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
