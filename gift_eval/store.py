"""A directory in GIFT-Eval's official on-disk format: Hugging Face `save_to_disk`, read with pyarrow alone.

    <root>/<dataset>[/<frequency>]/{data-00000-of-00001.arrow, dataset_info.json, state.json}

The Arrow streams are memory-mapped: opening a directory reads schemas and the layout of the batches, reading
a series touches that series. A `Dataset` keeps a path and no open file, so it can be pickled.

One dataset that cannot be read does not hide the others: it is listed as `Dataset.damaged` with the reason.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hrx.errors import HrxError

from . import frequency
from .series import DamagedDataset, Dataset, Row

COLUMNS = ("item_id", "start", "freq", "target")
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def open_directory(path: str | Path) -> list[Dataset]:
    """Every dataset at `path`, by name: a root, one dataset with its frequencies, or one folder of data.

    A name is the path below the root, `us_births/D` or `m4_hourly`; a folder opened directly keeps that name.
    The stray copy of `jena_weather` that the official download holds is listed under the name it has on disk.
    """
    root = Path(path).expanduser()
    _pyarrow()
    if not root.is_dir():
        raise HrxError(f"{root} is not a directory. Give a directory in GIFT-Eval's format.")
    folders = [folder for folder in _candidates(root) if _is_dataset(folder)]
    if not folders:
        raise HrxError(
            f"No dataset was found under {root}. Expected <dataset>/state.json or "
            "<dataset>/<frequency>/state.json beside an .arrow file, as GIFT-Eval's download has them."
        )
    return sorted((_open(folder, _name(folder, root)) for folder in folders), key=lambda dataset: dataset.name)


@dataclass(frozen=True)
class _Shard:
    path: Path
    rows: int


@dataclass(frozen=True)
class _Folder:
    """Where the rows of one dataset are; row i holds the series i·variates … (i+1)·variates − 1."""

    shards: tuple[_Shard, ...]
    variates: int
    multivariate: bool

    def row(self, index: int) -> Row:
        row, variate = divmod(index, self.variates)
        for shard in self.shards:
            if row < shard.rows:
                return self._row_of(shard.path, row, variate)
            row -= shard.rows
        raise IndexError(index)

    def _row_of(self, path: Path, row: int, variate: int) -> Row:
        with _batches(path) as batches:
            for batch in batches:
                if row < batch.num_rows:
                    return self._variate(path, batch.select(COLUMNS).slice(row, 1), variate)
                row -= batch.num_rows
        raise DamagedDataset(f"{path} has changed since it was opened: it holds fewer rows than before.")

    def _variate(self, path: Path, batch: Any, variate: int) -> Row:
        # Offsets damaged on disk would otherwise be followed out of the mapped file.
        batch.validate(full=True)
        item = str(batch.column("item_id")[0].as_py())
        values = batch.column("target")[0].values
        if self.multivariate:
            found = 0 if values is None else len(values)
            if found != self.variates:
                raise DamagedDataset(f"{path}: row {item!r} has {found} variates, the first {self.variates}.")
            item, values = f"{item}[{variate}]", values[variate].values
        if values is None:
            return Row(item, np.empty(0))
        return Row(item, np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64))


def _open(folder: Path, name: str) -> Dataset:
    try:
        shards, first = _survey(folder)
        found = _frequency(folder, first)
        multivariate = _is_list(first.schema.field("target").type.value_type)
        variates = _variates(folder, first) if multivariate else 1
    except DamagedDataset as error:
        return Dataset.damaged(name, str(error))
    count = variates * sum(shard.rows for shard in shards)
    source = _Folder(shards, variates, multivariate)
    return Dataset(name, found, frequency.season(found), "", count, source.row)


def _frequency(folder: Path, first: Any) -> str:
    """The first row's frequency, which is the dataset's."""
    text = first.column("freq")[0].as_py()
    if text is None:
        raise DamagedDataset(f"{folder}: the first row has no frequency.")
    try:
        return frequency.parse(str(text)).name
    except HrxError as error:
        raise DamagedDataset(f"{folder}: {error}") from error


def _variates(folder: Path, first: Any) -> int:
    """How many variates the first row has, which every other row must have too."""
    variates = first.column("target")[0].values
    if variates is None or len(variates) == 0:
        raise DamagedDataset(f"{folder}: the first row has no variates.")
    return len(variates)


def _survey(folder: Path) -> tuple[tuple[_Shard, ...], Any]:
    """The shards of a folder, and its first row as a record batch."""
    shards, first = [], None
    for path in _shard_paths(folder):
        rows = 0
        with _batches(path) as batches:
            for batch in batches:
                batch.validate()
                rows += batch.num_rows
                if first is None and batch.num_rows:
                    first = batch.slice(0, 1)
                    first.validate(full=True)
        shards.append(_Shard(path, rows))
    if first is None:
        raise DamagedDataset(f"{folder} holds no series: its Arrow files have no rows.")
    return tuple(shards), first


def _shard_paths(folder: Path) -> list[Path]:
    """The Arrow files that state.json lists, in order; others (`cache-*.arrow`) are not data."""
    state = folder / "state.json"
    try:
        names = [entry["filename"] for entry in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
        if not names:
            raise DamagedDataset(f"{state} lists no data files.")
        return [folder / name for name in names]
    except OSError as error:
        raise DamagedDataset(f"{state} cannot be read: {error.strerror}.") from error
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedDataset(f"{state} is not the state of a saved dataset: no list _data_files.") from error


@contextmanager
def _batches(path: Path) -> Iterator[Iterator[Any]]:
    """The record batches of one memory-mapped Arrow stream; whatever goes wrong with it names the file."""
    arrow = _pyarrow()
    try:
        with arrow.memory_map(str(path)) as mapped:
            mapped.seek(max(mapped.size() - len(_END_OF_STREAM), 0))
            # A stream cut exactly between two batches would read as a shorter dataset.
            if mapped.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
                raise DamagedDataset(f"{path} is cut short or is no Arrow stream. Download it again.")
            mapped.seek(0)
            reader = arrow.ipc.open_stream(mapped)
            _check_schema(path, reader.schema)
            yield iter(reader)
    except FileNotFoundError as error:
        raise DamagedDataset(f"{path} is missing, though state.json lists it.") from error
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        raise DamagedDataset(f"{path} cannot be read as an Arrow stream: {error}") from error


def _check_schema(path: Path, schema: Any) -> None:
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise DamagedDataset(
            f"{path} has no column {', '.join(missing)}; it has {', '.join(schema.names)}. "
            f"GIFT-Eval's format has {', '.join(COLUMNS)}."
        )
    target = schema.field("target").type
    inner = target.value_type if _is_list(target) else None
    values = inner.value_type if inner is not None and _is_list(inner) else inner
    types = _pyarrow().types
    if values is None or not (types.is_floating(values) or types.is_integer(values)):
        raise DamagedDataset(
            f"{path}: column target has type {target}; expected a list of numbers (T,) or of lists (D, T)."
        )


def _is_list(kind: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _candidates(root: Path) -> Iterator[Path]:
    """The root and two levels below it, which is as deep as the format goes; hidden folders are not data."""
    yield root
    for dataset in _folders(root):
        yield dataset
        yield from _folders(dataset)


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        raise HrxError(f"{path} cannot be listed: {error.strerror}.") from error


def _is_dataset(folder: Path) -> bool:
    return (folder / "state.json").is_file() or any(folder.glob("data-*.arrow"))


def _name(folder: Path, root: Path) -> str:
    """The path below the root, with the dataset's own name before a frequency in any case."""
    below = folder.relative_to(root).parts
    # Not resolved: behind a link, a download cache may have other names.
    parts = Path(os.path.abspath(folder)).parts
    wanted = 2 if frequency.is_frequency(parts[-1]) else 1
    return "/".join(below if len(below) >= wanted else parts[-wanted:])


def _pyarrow() -> Any:
    """pyarrow, imported when a file is opened: the sample needs none of it."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise HrxError(
            "Reading GIFT-Eval's format needs pyarrow, which is not installed. pip install 'hrx[gift-eval]'"
        ) from error
    return pyarrow
