"""Finance as the paper builds it, from a file of daily closing prices that the user has: `finance:FILE`.

The trading days of the file are the grid, and nothing is interpolated onto other days: a day without trade is an
absence of observation, no missing value. A company enters only if its history is complete over those days, so that
no series is padded. The same companies make two datasets, `finance/log_price` and `finance/log_return`; the return
of a day is its log price less the one before, so there is one fewer **[ours]**.

How the file is read is left to `tables`. Nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hrx.errors import HrxError

from .series import Dataset, Floats
from .table_files import Table, read_csv, read_parquet
from .table_layout import lay_out
from .table_options import Options, parse_source
from .tables import Observations, Placed, arrange, dataset, shown

FREQUENCY = "B"
DOMAIN = "Finance"


class Prices(NamedTuple):
    """`values` (S, T) over the trading days of the file, NaN where a company has none, and the companies' `names`."""

    values: Floats
    names: tuple[str, ...]


def open_prices(text: str) -> list[Dataset]:
    """The log prices and the log returns of a price file; `text` is what follows `finance:`."""
    path, options = parse_source(text)
    if options.frequency:
        raise HrxError("finance: takes the trading days of the file as its grid; leave the option frequency out.")
    table = read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else read_csv(path)
    options = _closing(table, options)
    found = arrange(table, lay_out(table, options), options)
    prices = _prices(found)
    absent = (~np.isfinite(prices.values)).sum(axis=1)
    days = prices.values.shape[1]
    if absent.all():
        raise HrxError(
            f"{table.file}: no company has a price on every one of its {days} trading days. Give the days that a "
            "company has all of, or fill in the empty prices."
        )
    notes = [*found.notes, f"frequency {FREQUENCY}, on the {days} trading days of the file"]
    price = np.log(prices.values)
    return [
        dataset(f"finance/{form}", FREQUENCY, DOMAIN, _placed(prices.names, values, absent, days), ("",), notes)
        for form, values in (("log_price", price), ("log_return", np.diff(price, axis=1)))
    ]


def _closing(table: Table, options: Options) -> Options:
    """Of the columns that price downloads have (open, high, low, close, volume), the closing price."""
    close = [name for name in table.columns if name.lower() == "close"]
    return replace(options, value=tuple(close)) if close and not options.value else options


def _prices(found: Observations) -> Prices:
    """Every company's prices on the trading days of the file."""
    if found.layout.ids and len(found.layout.values) > 1:
        raise HrxError(
            f"{found.table.file}: a company has one closing price, but value names {len(found.layout.values)} columns. "
            "Say which is the price: value=Close."
        )
    _check_positive(found)
    days = found.stamps.astype("datetime64[D]")
    _check_days(found, days)
    grid, at = np.unique(days, return_inverse=True)
    if not found.layout.ids:
        return Prices(found.values.T, found.layout.values)
    values = np.full((len(found.names), grid.size), np.nan)
    values[found.codes, at] = found.values[:, 0]
    return Prices(values, found.names)


def _check_positive(found: Observations) -> None:
    """A price of zero or below has no logarithm: name the first of them in the file."""
    wrong = np.argwhere(found.values <= 0)
    if wrong.size == 0:
        return
    position, column = min(map(tuple, wrong), key=lambda cell: (found.rows[cell[0]], cell[1]))
    of = f" of {found.names[found.codes[position]]!r}" if found.layout.ids else ""
    raise HrxError(
        f"{found.table.file}, row {found.rows[position]}, column {found.layout.values[column]!r}: the price{of} is "
        f"{found.values[position, column]:g}, and a price is above zero ({len(wrong)} cells are not). Correct it, or "
        "leave it empty."
    )


def _check_days(found: Observations, days: np.ndarray) -> None:
    """Daily prices: one a day, on days of the week on which exchanges trade."""
    twice = np.flatnonzero((np.diff(found.codes) == 0) & (np.diff(days) == np.timedelta64(0, "D")))
    if twice.size:
        first, second = found.rows[twice[0]], found.rows[twice[0] + 1]
        raise HrxError(
            f"{found.table.file}, rows {first} and {second}: two prices on {days[twice[0]]}. finance: takes daily "
            "closing prices; keep the last of each day."
        )
    weekend = np.flatnonzero(~np.is_busday(days))
    if weekend.size:
        raise HrxError(
            f"{found.table.file}, row {found.rows[weekend[0]]}: {shown(found.stamps[weekend[0]])} is a Saturday or "
            f"Sunday ({weekend.size} rows are), which is no trading day. Delete it, or open daily prices as csv:."
        )


def _placed(names: tuple[str, ...], values: Floats, absent: np.ndarray, days: int) -> tuple[Placed, ...]:
    """The companies' series; one without a complete history says so when it is read."""
    return tuple(
        Placed(
            name,
            series[None],
            reason=f"it has no price on {missing} of the {days} trading days of the file, and only complete histories "
            "enter."
            if missing
            else "",
        )
        for name, series, missing in zip(names, values, absent, strict=True)
    )
