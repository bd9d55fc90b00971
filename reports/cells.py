"""Content of tables: values with their formats, cells, columns and rows, and which of them a reader sees.

Signs, decimals and percentages follow the published tables. A column in which any cell has a published value is shown
beside that value, and beside the difference where one is meaningful: not for counts, intervals and p values. The
content of the tables is made in `hrx.reports.tables`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hrx.reports import text
from hrx.reports.statistics import FEW, FEW_TEXT, is_few
from hrx.reports.text import clean

MISSING = "-"
_TINY_P = 1e-12


class Span(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


Value = str | int | float | Span | None
Kind = Literal["text", "count", "number", "share", "span", "p", "times"]
Part = Literal["own", "published", "difference"]
Hue = Literal["", "red", "blue"]


@dataclass(frozen=True)
class Format:
    """How a value is written; `plus` shows the sign of a positive number."""

    kind: Kind = "text"
    decimals: int = 3
    plus: bool = True


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
    """Significant: one value per cluster decides the sign, over at least ten runs. Nothing else is bold."""
    hue: Hue = ""
    """Published colour: of a bold value in the direction that the paper calls ideal."""
    faint: bool = False
    few: bool = False
    """Over fewer than ten runs."""
    published: Value = None
    difference: float | None = None
    """This value less the published one, both as printed, in the unit of `value`."""

    @property
    def text(self) -> str:
        """Value in plain text; a name is not cleaned yet."""
        return plain(self.value, self.format)

    def part(self, part: Part) -> Value:
        return {"own": self.value, "published": self.published, "difference": self.difference}[part]

    def beside(self, published: Value) -> Cell:
        """Return the same cell with the published value and the difference of the printed values."""
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
    prose: bool = False
    """Words that may be broken into lines, in LaTeX and HTML."""
    hue: Hue = ""
    """Which values the paper prints in colour: above zero in red, below zero in blue."""

    def cell(self, value: Value, *, n: int = FEW, significant: bool = False) -> Cell:
        """A cell over `n` runs: bold only where it is significant, and never with fewer than ten."""
        number = value if isinstance(value, (int, float)) else math.nan
        few = is_few(n)
        bold = significant and not few
        ideal = bold and (number > 0 if self.hue == "red" else number < 0)
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        return Cell(value, self.format, bold, self.hue if ideal else "", faint=few or missing, few=few)


class ShownColumn(NamedTuple):
    """A column of a rendered table: the values of a column, their published ones, or the differences."""

    place: int
    """Of the column in its table."""
    column: TableColumn
    part: Part = "own"

    @property
    def is_number(self) -> bool:
        return self.part != "own" or self.column.format.kind != "text"

    def title(self, published: str = "published", difference: str = "difference") -> str:
        unit = f" ({self.column.unit})" if self.column.unit else ""
        return {"own": self.column.heading + unit, "published": published, "difference": difference}[self.part]

    def write(self, row: TableRow, name: Callable[[str], str] = str, number: Callable[[str], str] = str) -> str:
        """This column's text of a row, with its names and its numbers escaped by these functions."""
        cell = row.cells[self.place]
        value = cell.part(self.part)
        if self.part == "difference":
            return number(difference_text(cell))
        if not isinstance(value, str):
            return number(plain(value, cell.format))
        return name(value) + (name(f" ({FEW_TEXT})") if cell.few and not self.is_number else "")

    def compared(
        self, row: TableRow, part: Part, name: Callable[[str], str] = str, number: Callable[[str], str] = str
    ) -> str:
        """Text of the published value or the difference of a row; empty where there is none."""
        known = row.cells[self.place].part(part) is not None
        return self._replace(part=part).write(row, name, number) if known else ""


class Basis(NamedTuple):
    """Models, datasets and settings that a row rests on, models and datasets by the paper's names."""

    models: frozenset[str]
    """Zero-shot models."""
    datasets: frozenset[str]
    settings: frozenset[str]
    backbones: frozenset[str] = frozenset()
    """Trained backbones."""
    unlike: frozenset[tuple[str, str]] = frozenset()
    """Settings of the protocol that are not the published ones: estimator, area, variates; each with its value."""


@dataclass(frozen=True)
class TableRow:
    """Cells of one group of runs."""

    cells: tuple[Cell, ...]
    key: str = ""
    """Name of this row in the published table."""
    section: str = ""
    """Rows of one section stand together below its name."""
    total: bool = False
    """Stands apart from the rows above, over all of them."""
    where: tuple[tuple[str, str | int], ...] = ()
    """Which records these are: columns of the ledger and the value that each has in all of them."""
    basis: Basis | None = None
    """What the row was measured on, where that can be compared with the published row."""

    @property
    def compared(self) -> list[Part]:
        """Parts that are shown below its own values."""
        parts: list[Part] = ["published"] if any(cell.published is not None for cell in self.cells) else []
        return [*parts, "difference"] if any(cell.difference is not None for cell in self.cells) else parts

    @classmethod
    def of(cls, columns: Sequence[TableColumn], values: Sequence[Value], key: str = "", section: str = "") -> TableRow:
        """A row of plain values, one for each column."""
        return cls(tuple(column.cell(value) for column, value in zip(columns, values, strict=True)), key, section)


def printed(value: Value, format: Format) -> float | None:
    """Number that a reader sees: rounded as it is written."""
    if value is None or isinstance(value, (str, Span)) or not math.isfinite(value):
        return None
    if format.kind == "share":
        return round(100 * value) / 100
    if format.kind == "times":
        return float(_times(value))
    return round(value, format.decimals) if format.kind == "number" else None


def plain(value: Value, format: Format) -> str:
    """Value in plain text, a dash where there is none."""
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
    """Difference with its sign, shares in points."""
    if cell.difference is None:
        return MISSING
    if cell.format.kind == "share":
        return f"{100 * cell.difference:+.0f} pt"
    return f"{cell.difference:+.{1 if cell.format.kind == 'times' else cell.format.decimals}f}"


@dataclass(frozen=True)
class TableData:
    """Content of a table. Every row has a cell for every column."""

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

    @property
    def compared(self) -> tuple[bool, ...]:
        """For each column, whether published values stand beside it."""
        return tuple(any(row.cells[i].published is not None for row in self.rows) for i in range(len(self.columns)))

    @property
    def shown(self) -> list[ShownColumn]:
        """Columns as people see them, published values and differences beside a column that has them."""
        found = []
        parts: tuple[Part, ...] = ("own", "published", "difference")
        for index, (column, compared) in enumerate(zip(self.columns, self.compared, strict=True)):
            differs = any(row.cells[index].difference is not None for row in self.rows)
            found += [ShownColumn(index, column, part) for part in parts[: 1 + compared * (1 + differs)]]
        return found

    @property
    def stacked(self) -> list[ShownColumn]:
        """Columns of LaTeX and HTML, where published values and differences stand below the own ones: side by side
        they would be too wide for a page. Words on a comparison stand below too.
        """
        return [ShownColumn(at, column) for at, column in enumerate(self.columns) if not column.prose]

    def remark(self, row: TableRow) -> str:
        """Words of a row in the columns of prose."""
        return "; ".join(
            cell.text for cell, column in zip(row.cells, self.columns, strict=True) if column.prose and cell.value
        )

    def sectioned(self) -> Iterator[TableRow | str]:
        """Rows, with the name of each section before its first row."""
        section = ""
        for row in self.rows:
            if row.section and row.section != section:
                yield row.section
            section = row.section
            yield row


def short_name(name: str) -> str:
    """A name as every format but HTML shows it."""
    return text.shorten(clean(name), text.LONGEST)
