"""The embedded sample: five public-domain datasets that need neither a download nor an extra library.

`README.md` beside the files names their sources; `tests/gift_eval/build_sample.py` rebuilds them.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from .. import frequency
from ..series import Dataset, Floats, StoredSeries


@dataclass(frozen=True)
class _SampleFile:
    """One file: a column for the time, then one column per series; a missing value is an empty cell."""

    file: str
    frequency: str
    domain: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.file}/{self.frequency}"

    def row(self, index: int) -> StoredSeries:
        column = self.columns[index]
        return StoredSeries(column, _column(self.file, column))


_FILES = (
    _SampleFile("co2", "W", "Nature", ("co2",)),
    _SampleFile("elnino", "M", "Climate", ("temperature",)),
    _SampleFile("seattle_temps", "H", "Climate", ("temp",)),
    _SampleFile("seattle_weather", "D", "Climate", ("precipitation", "temp_max", "temp_min", "wind")),
    _SampleFile("sf_temps", "H", "Climate", ("temp",)),
)


def open_sample() -> list[Dataset]:
    """The five datasets of the sample, by name."""
    return [
        Dataset(each.name, each.frequency, frequency.season(each.frequency), each.domain, len(each.columns), each.row)
        for each in _FILES
    ]


@cache
def _column(file: str, column: str) -> Floats:
    lines = files(__name__).joinpath(f"{file}.csv").read_text(encoding="utf-8").splitlines()
    cells = [record[column] for record in csv.DictReader(lines)]
    return np.array([float(cell) if cell else np.nan for cell in cells])
