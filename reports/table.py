"""The table: one frozen object that renders to the terminal, Markdown, LaTeX, CSV, HTML and JSON.

A column in which any cell has a published value is shown beside that value, and beside the difference where a
difference says something: not for counts, intervals and p values.
What a value looks like is said in `hrx.reports.cells`, what a table looks like in `table_text` and `table_markup`, what
the tables hold in `hrx.reports.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from hrx.reports import table_markup, table_text
from hrx.reports.cells import Cell, Column, Row

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A table as data. Every row has a cell for every column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    label: str = ""
    """What the paper calls it in LaTeX, where it has it."""

    def __post_init__(self) -> None:
        if any(len(row.cells) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: a row has more or fewer cells than there are columns")

    def to_text(self, width: int = 80) -> str:
        """For a terminal, in at most `width` columns where the columns fit."""
        return table_text.text(self, width)

    def to_markdown(self) -> str:
        """A pipe table with its title above and its note below."""
        return table_text.markdown(self)

    def to_csv(self) -> str:
        """Values in full precision under the columns' names. An interval takes two fields."""
        return table_text.csv_file(self)

    def to_json(self) -> str:
        """Everything: values as numbers, and the text that the other forms show."""
        return table_text.json_file(self)

    def as_json(self) -> dict[str, object]:
        """What `to_json` writes."""
        return table_text.as_json(self)

    def to_latex(self) -> str:
        """A `table` with booktabs rules, in the colours of the paper."""
        return table_markup.latex(self)

    def to_html(self) -> str:
        """A `<table>` with its caption and note, to be put into a page."""
        return table_markup.html(self)

    @property
    def compared(self) -> tuple[bool, ...]:
        """For each column, whether published values stand beside it."""
        return tuple(any(row.cells[i].published is not None for row in self.rows) for i in range(len(self.columns)))

    def sectioned(self) -> Iterator[Row | str]:
        """The rows, with the name of each section before its first row."""
        section = ""
        for row in self.rows:
            if row.section and row.section != section:
                yield row.section
            section = row.section
            yield row

    def per_column(
        self, own: Callable[[Column], T], published: Callable[[Column], T], difference: Callable[[Column], T]
    ) -> list[T]:
        """An item for a column, another for its published values, a third for differences, where it has them."""
        items: list[T] = []
        for column, compared in zip(self.columns, self.compared, strict=True):
            items.append(own(column))
            items += [published(column)] if compared else []
            items += [difference(column)] if compared and column.differs else []
        return items

    def per_cell(
        self,
        row: Row,
        own: Callable[[Cell, Column], T],
        published: Callable[[Cell], T],
        difference: Callable[[Cell], T],
    ) -> list[T]:
        """The same for the cells of a row."""
        items: list[T] = []
        for cell, column, compared in zip(row.cells, self.columns, self.compared, strict=True):
            items.append(own(cell, column))
            items += [published(cell)] if compared else []
            items += [difference(cell)] if compared and column.differs else []
        return items
