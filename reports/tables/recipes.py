"""How a table is listed: its title, the function that makes its content, and what the ledger must hold for it."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hrx.reports.table import TableColumn
from hrx.reports.tables.scored import Figure, ScoredRuns, TableGroup

SCORED = "scored runs of that estimator with one row per forecast step"
Content = tuple[Iterable[TableGroup], Sequence[Figure], str]
"""The groups of the rows, the columns after the row's label, and the sentences of the note."""
Maker = Callable[[ScoredRuns], Content]


class TableRecipe(NamedTuple):
    """What a table is called, the function that makes its content, and what the ledger must hold for it."""

    title: str
    label: TableColumn
    content: Maker
    needs: str
    descending: bool
    keep_empty: bool


class Recipes(dict[str, TableRecipe]):
    """Tables by name, in order."""

    def table(
        self, title: str, label: str, needs: str = SCORED, *, name: str = "", descending: bool = False,
        keep_empty: bool = False,
    ) -> Callable[[Maker], Maker]:  # fmt: skip
        """Lists a table under its function's name. `descending`: by falling median; `keep_empty`: empty rows stay."""

        def add(content: Maker) -> Maker:
            column = TableColumn(name or label.lower(), label)
            self[content.__name__] = TableRecipe(title, column, content, needs, descending, keep_empty)
            return content

        return add
