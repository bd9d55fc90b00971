"""What people give as data: a source for `--data`, a series by its name, or an object of a notebook.

Objects of other libraries are recognised by the module of their class, so none of these libraries is imported here.
Dates, numbers, layouts and gaps of frames follow the rules of tables in files: `hrx.gift_eval.tables`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hrx.errors import HrxError, unknown
from hrx.files import user_path

from . import catalogue
from .arrow_folders import open_directory
from .covariates import CovariateSeries
from .entries import entry_series, fev_entry
from .fev_tasks import open_fev
from .frequency import TimeGrid
from .sample import open_sample, read_sample, sample_file
from .series import Dataset, StoredSeries, TimedSeries, place
from .table_files import as_table, read_table, table_kind
from .table_series import open_table, table_dataset, table_series
from .tables import DEFAULT, Options, merged, parse_source, split_options
from .tslib import open_tslib

ROOT_VARIABLE = "GIFT_EVAL"
_BENCHMARKS, _TABLES = ("sample", "gift-eval"), ("csv:", "parquet:")
WEATHER = "seattle_weather/D"
"""Dataset of the sample with covariates, which is read only by its name."""
WEATHER_ROLES = Options(target=("temp_max",), past=("precipitation", "temp_min", "wind"))
_MOST_SERIES = 64
"""Series of a dataset that are read where none is named."""
_FRAME = "The frame"
_ACCEPTED = (
    "a pandas DataFrame or Series, an array (series, time), a list, a tensor, a gluonts dataset, a darts TimeSeries, a "
    "datasets.Dataset, a fev window, or the name of a source such as 'sample:co2/W' or 'sales.csv'"
)


def open_source(spec: str = "sample", options: Options = DEFAULT) -> list[Dataset]:
    """Return the datasets of `sample`, of `gift-eval` (`data_root` says where), of `tslib:DIR`, of the tasks of fev
    (`fev:TASKS.yaml`), of a table (`csv:FILE`) or of a directory in GIFT-Eval's format. `options` name the roles of
    columns, like those after a `?`: `sample:seattle/D?target=temp_max&past=wind&unused=ignore`.

    Names after a colon choose among them, in the order given: `sample:co2/W,elnino/M`. A name without a frequency
    means all its frequencies: `gift-eval:us_births`. A directory with the name of a source is written `./sample`.
    """
    if not spec.startswith(_TABLES):
        spec, options = split_options(spec, options)
    kind, colon, rest = spec.partition(":")
    if kind in _OPENERS:
        return _OPENERS[kind](rest if colon else None, options)
    path = user_path(spec)
    if spec and os.path.isdir(path):
        return _open_benchmark(path, options)
    if spec and os.path.exists(path):
        raise HrxError(f"{path} is a file. Give a directory in GIFT-Eval's format, or one of {', '.join(_OPENERS)}.")
    raise HrxError(unknown("source", spec, _OPENERS, "A directory in GIFT-Eval's format is a source too."))


def data_root(given: str | Path | None = None) -> Path:
    """Return the directory of GIFT-Eval's folders, whether or not it exists: the one given, else $GIFT_EVAL, else
    `hrx/gift-eval` in the user's cache directory.
    """
    named = given or os.environ.get(ROOT_VARIABLE)
    if named:
        return user_path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "hrx" / "gift-eval"


def _open_gift_eval(names: str | None, options: Options) -> list[Dataset]:
    root = data_root()
    if not os.path.isdir(root):
        named = os.environ.get(ROOT_VARIABLE)
        if named:
            raise HrxError(f"{ROOT_VARIABLE} is {named!r}, which is not a directory.")
        raise HrxError(
            f"GIFT-Eval's data were not found: {root} does not exist. Download them with `hrx data fetch`, or set the "
            f"environment variable {ROOT_VARIABLE} to the folder that holds them."
        )
    datasets = _open_benchmark(root, DEFAULT)
    here, known = catalogue.by_name(datasets), catalogue.by_name(catalogue.folders())
    for name in map(str.strip, (names or "").split(",")):
        if name in known and name not in here:
            raise HrxError(f"{name} is not under {root}. Download it with `hrx data fetch {name}`, or copy it there.")
    chosen = _choose(datasets, names)
    if not (options.roles or options.target):
        return chosen
    return [one for each in chosen for one in _open_benchmark(root / each.name, options)]


def _open_benchmark(path: Path, options: Options) -> list[Dataset]:
    """Return the datasets of a directory; those in the catalogue get the paper's name of their domain."""
    domains = {(folder.name, folder.frequency): folder.field for folder in catalogue.folders()}
    return [
        replace(each, domain=domains[key], catalogued=True) if (key := (each.name, each.frequency)) in domains else each
        for each in open_directory(path, options)
    ]


