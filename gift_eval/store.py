"""A directory in GIFT-Eval's official on-disk format: Hugging Face `save_to_disk`, read with pyarrow alone.

    <root>/<dataset>[/<frequency>]/{data-00000-of-00001.arrow, dataset_info.json, state.json}

The Arrow streams are memory-mapped: opening a directory reads schemas and the layout of the batches, reading
a series touches that series. A `Dataset` keeps a path and no open file, so it can be pickled.

One dataset that cannot be read does not hide the others: it is listed as `Dataset.damaged` with the reason. Reasons
name the dataset and the file in it, never where on this machine they are: they are kept in records.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hrx.errors import HrxError

from . import frequency
from .arrow_files import COLUMNS, Shard, batches_of, check_numbers, floats, is_list, pyarrow, survey
from .catalogue import STATE_FILE
from .series import DamagedDataset, Dataset, Floats, Row

PAST = "past_feat_dynamic_real"


def open_directory(path: str | Path) -> list[Dataset]:
    """Every dataset at `path`, by name: a root, one dataset with its frequencies, or one folder of data.

    A name is the path below the root, `us_births/D` or `m4_hourly`; a folder opened directly keeps that name.
    The stray copy of `jena_weather` that the official download holds is listed under the name it has on disk.
    """
    root = Path(path).expanduser()
    pyarrow()
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
class _Folder:
    """Where the rows of one dataset are; row i holds the series i·variates … (i+1)·variates − 1."""

    name: str
    shards: tuple[Shard, ...]
    frequency: str
    variates: int
    multivariate: bool

    def row(self, index: int) -> Row:
        """One series, copied out of the mapped file."""
        row, variate = divmod(index, self.variates)
        with _damaging(self.name), self._record(row, COLUMNS) as record:
            return self._series(record, variate)

    def rows(self) -> Iterator[Row]:
        """Every series in order, each file mapped and walked through once."""
        with _damaging(self.name):
            for shard in self.shards:
                with batches_of(shard.path) as batches:
                    for batch in batches:
                        records = batch.select(COLUMNS)
                        records.validate(full=True)
                        for row in range(records.num_rows):
                            for variate in range(self.variates):
                                yield self._series(records.slice(row, 1), variate)

    def _series(self, record: Any, variate: int) -> Row:
        item = str(record.column("item_id")[0].as_py())
        self._check(record, item)
        values = record.column("target")[0].values
        if not self.multivariate:
            return Row(item, floats(values))
        return Row(item, floats(values[variate].values), str(variate))

    def past(self, index: int) -> Floats:
        """(F, T'): the past covariates of one row, none where the row has none."""
        with _damaging(self.name), self._record(index, (PAST,)) as record:
            if record.num_columns == 0:
                return np.empty((0, 0))
            check_numbers(record.schema.field(PAST))
            found = record.column(0)[0].values
            if found is None or len(found) == 0:
                return np.empty((0, 0))
            channels = [floats(channel.values) for channel in found] if is_list(found.type) else [floats(found)]
            if len({channel.size for channel in channels}) > 1:
                raise DamagedDataset(f"row {index + 1}: the covariates in {PAST} have different lengths.")
            return np.stack(channels)

    @contextmanager
    def _record(self, row: int, columns: Sequence[str]) -> Iterator[Any]:
        """Those of the columns that there are, of one row, as a record batch, while the file is mapped."""
        for shard in self.shards:
            if row < shard.rows:
                break
            row -= shard.rows
        with batches_of(shard.path) as batches:
            for batch in batches:
                if row < batch.num_rows:
                    record = batch.select([name for name in columns if name in batch.schema.names]).slice(row, 1)
                    # Offsets damaged on disk would otherwise be followed out of the mapped file.
                    record.validate(full=True)
                    yield record
                    return
                row -= batch.num_rows
        raise DamagedDataset(f"{shard.path.name} has changed since it was opened: it holds fewer rows than before.")

    def _check(self, record: Any, item: str) -> None:
        found = _frequency(record, f"row {item!r}")
        if found != self.frequency:
            raise DamagedDataset(f"row {item!r} has frequency {found}, the first {self.frequency}.")
        if self.multivariate:
            values = record.column("target")[0].values
            count = 0 if values is None else len(values)
            if count != self.variates:
                raise DamagedDataset(f"row {item!r} has {count} variates, the first {self.variates}.")


def _open(folder: Path, name: str) -> Dataset:
    try:
        with _damaging(name):
            shards, first = survey(folder)
            found = _frequency(first, "the first row")
            multivariate = is_list(first.schema.field("target").type.value_type)
            variates = _variates(first) if multivariate else 1
    except DamagedDataset as error:
        return Dataset.damaged(name, str(error))
    count = variates * sum(shard.rows for shard in shards)
    source = _Folder(name, shards, found, variates, multivariate)
    return Dataset(
        name,
        found,
        frequency.season(found),
        "",
        count,
        source.row,
        variates=variates,
        past=source.past,
        stream=source.rows,
    )


@contextmanager
def _damaging(name: str) -> Iterator[None]:
    """Put the dataset's name before what is wrong with it."""
    try:
        yield
    except DamagedDataset as error:
        raise DamagedDataset(f"{name}: {error}") from error


def _frequency(record: Any, which: str) -> str:
    """The frequency of one row; the first row's is the dataset's."""
    text = record.column("freq")[0].as_py()
    if text is None:
        raise DamagedDataset(f"{which} has no frequency.")
    try:
        return frequency.parse(str(text)).name
    except HrxError as error:
        raise DamagedDataset(f"{which}: {error}") from error


def _variates(first: Any) -> int:
    """How many variates the first row has, which every other row must have too."""
    variates = first.column("target")[0].values
    if variates is None or len(variates) == 0:
        raise DamagedDataset("the first row has no variates.")
    return len(variates)


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
    return (folder / STATE_FILE).is_file() or any(folder.glob("data-*.arrow"))


def _name(folder: Path, root: Path) -> str:
    """The path below the root, with the dataset's own name before a frequency in any case."""
    below = folder.relative_to(root).parts
    # Not resolved: behind a link, a download cache may have other names.
    parts = Path(os.path.abspath(folder)).parts
    wanted = 2 if frequency.is_frequency(parts[-1]) else 1
    return readable("/".join(below if len(below) >= wanted else parts[-wanted:]))


def readable(name: str) -> str:
    """A file's name as text that can be printed and stored: bytes that are no UTF-8 become `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
