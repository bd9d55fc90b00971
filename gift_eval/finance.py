"""Finance as in the paper, from a file of daily closing prices that the user supplies: `finance:FILE`.

The trading days of the file are the grid, and nothing is interpolated onto other days: a day without trade is not a
missing value. A company enters only with a complete history over those days, so no series is padded. The same
companies make two datasets, `finance/log_price` and `finance/log_return`; the return of a day is its log price less
the one before, so there is one fewer **[ours]**.

`tables` reads the file. Nothing is downloaded.
"""

import numpy as np
from numpy.typing import NDArray

from hrx.errors import HrxError
from hrx.records.quantities import Floats

from . import frequency
from .series import Dataset, StoredSeries
from .table_cells import read_table
from .tables import Observations, observe, parse_source, shown

FREQUENCY = "B"
DOMAIN = "Finance"


def open_prices(text: str) -> list[Dataset]:
    """The log prices and the log returns of a price file; `text` is what follows `finance:`."""
    path, options = parse_source(text)
    if options.frequency:
        raise HrxError("finance: takes the trading days of the file as its grid; drop the option frequency.")
    table = read_table(path, "parquet" if path.suffix.lower() in (".parquet", ".pq") else "csv")
    # Price downloads have open, high, low, close and volume.
    close = tuple(name for name in table.columns if name.lower() == "close")
    options = options._replace(value=options.value or close)
    observed = observe(table, options)
    names, prices = _prices(observed)
    absent, days = (~np.isfinite(prices)).sum(axis=1), prices.shape[1]
    if absent.all():
        raise HrxError(
            f"{table.file}: no company has a price on every one of its {days} trading days. Give the days that a "
            "company has all of, or fill in the empty prices."
        )
    reason = "it has no price on {} of the {} trading days of the file, and only complete histories enter."
    reasons = [reason.format(count, days) if count else "" for count in absent]
    note = "; ".join([*table.notes, f"frequency {FREQUENCY}, on the {days} trading days of the file"])
    log_prices = np.log(prices)
    datasets = []
    for form, values in (("log_price", log_prices), ("log_return", np.diff(log_prices, axis=1))):
        rows = [StoredSeries(name, row, "", reason) for name, row, reason in zip(names, values, reasons, strict=True)]
        about = (f"finance/{form}", FREQUENCY, options.season or frequency.season(FREQUENCY), DOMAIN)
        datasets.append(Dataset(*about, len(rows), rows.__getitem__, note=note))
    return datasets


def _prices(observed: Observations) -> tuple[tuple[str, ...], Floats]:
    """The companies, and their prices (S, T) on the trading days of the file, NaN where a company has none."""
    layout = observed.layout
    if layout.ids and len(layout.values) > 1:
        raise HrxError(
            f"{observed.table.file}: a company has one closing price, but value names {len(layout.values)} columns. "
            "Say which is the price: value=Close."
        )
    _check_positive(observed)
    days = observed.stamps.astype("datetime64[D]")
    _check_days(observed, days)
    if not layout.ids:
        return layout.values, observed.values.T
    grid, at = np.unique(days, return_inverse=True)
    prices = np.full((len(observed.names), grid.size), np.nan)
    prices[observed.codes, at] = observed.values[:, 0]
    return observed.names, prices


def _check_positive(observed: Observations) -> None:
    """A price of zero or below has no logarithm: name the first of them in the file."""
    wrong = np.argwhere(observed.values <= 0)
    if wrong.size == 0:
        return
    position, column = min(map(tuple, wrong), key=lambda cell: (observed.rows[cell[0]], cell[1]))
    company = f" of {observed.names[observed.codes[position]]!r}" if observed.layout.ids else ""
    raise HrxError(
        f"{observed.table.file}, row {observed.rows[position]}, column {observed.layout.values[column]!r}: the "
        f"price{company} is {observed.values[position, column]:g}, and a price is above zero ({len(wrong)} cells are "
        "not). Correct it, or leave it empty."
    )


def _check_days(observed: Observations, days: NDArray[np.datetime64]) -> None:
    """Daily prices: one a day, on weekdays."""
    file, rows = observed.table.file, observed.rows
    twice = np.flatnonzero((np.diff(observed.codes) == 0) & (np.diff(days) == np.timedelta64(0, "D")))
    if twice.size:
        raise HrxError(
            f"{file}, rows {rows[twice[0]]} and {rows[twice[0] + 1]}: two prices on {days[twice[0]]}. finance: takes "
            "daily closing prices; keep the last of each day."
        )
    weekend = np.flatnonzero(~np.is_busday(days))
    if weekend.size:
        raise HrxError(
            f"{file}, row {rows[weekend[0]]}: {shown(observed.stamps[weekend[0]])} is a Saturday or Sunday "
            f"({weekend.size} rows are), not a trading day. Delete it, or open daily prices as csv:."
        )