def _open_sample(names: str | None, options: Options) -> list[Dataset]:
    """Return the sample; its dataset with covariates only where it is named."""
    found = open_sample()
    if names is not None:
        found.append(_sample_table(WEATHER, WEATHER_ROLES, "Climate"))
    chosen = _choose(found, names)
    if not (options.roles or options.target):
        return chosen
    return [
        # A file with one column has no roles to choose.
        each
        if each.count == 1 and each.name != WEATHER and not options.roles
        else _sample_table(each.name, options, each.domain)
        for each in chosen
    ]


def _sample_table(name: str, options: Options, domain: str) -> Dataset:
    """Return a dataset of the sample whose columns have roles."""
    table = as_table(read_sample(sample_file(name)), name)
    return table_dataset(table, options, name.partition("/")[0], domain)


def _open_tslib(text: str | None, options: Options) -> list[Dataset]:
    if named := [*options.target, *options.roles]:
        raise HrxError(
            f"The sets of tslib: have one column each, so {named[0]!r} names nothing. Open the file as csv:."
        )
    return open_tslib(text)


# An opener gets the text after the colon, or None where there is none.
_OPENERS: dict[str, Callable[[str | None, Options], list[Dataset]]] = {
    "sample": _open_sample,
    "gift-eval": _open_gift_eval,
    "csv": partial(open_table, "csv"),
    "parquet": partial(open_table, "parquet"),
    "tslib": _open_tslib,
    "fev": open_fev,
}


def _choose(datasets: list[Dataset], names: str | None) -> list[Dataset]:
    if names is None:
        return datasets
    asked = [name.strip() for name in names.split(",")]
    if "" in asked:
        example = datasets[0].name
        raise HrxError(f"{names!r} has an empty dataset name. Write names with commas between them: {example}.")
    return catalogue.select(datasets, asked)


def open_series(text: str, options: Options | None = None) -> list[TimedSeries]:
    """Return the series that `FILE[:COLUMN]`, `sample:DATASET[:SERIES]` or `gift-eval:DATASET[:SERIES]` names, in
    their order; all of a table or a dataset, where it names none of them.

    A file is a CSV or a Parquet table, with the options of a table after a `?`.
    """
    source, asked = split_name(text)
    if text.partition(":")[0] in _BENCHMARKS:
        name, options = split_options(text, options or DEFAULT)
        return _series_of_dataset(name, *split_name(name), options)
    path, given = parse_source(source)
    options = merged(options or DEFAULT, given)
    table = read_table(path, "parquet" if text.startswith("parquet:") else table_kind(path), least=1)
    if asked in table.columns:
        options = options._replace(value=(asked,))
    series = list(table_series(table, options, dataset=Path(table.file).stem))
    if not asked or (asked in table.columns and len(series) == 1):
        return series
    return [series[_find([one.series.item for one in series], asked, text)]]


def split_name(text: str) -> tuple[str, str]:
    """Return source and series of a name; the name of a file may contain a colon too."""
    if text.partition(":")[0] in _BENCHMARKS:
        kind, dataset, series = (*text.split(":", 2), "", "")[:3]
        return f"{kind}:{dataset}", series
    for prefix in _TABLES:
        text = text.removeprefix(prefix)
    if os.path.isfile(user_path(text)) or ":" not in text:
        return text, ""
    source, _, series = text.rpartition(":")
    return source, series


