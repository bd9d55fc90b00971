"""What a table is made of: formats, columns, cells and rows, and how a value looks in plain text and in LaTeX.

Signs, decimals and percentages follow the published tables. Escaping names is left to `hrx.reports.escape`, putting
cells together to `hrx.reports.table`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hrx.reports.statistics import FEW, is_few

MISSING = "-"
_TINY_P = 1e-12


class Span(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


Value = str | int | float | Span | None
Kind = Literal["text", "count", "number", "share", "span", "p", "times"]
Hue = Literal["", "red", "blue"]


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
    """One value, how it is written, and what stands beside it."""

    value: Value = None
    format: Format = TEXT
    bold: bool = False
    """In the direction that the paper calls ideal, over at least ten runs."""
    faint: bool = False
    few: bool = False
    """Rests on fewer than ten runs."""
    published: Value = None
    difference: float | None = None
    """From the published value to this one as printed, in the unit of `value`."""

    @property
    def text(self) -> str:
        """The value in plain text; a text is as it came and must be cleaned before it is shown."""
        return plain(self.value, self.format)

    def beside(self, published: Value) -> Cell:
        """The same cell with the published value, and the difference of what both print."""
        here, there = printed(self.value, self.format), printed(published, self.format)
        difference = None if here is None or there is None else round(here - there, 10)
        return replace(self, published=published, difference=difference)


@dataclass(frozen=True)
class Column:
    """A column by the name that files use, and the heading that people read."""

    name: str
    heading: str
    format: Format = TEXT
    unit: str = ""
    hue: Hue = ""
    """What the paper prints in red (own and margin above zero) or blue (shuffled below zero)."""

    @property
    def differs(self) -> bool:
        """Whether the difference of two of its values says something."""
        return self.format.kind in ("number", "share", "times")

    def cell(self, value: Value, *, n: int = FEW) -> Cell:
        """A cell over `n` runs: bold only in the ideal direction, and never with fewer than ten."""
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
        ideal = number > 0 if self.hue == "red" else number < 0 if self.hue == "blue" else False
        few = is_few(n)
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        return Cell(value, self.format, bold=ideal and not few, faint=few or missing, few=few)


@dataclass(frozen=True)
class Row:
    """The cells of one group of runs."""

    cells: tuple[Cell, ...]
    key: str = ""
    """What the published table calls this row."""
    section: str = ""
    """Rows of one section stand together below its name."""
    total: bool = False
    """Stands apart from the rows above, over all of them."""
    where: tuple[tuple[str, str | int], ...] = ()
    """Which records these are: columns of the ledger and the value that each has in all of them."""


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
    """Two digits at least: `3.1`, `98`, `592`."""
    return f"{value:.1f}" if round(value, 1) < 10 else f"{value:.0f}"


def difference_text(cell: Cell) -> str:
    """The difference with its sign, shares in points."""
    if cell.difference is None:
        return MISSING
    if cell.format.kind == "share":
        return f"{100 * cell.difference:+.0f} pt"
    return f"{cell.difference:+.{1 if cell.format.kind == 'times' else cell.format.decimals}f}"


def latex(value: Value, format: Format) -> str:
    """A number in LaTeX, as the paper sets it. Texts are not for here."""
    text = plain(value, format)
    if text == MISSING or isinstance(value, str):
        return "--"
    if format.kind == "count":
        return text.replace(",", "{,}")
    if format.kind == "share":
        return text.replace("%", r"\%")
    if format.kind == "p" and text.startswith("<"):
        return "$<10^{-12}$"
    return "$" + text.replace("×", r"\times") + "$"
