"""The Arrow streams of one saved dataset: which files there are, their record batches, and whether they hold series.

They are memory-mapped, and whatever is wrong with one is a `DamagedDataset` that names the file and not its place on
this machine. What the rows mean is left to `store`.
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

from .catalogue import STATE_FILE
from .series import DamagedDataset, Floats

COLUMNS = ("item_id", "start", "freq", "target")
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class Shard:
    """One of the files, and how many rows it had when the folder was opened."""

    path: Path
    rows: int


def survey(folder: Path) -> tuple[tuple[Shard, ...], Any]:
    """The shards of a folder, and its first row as a record batch."""
    shards, first = [], None
    for path in _shard_paths(folder):
        rows = 0
        with batches_of(path) as batches:
            for batch in batches:
                batch.validate()
                rows += batch.num_rows
                if first is None and batch.num_rows:
                    first = batch.slice(0, 1)
                    first.validate(full=True)
        shards.append(Shard(path, rows))
    if first is None:
        raise DamagedDataset("it holds no series: its Arrow files have no rows.")
    return tuple(shards), first


def _shard_paths(folder: Path) -> list[Path]:
    """The Arrow files that state.json lists, in order; others (`cache-*.arrow`) are not data."""
    state = folder / STATE_FILE
    try:
        names = [entry["filename"] for entry in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
        if not names:
            raise DamagedDataset("state.json lists no data files.")
        return [folder / name for name in names]
    except OSError as error:
        raise DamagedDataset(f"state.json cannot be read: {error.strerror}.") from error
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedDataset("state.json is not the state of a saved dataset: no list _data_files.") from error


@contextmanager
def batches_of(path: Path) -> Iterator[Iterator[Any]]:
    """The record batches of one memory-mapped Arrow stream; whatever goes wrong with it names the file."""
    arrow = pyarrow()
    try:
        with arrow.memory_map(os.fsencode(path)) as mapped:
            mapped.seek(max(mapped.size() - len(_END_OF_STREAM), 0))
            # A stream cut exactly between two batches would read as a shorter dataset.
            if mapped.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
                raise DamagedDataset(f"{path.name} is cut short or is no Arrow stream. Download it again.")
            mapped.seek(0)
            reader = arrow.ipc.open_stream(mapped)
            _check_schema(path, reader.schema)
            yield iter(reader)
    except FileNotFoundError as error:
        raise DamagedDataset(f"{path.name} is missing, though state.json lists it.") from error
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        reason = str(error).replace(str(path), path.name)
        raise DamagedDataset(f"{path.name} cannot be read as an Arrow stream: {reason}") from error


def _check_schema(path: Path, schema: Any) -> None:
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise DamagedDataset(
            f"{path.name} has no column {', '.join(missing)}; it has {', '.join(schema.names)}. "
            f"GIFT-Eval's format has {', '.join(COLUMNS)}."
        )
    _check_start(path, schema.field("start").type)
    check_numbers(schema.field("target"), f"{path.name}: ")


def check_numbers(field: Any, where: str = "") -> None:
    """A list of numbers, or a list of such lists."""
    inner = field.type.value_type if is_list(field.type) else None
    values = inner.value_type if inner is not None and is_list(inner) else inner
    types = pyarrow().types
    if values is None or not (types.is_floating(values) or types.is_integer(values)):
        raise DamagedDataset(
            f"{where}column {field.name} has type {field.type}; expected a list of numbers (T,) or of lists (D, T)."
        )


def _check_start(path: Path, kind: Any) -> None:
    """One time per row: the values follow it step by step, so a row that lists times is another format."""
    if is_list(kind):
        raise DamagedDataset(
            f"{path.name}: column start has type {kind}; expected one time per row, that of its first value. "
            "A table with a time for every value can be opened as parquet:FILE."
        )


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is one of lists, however they are stored."""
    types = pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def floats(values: Any) -> Floats:
    """(T',) float64 of an Arrow array of numbers; a null is NaN, and no array is no values."""
    if values is None:
        return np.empty(0)
    # Without nulls the mapped bytes are read as they are, which is a thousand times quicker for a short series.
    return np.array(values.to_numpy(zero_copy_only=values.null_count == 0), dtype=np.float64)


def pyarrow() -> Any:
    """pyarrow, imported when a file is opened: the sample needs none of it."""
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise HrxError(
            "Reading GIFT-Eval's format needs pyarrow, which is not installed. pip install 'hrx[gift-eval]'"
        ) from error
    return pyarrow
