"""Series by name: `FILE[:COLUMN]`, `sample:DATASET[:SERIES]`, `gift-eval:DATASET[:SERIES]`.

A file is a CSV or a Parquet table, with the options of a table after a `?`. A dataset of GIFT-Eval has the dates that
follow from the start of each series and its frequency.
"""

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.files import user_path

from .frames import as_table, from_table
from .series import Dataset
from .sources import open_source
from .table_cells import read_table
from .tables import Options, parse_source
from .timed import TimedSeries, TimeGrid

_BENCHMARKS = ("sample", "gift-eval")
_MOST_SERIES = 64
"""Series of a dataset that are read where none is named."""


def open_series(text: str, options: Options | None = None) -> list[TimedSeries]:
    """The series that `text` names, in their order; all of a table or a dataset, where it names none of them."""
    kind = text.partition(":")[0]
    return _of_dataset(text) if kind in _BENCHMARKS else _of_file(text, options or Options())


def split_name(text: str) -> tuple[str, str]:
    """Source and series of a name; the name of a file may contain a colon too."""
    if text.partition(":")[0] in _BENCHMARKS:
        kind, dataset, series = (*text.split(":", 2), "", "")[:3]
        return f"{kind}:{dataset}", series
    for prefix in ("csv:", "parquet:"):
        text = text.removeprefix(prefix)
    if os.path.isfile(user_path(text)) or ":" not in text:
        return text, ""
    source, _, series = text.rpartition(":")
    return source, series


def _of_dataset(text: str) -> list[TimedSeries]:
    """The series of a dataset of the sample or of GIFT-Eval."""
    source, asked = split_name(text)
    dataset, *others = open_source(source)
    if others:
        raise HrxError(f"{text} names several datasets. Give one, as in {source.partition(':')[0]}:{dataset.name}.")
    if source.startswith("sample:"):
        series = list(_sample(dataset))
        return [series[_choose([one.series.item for one in series], asked, text)]] if asked else series
    if not asked and dataset.count > _MOST_SERIES:
        first = dataset.read(0).item
        raise HrxError(f"{text} holds {dataset.count} series. Name one, as in {source}:{first}.")
    names = [row.name for row in dataset.rows()]
    chosen = [_choose(names, asked, text)] if asked else range(dataset.count)
    return [_timed(dataset, index) for index in chosen]


def _timed(dataset: Dataset, index: int) -> TimedSeries:
    """A series of a dataset with the times that its start and the frequency give."""
    series, start = dataset.read(index), dataset.row(index).start
    if start is None:
        return TimedSeries(series, None, None)
    grid = TimeGrid.of(np.array([start], dtype="datetime64[s]"), dataset.frequency)
    try:
        times = grid.times(series.dropped, series.dropped + series.values.size)
    except (ValueError, OverflowError):  # beyond the years of pandas
        return TimedSeries(series, None, None)
    return TimedSeries(series, times, grid)


def _sample(dataset: Dataset) -> Iterator[TimedSeries]:
    """The series of an embedded dataset, with its dates where it has some."""
    name = dataset.name.partition("/")[0]
    with files("hrx.gift_eval.sample").joinpath(f"{name}.csv").open(encoding="utf-8") as opened:
        frame = pd.read_csv(opened, dtype=str, keep_default_na=False)
    names = tuple(row.name for row in islice(dataset.rows(), dataset.count))
    options = Options(value=names, frequency=dataset.frequency, season=dataset.season)
    table = as_table(frame, options)
    for number, one in enumerate(from_table(table, options, dataset=name)):
        # The series of the dataset itself, so that an explanation and an audit read the same one.
        yield one._replace(series=dataset.read(number))


def _of_file(text: str, options: Options) -> list[TimedSeries]:
    """The series of a table."""
    source, asked = split_name(text)
    path, given = parse_source(source)
    options = options._replace(**{name: value for name, value in given._asdict().items() if value})
    table = read_table(path, table_kind(text, path), least=1)
    if asked in table.columns:
        options = options._replace(value=(asked,))
    series = list(from_table(table, options, dataset=Path(table.file).stem))
    if asked in table.columns and len(series) == 1:
        return series
    return [series[_choose([one.series.item for one in series], asked, text)]] if asked else series


def table_kind(text: str, path: Path) -> str:
    """`csv` or `parquet`: as written before the name, else by its suffix."""
    return "parquet" if text.startswith("parquet:") or path.suffix.lower() in (".parquet", ".pq") else "csv"


def _choose(names: Sequence[str], asked: str, text: str) -> int:
    """The position of the requested series."""
    if asked not in names:
        raise HrxError(f"{text}: " + unknown("column", asked, names))
    return list(names).index(asked)