def _series_of_dataset(text: str, source: str, asked: str, options: Options) -> list[TimedSeries]:
    """Return the series of a dataset of the sample or of GIFT-Eval, with the dates that it has; targets that are
    forecast together as one.
    """
    dataset, *others = open_source(source, options)
    if others:
        raise HrxError(f"{text} names several datasets. Give one, as in {source.partition(':')[0]}:{dataset.name}.")
    if not asked and dataset.count > _MOST_SERIES:
        first = dataset.read(0).item
        raise HrxError(f"{text} holds {dataset.count} series. Name one, as in {source}:{first}.")
    chosen: Iterable[int] = range(dataset.count)
    if asked:
        chosen = [_find([row.name for row in dataset.rows()], asked, text)]
    if dataset.joint:
        chosen = sorted({index // dataset.variates * dataset.variates for index in chosen})
    if not source.startswith("sample:"):
        return [_dated(dataset, index) for index in chosen]
    roles = WEATHER_ROLES if dataset.name == WEATHER else Options(value=tuple(row.name for row in dataset.rows()))
    roles = options if options.roles or options.target else roles
    table = as_table(read_sample(sample_file(dataset.name)), dataset.name)
    columns = roles._replace(frequency=dataset.frequency, season=dataset.season)
    placed = list(table_series(table, columns))
    # The series of the dataset itself, so that an explanation and an audit read the same one.
    return [
        placed[index // dataset.variates if dataset.joint else index]._replace(series=dataset.read(index))
        for index in chosen
    ]


def _dated(dataset: Dataset, index: int) -> TimedSeries:
    """Return a series of a dataset with the times that its start and the frequency give, and with the other targets
    where they are forecast together.
    """
    series, start = dataset.read(index), dataset.row(index).start
    joint = dataset.read_item(index // dataset.variates) if dataset.joint else None
    if start is None:
        return TimedSeries(series, None, None, joint=joint)
    grid = TimeGrid.of(np.array([start], dtype="datetime64[s]"), series.frequency)
    try:
        times = grid.times((joint or series).dropped, series.dropped + series.values.size)
    except (ValueError, OverflowError):  # beyond the years of pandas
        return TimedSeries(series, None, None, joint=joint)
    return TimedSeries(series, times, grid, joint=joint)


def _find(names: Sequence[str], asked: str, text: str) -> int:
    """Return the position of the requested series."""
    if asked not in names:
        raise HrxError(f"{text}: " + unknown("column", asked, names))
    return list(names).index(asked)


class SeriesInput(NamedTuple):
    """Series of one object."""

    series: tuple[TimedSeries, ...]
    windows: bool
    """Whether they are the rows of one array: windows of one run, not series of their own."""


def read_series(data: Any, options: Options | None = None) -> SeriesInput:
    """Return the named series of `data`, in its order; `options` name columns, frequency and season where they are
    not found.

    | data | series |
    | --- | --- |
    | long frame | one per name in `unique_id`, `item_id` or `id=`; rows may be in any order |
    | wide frame, Series | one per column; dates in the index or in a column, or none at all |
    | array or tensor `(T,)`, `(B, T)` | one, or one per row |
    | list, dict | one per element, of any of these kinds; a list of numbers is one series |
    | gluonts or GIFT-Eval entries | one per entry: `target`, with `start` (and `freq`) or `timestamp` |
    | darts `TimeSeries` | one per component |
    | `datasets.Dataset`, fev window | entries, or the columns of a long frame |
    """
    array = _plain(data)
    series = read_all(array, options or Options())
    if together := [one.joint for one in series if one.joint]:
        listed = ", ".join(map(repr, together[0].names))
        raise HrxError(f"The targets {listed} are forecast together here, where one is read at a time: target='each'.")
    return SeriesInput(series, isinstance(array, np.ndarray) and array.ndim == 2)


def read_covariates(data: Any, options: Options, horizon: int | None = None) -> list[CovariateSeries]:
    """Return the series of `data` with the covariates that `options` name, targets that are forecast together as one.

    `data` is any of the kinds of `read_series`. With a `horizon`, the covariates known ahead must be known for it.
    """
    found = [CovariateSeries.of(one) for one in read_all(data, options)]
    for one in found if horizon is not None else ():
        one.check_ahead(horizon or 0)
    return found


def read_all(data: Any, options: Options) -> tuple[TimedSeries, ...]:
    """Return the series of `data` as `read_series`, several targets that are forecast together as one."""
    series = tuple(_read(data, options, ""))
    if not series:
        raise HrxError(f"The data hold no series. Give {_ACCEPTED}.")
    counts: Counter[str] = Counter()
    apart = []
    for one in series:  # a number after a name that several have
        item = one.series.item
        counts[item] += 1
        if counts[item] > 1:
            item = f"{item} ({counts[item]})"
            one = one._replace(series=replace(one.series, item=item), joint=one.joint and replace(one.joint, item=item))
        apart.append(one)
    return tuple(apart)


def _read(data: Any, options: Options, name: str) -> Iterator[TimedSeries]:
    """Yield the series of an object; `name` is that of its place in a list or dict."""
    data = _plain(data)
    if isinstance(data, TimedSeries):
        yield data
    elif isinstance(data, str | Path):
        yield from open_series(str(data), options)
    elif isinstance(data, pd.Series):
        frame = data.to_frame(str(data.name if data.name is not None else name or "series"))
        yield from table_series(as_table(frame, _FRAME), options)
    elif isinstance(data, pd.DataFrame):
        yield from table_series(as_table(data, _FRAME, asked=(options.date, *options.id)), options, name)
    elif isinstance(data, np.ndarray):
        yield from _from_array(data, options, name)
    elif isinstance(data, Mapping) and any(name in data for name in ("target", *options.value, *options.target)):
        yield from entry_series(data, options, name)
    elif isinstance(data, Mapping):
        for key, one in data.items():
            yield from _read(one, options, str(key))
    elif isinstance(data, Set):
        raise HrxError(f"A {type(data).__name__} has no order, so it cannot be read as a series. Give a list.")
    elif isinstance(data, Iterable):
        items = list(data)
        if items and all(one is None or isinstance(one, Number) for one in items):
            yield from _from_array(np.asarray(items, dtype=np.float64), options, name)
            return
        for number, one in enumerate(items):
            yield from _read(one, options, f"{name}[{number}]" if name else str(number))
    else:
        raise HrxError(f"A {type(data).__name__} cannot be read as series. Give {_ACCEPTED}.")


def _plain(data: Any) -> Any:
    """Return an object of another library as an array, a frame, or an iterable of entries."""
    library = type(data).__module__.partition(".")[0]
    if library == "torch" and hasattr(data, "detach"):
        data = data.detach().cpu()
        return (data.double() if data.is_floating_point() else data).numpy()
    if library == "darts" and hasattr(data, "time_index"):
        if data.is_stochastic:
            advice = "Give one sample or a quantile, as in series.quantile(0.5)."
            raise HrxError(f"The darts TimeSeries is stochastic. {advice}")
        return pd.DataFrame(data.values(), index=data.time_index, columns=list(map(str, data.components)))
    if hasattr(data, "get_input_data"):  # the past of a window of fev, with its columns under the names of entries
        return list(map(partial(fev_entry, data), *data.get_input_data()))
    if hasattr(data, "to_pandas") and library != "pandas":
        # A `datasets.Dataset` with one value per cell is a long frame, one with lists has entries.
        scalars = library != "datasets" or (len(data) and all(np.ndim(value) == 0 for value in data[0].values()))
        return data.to_pandas() if scalars else data
    return data


def _from_array(values: NDArray[Any], options: Options, name: str) -> Iterator[TimedSeries]:
    if values.ndim not in (1, 2) or values.dtype.kind not in "iufO":
        raise HrxError(
            f"An array of shape {values.shape} and type {values.dtype} cannot be read as series. Give numbers of the "
            "shape (time,) or (series, time); windows of several variates (windows, time, channels) go to "
            "hrx.audit.explain."
        )
    if values.ndim == 2 and values.shape[1] == 1 < values.shape[0]:
        raise HrxError(f"An array of shape {values.shape} would be {len(values)} series of one value. Transpose it.")
    if values.ndim == 1:
        stored = [StoredSeries(name or "series", values)]
    else:
        stored = [StoredSeries(name, row, str(number)) for number, row in enumerate(values)]
    if named := [*options.target, *options.roles]:
        raise HrxError(f"An array has no columns, so {named[0]!r} names nothing. Give a DataFrame.")
    for one in stored:
        yield place([one], "data", "", options.season_of(""))
