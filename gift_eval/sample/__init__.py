"""The embedded sample: five public-domain datasets that need neither a download nor an extra library.

`README.md` beside the files names their sources; `tests/gift_eval/build_sample.py` rebuilds them.
"""

import csv
from functools import cache, partial
from importlib.resources import files

import numpy as np

from hrx.records.quantities import Floats

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
    """The five datasets of the sample, by name."""
    return [
        Dataset(f"{file}/{step}", step, frequency.season(step), domain, len(columns), partial(_row, file, columns))
        for file, step, domain, columns in _FILES
    ]


def _row(file: str, columns: tuple[str, ...], index: int) -> StoredSeries:
    return StoredSeries(columns[index], _column(file, columns[index]))


@cache
def _column(file: str, column: str) -> Floats:
    lines = files(__name__).joinpath(f"{file}.csv").read_text(encoding="utf-8").splitlines()
    return np.array([float(record[column] or "nan") for record in csv.DictReader(lines)])
