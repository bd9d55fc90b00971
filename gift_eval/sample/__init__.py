"""Embedded sample: public-domain series of eight sources that need neither a download nor an extra library.

`README.md` beside the files names their sources; `tests/gift_eval/build_sample.py` rebuilds them.
"""

from functools import cache, partial
from importlib.resources import files

import pandas as pd

from .. import frequency
from ..series import Dataset, StoredSeries

# Source, frequency, domain, file and series: a file has a column for the time, then one per series; a missing value is
# empty.
_FILES = (
    ("co2", "W", "Nature", "co2", ("co2",)),
    ("core_cpi", "M", "Econ/Fin", "core_cpi", ("index",)),
    ("elnino", "M", "Climate", "elnino", ("temperature",)),
    ("irradiance", "H", "Energy", "irradiance", ("ghi",)),
    ("seattle", "D", "Climate", "seattle_weather", ("precipitation", "temp_max", "temp_min", "wind")),
    ("seattle", "H", "Climate", "seattle_temps", ("temp",)),
    ("sf_temps", "H", "Climate", "sf_temps", ("temp",)),
    ("sunspots", "M", "Nature", "sunspots", ("sunspots",)),
    ("wti", "B", "Econ/Fin", "wti", ("price",)),
)


def open_sample() -> list[Dataset]:
    """Return the datasets of the sample, by name."""
    return [
        Dataset(f"{source}/{step}", step, frequency.season(step), domain, len(columns), partial(_row, file, columns))
        for source, step, domain, file, columns in _FILES
    ]


def sample_file(name: str) -> str:
    """Return the file of a dataset, by the dataset's name."""
    return next(file for source, step, _, file, _ in _FILES if name in (f"{source}/{step}", f"{file}/{step}"))


def _row(file: str, columns: tuple[str, ...], index: int) -> StoredSeries:
    return StoredSeries(columns[index], read_sample(file)[columns[index]].astype(float).to_numpy())


@cache
def read_sample(file: str) -> pd.DataFrame:
    """Return an embedded file, its cells as text but for the missing ones."""
    with files(__name__).joinpath(f"{file}.csv").open(encoding="utf-8") as opened:
        return pd.read_csv(opened, dtype=str)
