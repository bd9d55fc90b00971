"""Embedded sample: five public-domain datasets that need neither a download nor an extra library.

`README.md` beside the files names their sources; `tests/gift_eval/build_sample.py` rebuilds them.
"""

from functools import cache, partial
from importlib.resources import files

import pandas as pd

from .. import frequency
from ..series import Dataset, StoredSeries

# File, frequency, domain and series: a file has a column for the time, then one per series; a missing value is empty.
_FILES = (
    ("co2", "W", "Nature", ("co2",)),
    ("elnino", "M", "Climate", ("temperature",)),
    ("seattle_temps", "H", "Climate", ("temp",)),
    ("seattle_weather", "D", "Climate", ("precipitation", "temp_max", "temp_min", "wind")),
    ("sf_temps", "H", "Climate", ("temp",)),
)


def open_sample() -> list[Dataset]:
    """Return the five datasets of the sample, by name."""
    return [
        Dataset(f"{file}/{step}", step, frequency.season(step), domain, len(columns), partial(_row, file, columns))
        for file, step, domain, columns in _FILES
    ]


def _row(file: str, columns: tuple[str, ...], index: int) -> StoredSeries:
    return StoredSeries(columns[index], read_sample(file)[columns[index]].astype(float).to_numpy())


@cache
def read_sample(file: str) -> pd.DataFrame:
    """Return an embedded file, its cells as text but for the missing ones."""
    with files(__name__).joinpath(f"{file}.csv").open(encoding="utf-8") as opened:
        return pd.read_csv(opened, dtype=str)
