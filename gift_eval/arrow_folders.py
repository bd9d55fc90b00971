"""Folders in GIFT-Eval's official on-disk format, read with Hugging Face `datasets`.

    <root>/<dataset>[/<frequency>]/{data-00000-of-00001.arrow, dataset_info.json, state.json}

The Arrow files are memory-mapped: opening a directory reads schemas and batch headers, reading a series copies that
series alone. A `Dataset` holds a path and no open file, so it can be pickled.

A dataset that cannot be read does not hide the others: it is listed as `Dataset.damaged` with the reason. A reason
names the dataset and the file, never the directory on this machine, because records store it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hrx.errors import HrxError, describe_error, install_command
from hrx.files import MOST_MAPPED, open_regular, read_json, shown_path, user_path
from hrx.records.quantities import Floats

from . import frequency
from .catalogue import STATE_FILE
from .entries import column_of, covariates_of
from .series import MOST_LENGTH, DamagedDataset, Dataset, Role, StoredSeries, UnusableSeries, inexact_integer, naming
from .tables import DEFAULT, EACH, Options

COLUMNS = ("item_id", "start", "freq", "target")
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def open_directory(path: str | Path, options: Options = DEFAULT) -> list[Dataset]:
    """Return every dataset at `path`, by name: a root, one dataset with its frequencies, or one folder of data.
    `options` name columns that are covariates; with the target `target`, its variates are forecast together.

    A name is the path below the root, `us_births/D` or `m4_hourly`; a folder opened directly keeps that name.
    The stray copy of `jena_weather` in the official download is listed under its name on disk.
    """
    root = user_path(path)
    _library()
    if not os.path.isdir(root):
        raise HrxError(f"{root} is not a directory. Give a directory in GIFT-Eval's format.")
    levels = ("", "*/", "*/*/")
    files = {path for level in levels for name in (STATE_FILE, "data-*.arrow") for path in root.glob(level + name)}
    # Hidden folders are not data.
    folders = {file.parent for file in files if not any(part[0] == "." for part in file.parent.relative_to(root).parts)}
    if not folders:
        raise HrxError(
            f"No dataset was found under {root}. Expected <dataset>/state.json or "
            "<dataset>/<frequency>/state.json beside an .arrow file, as in GIFT-Eval's download."
        )
    opened = (_open(folder, _name(folder, root), options) for folder in folders)
    return sorted(opened, key=lambda dataset: dataset.name)


@dataclass(frozen=True)
class _SavedDataset:
    """A folder: row i holds the series i·variates … (i+1)·variates − 1."""

    name: str
    folder: Path
    frequency: str
    variates: int
    multivariate: bool
    roles: tuple[tuple[str, Role], ...] = ()

    @property
    def columns(self) -> list[str]:
        """Columns of the files that are read."""
        return list(dict.fromkeys([*COLUMNS, *(name.partition("[")[0] for name, _ in self.roles)]))

    def row(self, index: int) -> StoredSeries:
        """Return one series, copied out of the mapped file."""
        row, variate = divmod(index, self.variates)
        with naming(self.name):
            table = _load(self.folder)
            if row >= table.num_rows:
                raise DamagedDataset("its files have changed since it was opened: they hold fewer rows than before.")
            return self._series(_validated(table.slice(row, 1), self.columns), 0, variate)

    def stream(self) -> Iterator[StoredSeries]:
        """Yield every series in order; the files are mapped once."""
        with naming(self.name):
            for batch in _load(self.folder).to_batches():
                records = _validated(batch, self.columns)
                for row in range(records.num_rows):
                    for variate in range(self.variates):
                        yield self._series(records, row, variate)

    def sizes(self) -> list[int]:
        """Return the length of every series, from the offsets of the mapped lists."""
        compute = import_module("pyarrow.compute")
        with naming(self.name):
            lists = _load(self.folder).column("target")
            lists = compute.list_flatten(lists) if self.multivariate else lists
            return [size or 0 for size in compute.list_value_length(lists).to_pylist()]

    def _series(self, records: Any, row: int, variate: int) -> StoredSeries:
        item = str(records.column("item_id")[row].as_py())
        values = records.column("target")[row].values
        declared = _frequency(records.column("freq")[row].as_py(), f"row {item!r}")
        if declared != self.frequency:
            raise DamagedDataset(f"row {item!r} has frequency {declared}, the first {self.frequency}.")
        start: object = None
        with suppress(ValueError, OverflowError):  # beyond the years of Python
            start = records.column("start")[row].as_py()
            start = datetime.fromisoformat(start) if isinstance(start, str) else start
        begin = start.replace(tzinfo=None) if isinstance(start, datetime) else None
        if not self.multivariate:
            return self._with_covariates(
                StoredSeries(item, _floats(values), start=begin, column="target"), records, row
            )
        count = 0 if values is None else len(values)
        if count != self.variates:
            raise DamagedDataset(f"row {item!r} has {count} variates, the first {self.variates}.")
        stored = StoredSeries(item, _floats(values[variate].values), str(variate), start=begin)
        return self._with_covariates(stored, records, row)

    def _with_covariates(self, stored: StoredSeries, records: Any, row: int) -> StoredSeries:
        entry = {name: _array(records.column(name)[row]) for name in self.columns[len(COLUMNS) :]}
        with naming(f"row {stored.item!r}"):
            covariates = covariates_of(entry, dict(self.roles), stored.values.size)
        return stored._replace(covariates=covariates)


def _open(folder: Path, name: str, options: Options) -> Dataset:
    if options.target not in ((), EACH, ("target",)):
        raise HrxError(f"The target of {name} is its column 'target', not {options.target[0]!r}. Write target=target.")
    try:
        with naming(name):
            table = _load(folder)
            if table.num_rows == 0:
                raise DamagedDataset("it holds no series: its Arrow files have no rows.")
            first = _validated(table.slice(0, 1), COLUMNS)
            declared = _frequency(first.column("freq")[0].as_py(), "the first row")
            multivariate = _inner(_inner(first.schema.field("target").type)) is not None
            variates = len(first.column("target")[0].values or ()) if multivariate else 1
            if variates == 0:
                raise DamagedDataset("the first row has no variates.")
    except DamagedDataset as error:
        return Dataset.damaged(name, str(error))
    roles, others = options.roles, [column for column in table.column_names if column not in COLUMNS]
    read = {column_of(column, others)[0]: role for column, role in roles.items()}
    notes = [f"{role}: {column}" for column, role in read.items()]
    if left := [column for column in others if column not in read]:
        notes.append(f"not used: {', '.join(left)}; past={left[0]} reads it")
    saved = _SavedDataset(name, folder, declared, variates, multivariate, tuple(roles.items()))
    about = (name, declared, frequency.season(declared), "", variates * table.num_rows, saved.row)
    joint = options.target == ("target",) and variates > 1
    return Dataset(
        *about, variates=variates, note="; ".join(notes), stream=saved.stream, sizes=saved.sizes, joint=joint
    )


def _load(folder: Path) -> Any:
    """Return the rows of a folder as one memory-mapped Arrow table.

    Only state.json and the Arrow files are needed, so `Dataset.from_file` is used instead of `load_from_disk`, which
    also requires dataset_info.json and every field of the state.
    """
    library = _library()
    shards = []
    for path in _shard_paths(folder):
        if not os.path.lexists(path):
            raise DamagedDataset(f"{shown_path(path.name)} is missing, though state.json lists it.")
        try:
            with open_regular(path, MOST_MAPPED) as file:
                file.seek(max(os.fstat(file.fileno()).st_size - len(_END_OF_STREAM), 0))
                # A stream that is cut exactly between two batches would read as a shorter dataset.
                if file.read() != _END_OF_STREAM:
                    raise DamagedDataset(f"{path.name} is cut short or is not an Arrow stream. Download it again.")
                # By its descriptor: the file that was checked, whatever has taken its name meanwhile.
                shard = library.Dataset.from_file(f"/dev/fd/{file.fileno()}")
            shard.data.validate()
        except DamagedDataset:
            raise
        except Exception as error:  # not a regular file, too large, or whatever pyarrow raises for damaged bytes
            reason = str(error) if isinstance(error, HrxError) else describe_error(error)
            shown = shown_path(reason.replace(str(path), path.name))
            raise DamagedDataset(f"{path.name} cannot be read as an Arrow stream: {shown}") from error
        _check_schema(path, shard.data.schema)
        shards.append(shard)
    try:
        return library.concatenate_datasets(shards).data.table
    except Exception as error:
        raise DamagedDataset(f"its Arrow files do not belong together: {describe_error(error)}") from error


def _shard_paths(folder: Path) -> list[Path]:
    """Return the Arrow files that state.json lists, in order; others (`cache-*.arrow`) are not data."""
    try:
        state = read_json(folder / STATE_FILE)
        names = [entry["filename"] for entry in state["_data_files"]]
    except HrxError as error:
        reason = str(error).replace(str(folder / STATE_FILE), STATE_FILE)
        raise DamagedDataset(f"state.json cannot be read: {reason}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedDataset("state.json is not the state of a saved dataset: no list _data_files.") from error
    if not names:
        raise DamagedDataset("state.json lists no data files.")
    for name in names:
        if not isinstance(name, str) or not _is_inside(folder, name):
            raise DamagedDataset(f"state.json names the data file {str(name)[:80]!r}, which is not in its folder.")
    return [folder / name for name in names]


def _is_inside(folder: Path, name: str) -> bool:
    """Whether a data file is in its folder; a link must end there too, or in the hub's cache that holds the folder."""
    if name in ("", ".", "..") or "\0" in name or Path(name).name != name or "\\" in name:
        return False
    try:
        place, home = (folder / name).resolve(), folder.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return False
    snapshots = next((parent for parent in home.parents if parent.name == "snapshots"), None)
    return place.is_relative_to(home) or (snapshots is not None and place.parent == snapshots.parent / "blobs")


