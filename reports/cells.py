"""Values of a table as people read them: cells with their format and published value, columns, and rows.

Signs, decimals and percentages follow the published tables. `hrx.reports.table` puts rows into a table and writes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hrx.reports.statistics import FEW, FEW_TEXT, is_few

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
    """Significant: the interval of the row's gain excludes zero, over at least ten runs. Nothing else is bold."""
    hue: Hue = ""
    """The paper's colour: of a bold value in the direction that the paper calls ideal."""
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
    prose: bool = False
    """Words that may be broken into lines, in LaTeX and HTML."""
    hue: Hue = ""
    """Which values the paper prints in colour: above zero in red, below zero in blue."""

    def cell(self, value: Value, *, n: int = FEW, significant: bool = False) -> Cell:
        """A cell over `n` runs: bold only where it is significant, and never with fewer than ten."""
        number = value if isinstance(value, (int, float)) else math.nan
        ideal = number > 0 if self.hue == "red" else number < 0 if self.hue == "blue" else False
        few = is_few(n)
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        bold = significant and not few
        return Cell(value, self.format, bold, self.hue if bold and ideal else "", faint=few or missing, few=few)


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
        unit = f" ({self.column.unit})" if self.column.unit else ""
        return {"own": self.column.heading + unit, "published": published, "difference": difference}[self.part]

    def value(self, cell: Cell) -> Value:
        return {"own": cell.value, "published": cell.published, "difference": cell.difference}[self.part]

    def write(self, row: TableRow, name: Callable[[str], str], number: Callable[[str], str] = str) -> str:
        """This column's text of a row, with its names and its numbers escaped by these functions."""
        cell = row.cells[self.place]
        if self.part == "difference":
            return number(difference_text(cell))
        value = self.value(cell)
        if not isinstance(value, str):
            return number(plain(value, cell.format))
        return name(value) + (name(f" ({FEW_TEXT})") if cell.few and not self.is_number else "")


class Basis(NamedTuple):
    """The models, datasets and settings that a row rests on, models and datasets by the paper's names."""

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
    basis: Basis | None = None
    """What the row was measured on, where that can be compared with the published row."""

    @classmethod
    def of(cls, columns: Sequence[TableColumn], values: Sequence[Value], key: str = "", section: str = "") -> TableRow:
        """A row of plain values, one for each column."""
        return cls(tuple(column.cell(value) for column, value in zip(columns, values, strict=True)), key, section)


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
