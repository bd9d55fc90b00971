"""The table: one frozen object that renders to the terminal, Markdown, LaTeX, CSV, HTML and JSON.

Signs, decimals and percentages follow the published tables. A column in which any cell has a published value is shown
beside that value, and beside the difference where one is meaningful: not for counts, intervals and p values. The
output formats are in `hrx.reports.table_formats`, the content of the tables in `hrx.reports.tables`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hrx.reports.runs import FEW, is_few

MISSING = "-"
_TINY_P = 1e-12


class Span(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


Value = str | int | float | Span | None
Kind = Literal["text", "count", "number", "share", "span", "p", "times"]
Hue = Literal["", "red", "blue"]
Part = Literal["own", "published", "difference"]


@dataclass(frozen=True)
class Format:
    """How a value is written."""

    kind: Kind = "text"
    decimals: int = 3
    plus: bool = True
    """Whether a positive number carries its sign."""


TEXT = Format()
COUNT = Format("count")
SHARE = Format("share")
"""From 0 to 1; written in whole percent."""
P = Format("p")
TIMES = Format("times")
GAIN = Format("number")
FINE_GAIN = Format("number", decimals=4)
INTERVAL = Format("span")


@dataclass(frozen=True)
class Cell:
    """One value, its format, and the published value beside it."""

    value: Value = None
    format: Format = TEXT
    bold: bool = False
    """In the direction that the paper calls ideal, over at least ten runs."""
    faint: bool = False
    few: bool = False
    """Over fewer than ten runs."""
    published: Value = None
    difference: float | None = None
    """This value less the published one, both as printed, in the unit of `value`."""

    @property
    def text(self) -> str:
        """The value in plain text; a name is not cleaned yet."""
        return plain(self.value, self.format)

    def beside(self, published: Value) -> Cell:
        """The same cell with the published value and the difference of the printed values."""
        here, there = printed(self.value, self.format), printed(published, self.format)
        difference = None if here is None or there is None else round(here - there, 10)
        return replace(self, published=published, difference=difference)


@dataclass(frozen=True)
class TableColumn:
    """A column with its name in files and its heading for people."""

    name: str
    heading: str
    format: Format = TEXT
    unit: str = ""
    hue: Hue = ""
    """Which values the paper prints in colour: above zero in red, below zero in blue."""

    @property
    def differs(self) -> bool:
        """Whether the difference of two of its values is meaningful."""
        return self.format.kind in ("number", "share", "times")

    @property
    def title(self) -> str:
        """The heading with its unit."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading

    def cell(self, value: Value, *, n: int = FEW) -> Cell:
        """A cell over `n` runs: bold only in the ideal direction, and never with fewer than ten."""
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        ideal = number > 0 if self.hue == "red" else number < 0 if self.hue == "blue" else False
        few = is_few(n)
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        return Cell(value, self.format, bold=ideal and not few, faint=few or missing, few=few)


class ShownColumn(NamedTuple):
    """A column of a rendered table: the values of a column, their published ones, or the differences."""

    place: int
    """Of the column in its table."""
    column: TableColumn
    part: Part

    @property
    def is_number(self) -> bool:
        return self.part != "own" or self.column.format.kind != "text"

    def title(self, published: str = "published", difference: str = "difference") -> str:
        return {"own": self.column.title, "published": published, "difference": difference}[self.part]


@dataclass(frozen=True)
class TableRow:
    """The cells of one group of runs."""

    cells: tuple[Cell, ...]
    key: str = ""
    """The name of this row in the published table."""
    section: str = ""
    """Rows of one section stand together below its name."""
    total: bool = False
    """Stands apart from the rows above, over all of them."""
    where: tuple[tuple[str, str | int], ...] = ()
    """Which records these are: columns of the ledger and the value that each has in all of them."""


@dataclass(frozen=True)
class ReportTable:
    """A table as data. Every row has a cell for every column."""

    name: str
    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    note: str = ""
    label: str = ""
    """Its LaTeX label in the paper, where it has one."""

    def __post_init__(self) -> None:
        if any(len(row.cells) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.name}: a row has more or fewer cells than there are columns")

    def to_text(self, width: int = 80) -> str:
        """For a terminal, in at most `width` columns where the numbers fit."""
        return self._render("text", width)

    def to_markdown(self) -> str:
        """A pipe table with its title above and its note below."""
        return self._render("markdown")

    def to_csv(self) -> str:
        """Values in full precision under the columns' names. An interval takes two fields."""
        return self._render("csv_file")

    def to_json(self) -> str:
        """Everything: values as numbers, and the text of the other formats."""
        return self._render("json_file")

    def to_latex(self) -> str:
        """A `table` with booktabs rules, in the colours of the paper."""
        return self._render("latex")

    def to_html(self) -> str:
        """A `<table>` with its caption and note, to be put into a page."""
        return self._render("html")

    def _render(self, name: str, *arguments: int) -> str:
        from hrx.reports import table_formats  # which needs this module

        return str(getattr(table_formats, name)(self, *arguments))

    @property
    def compared(self) -> tuple[bool, ...]:
        """For each column, whether published values stand beside it."""
        return tuple(any(row.cells[i].published is not None for row in self.rows) for i in range(len(self.columns)))

    @property
    def shown(self) -> list[ShownColumn]:
        """The columns as people see them, published values and differences beside a column that has them."""
        found = []
        for index, (column, compared) in enumerate(zip(self.columns, self.compared, strict=True)):
            parts: tuple[Part, ...] = ("own", "published", "difference")
            found += [ShownColumn(index, column, part) for part in parts[: 1 + compared * (1 + column.differs)]]
        return found

    def sectioned(self) -> Iterator[TableRow | str]:
        """The rows, with the name of each section before its first row."""
        section = ""
        for row in self.rows:
            if row.section and row.section != section:
                yield row.section
            section = row.section
            yield row


def printed(value: Value, format: Format) -> float | None:
    """The number that a reader sees: rounded as it is written."""
    if value is None or isinstance(value, (str, Span)) or not math.isfinite(value):
        return None
    if format.kind == "share":
        return round(100 * value) / 100
    if format.kind == "times":
        return float(_times(value))
    return round(value, format.decimals) if format.kind == "number" else None


def plain(value: Value, format: Format) -> str:
    """The value in plain text, a dash where there is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Span):
        low, high = (plain(end, Format("number", format.decimals, format.plus)) for end in value)
        return MISSING if MISSING in (low, high) else f"[{low}, {high}]"
    if value is None or not math.isfinite(value):
        return MISSING
    if format.kind == "count":
        return f"{int(value):,}"
    if format.kind == "share":
        return f"{100 * value:.0f}%"
    if format.kind == "p":
        return "<10^-12" if value < _TINY_P else f"{value:.1e}" if value < 0.001 else f"{value:.3f}"
    if format.kind == "times":
        return f"{_times(value)}×"
    # Adding zero turns a negative zero into zero: an exact zero has no direction.
    return f"{value + 0.0:{'+' if format.plus else ''}.{format.decimals}f}"


def _times(value: float) -> str:
    """At least two digits: `3.1`, `98`, `592`."""
    return f"{value:.1f}" if round(value, 1) < 10 else f"{value:.0f}"


def difference_text(cell: Cell) -> str:
    """The difference with its sign, shares in points."""
    if cell.difference is None:
        return MISSING
    if cell.format.kind == "share":
        return f"{100 * cell.difference:+.0f} pt"
    return f"{cell.difference:+.{1 if cell.format.kind == 'times' else cell.format.decimals}f}"