def _check_schema(path: Path, schema: Any) -> None:
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise DamagedDataset(
            f"{path.name} has no column {', '.join(missing)}; it has {', '.join(schema.names)}. "
            f"GIFT-Eval's format has {', '.join(COLUMNS)}."
        )
    start, target = schema.field("start").type, schema.field("target").type
    if _inner(start):
        raise DamagedDataset(
            f"{path.name}: column start has type {start}; expected one time per row, that of its first value. "
            "A table with a time for every value can be opened as parquet:FILE."
        )
    values = _inner(_inner(target)) or _inner(target)
    if values is None or not np.issubdtype(values.to_pandas_dtype(), np.number):
        raise DamagedDataset(
            f"{path.name}: column target has type {target}; expected a list of numbers (T,) or of lists (D, T)."
        )


def _validated(records: Any, columns: Sequence[str]) -> Any:
    """Return the needed columns of some rows. Offsets damaged on disk would otherwise point outside the mapped file."""
    chosen = records.select(columns)
    try:
        chosen.validate(full=True)
    except Exception as error:
        raise DamagedDataset(f"its Arrow data are damaged: {describe_error(error)}") from error
    return chosen


def _array(cell: Any) -> Any:
    """Return a covariate of one row: a value, (T,), or (C, T) of a list of equally long lists."""
    values = getattr(cell, "values", None)
    if values is None:
        return cell.as_py()
    inner = _inner(values.type)
    if inner is None:
        return values.to_numpy(zero_copy_only=False)
    flat = values.flatten().to_numpy(zero_copy_only=False)
    if len({len(one) for one in values}) > 1:
        raise DamagedDataset("the rows of a covariate have different lengths.")
    return flat.reshape(len(values), -1)


def _floats(values: Any) -> Floats:
    """(T',) float64 of an Arrow array of numbers; null is NaN, and a missing array has no values."""
    if values is None:
        return np.empty(0)
    if len(values) > MOST_LENGTH:
        raise UnusableSeries(f"it has {len(values)} values; a series has at most {MOST_LENGTH}. Split it.")
    # Without nulls the mapped bytes are converted directly, a thousand times faster for a short series.
    stored = values.to_numpy(zero_copy_only=values.null_count == 0)
    if stored.dtype.kind in "iu" and (wrong := inexact_integer(stored)):
        raise UnusableSeries(wrong)
    return np.array(stored, dtype=np.float64)


def _frequency(text: object, which: str) -> str:
    """Return the name of the frequency that a row declares; the first row's is the dataset's."""
    if text is None:
        raise DamagedDataset(f"{which} has no frequency.")
    try:
        return frequency.parse(str(text)).name
    except HrxError as error:
        raise DamagedDataset(f"{which}: {error}") from error


def _inner(kind: Any) -> Any:
    """Return the type of the values of an Arrow list type; None for any other type."""
    return getattr(kind, "value_type", None)


def _name(folder: Path, root: Path) -> str:
    """Return the path below the root; before a frequency stands always the dataset's own name."""
    below = folder.relative_to(root).parts
    # Not resolved: behind a link, a download cache may have other names.
    parts, needed = Path(os.path.abspath(folder)).parts, 1
    with suppress(HrxError):
        frequency.parse(parts[-1])
        needed = 2
    return shown_path("/".join(below if len(below) >= needed else parts[-needed:]))


def _library() -> Any:
    """`datasets`, imported when a directory is opened: the sample does without it."""
    try:
        return import_module("datasets")
    except ImportError as error:
        raise HrxError(
            "Reading GIFT-Eval's format needs the library datasets, which is not installed. Run: "
            f"{install_command('gift-eval')}"
        ) from error
