"""Tasks of fev: `fev:TASKS.yaml[:NAME,…]` reads the datasets of a benchmark, local or from the hub.

A task names its targets, its past and known columns and its windows; an audit takes these windows alone, as many as are
asked for, at even intervals. The roles of a task hold unless others are given. Everything before its first window
standardises a series.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset

from hrx.errors import HrxError, describe_error, install_command, unknown
from hrx.files import user_path
from hrx.records.quantities import Floats

from . import frequency
from .entries import column_of, covariates_of
from .series import DamagedDataset, Dataset, OfficialSplit, Role, StoredSeries, UnusableSeries, naming
from .tables import EACH, Options


def open_fev(text: str | None, options: Options) -> list[Dataset]:
    """Return a dataset per task of `FILE`, or of those named in `FILE:NAME,…`; `text` is what follows `fev:`."""
    if not text:
        raise HrxError("fev: needs a file of tasks. Write fev:TASKS.yaml or fev:TASKS.yaml:NAME.")
    path, names = text, ""
    if not os.path.isfile(user_path(text)) and ":" in text:
        path, _, names = text.rpartition(":")
    if not os.path.isfile(user_path(path)):
        raise HrxError(f"{path} does not exist. Give a YAML file with a list of tasks, as fev writes it.")
    try:
        benchmark = import_module("fev").Benchmark.from_yaml(str(user_path(path)))
    except ImportError as error:
        raise HrxError(
            f"Tasks of fev need its library, which is not installed. Run: {install_command('fev')}"
        ) from error
    except Exception as error:  # whatever yaml, pydantic or fev raise
        raise HrxError(f"{path} does not hold tasks of fev: {describe_error(error)}. Correct the file.") from error
    tasks: dict[str, Any] = {}
    for task in benchmark.tasks:
        name = Path(task.task_name).name
        tasks[name if name not in tasks else f"{name}-{len(tasks) + 1}"] = task
    chosen = [name.strip() for name in names.split(",")] if names else list(tasks)
    for name in chosen:
        if name not in tasks:
            raise HrxError(unknown("task", name, tasks))
    return [_open(name, tasks[name], options) for name in dict.fromkeys(chosen)]


@dataclass(frozen=True)
class _Task:
    """Series of a task: row i holds the series i·K … (i+1)·K − 1 of its K targets."""

    task: Any
    rows: Sequence[Mapping[str, Any]]
    targets: tuple[str, ...]
    roles: Mapping[str, Role]
    labels: Mapping[str, tuple[str, ...]]

    def row(self, index: int) -> StoredSeries:
        """Return one series with the covariates and the windows of its task."""
        number, which = divmod(index, len(self.targets))
        entry, target = self.rows[number], self.targets[which]
        values: Floats = np.asarray(entry[target], dtype=np.float64)
        times = pd.DatetimeIndex(np.asarray(entry[self.task.timestamp_column]))
        item, start = str(entry[self.task.id_column]), times[0].to_pydatetime() if len(times) else None
        stored = StoredSeries(item, values, target if len(self.targets) > 1 else "", start=start, column=target)
        split = _split(self.task, times)
        if split is None:
            return stored._replace(reason="it is too short for the windows of its task.")
        with naming(f"series {item}"):
            covariates = covariates_of(entry, self.roles, values.size, self.labels)
        return stored._replace(covariates=covariates, official=split)


def _split(task: Any, times: pd.DatetimeIndex) -> OfficialSplit | None:
    """Return the windows of a task in one series, None where it has none."""
    first, step, length = task.initial_cutoff, task.window_step_size, len(times)
    if isinstance(step, str):
        moments = [pd.Timestamp(first) + number * to_offset(step) for number in range(1, task.num_windows)]
        cutoffs = [int(times.searchsorted(moment, side="right")) for moment in (pd.Timestamp(first), *moments)]
    else:
        if isinstance(first, str):
            first = int(times.searchsorted(pd.Timestamp(first), side="right"))
        begin = first + length if first < 0 else first
        cutoffs = [begin + number * step for number in range(task.num_windows)]
    starts = tuple(one for one in cutoffs if one >= task.min_context_length and one + task.horizon <= length)
    return OfficialSplit(starts[0], starts[0], length, starts=starts) if starts else None


def _open(name: str, task: Any, options: Options) -> Dataset:
    try:
        with naming(name):
            rows = _load(task)
            times = [np.unique(np.asarray(row[task.timestamp_column], dtype="datetime64[s]")) for row in rows[:1]]
            if not (step := frequency.infer(times) if times else ""):
                raise DamagedDataset("it has no series, or one value in the first, so its frequency is unknown.")
    except (DamagedDataset, UnusableSeries) as error:
        return Dataset.damaged(name, str(error))
    targets = tuple(task.target_columns)
    if options.target not in ((), EACH) and set(options.target) - set(targets):
        raise HrxError(f"{name}: " + unknown("target", next(iter(set(options.target) - set(targets))), targets))
    own: dict[str, Role] = dict.fromkeys(task.past_dynamic_columns, "past")
    own |= dict.fromkeys(task.known_dynamic_columns, "future") | dict.fromkeys(task.static_columns, "static")
    roles = options.roles or ({} if options.unused == "ignore" else own)
    for column, role in roles.items():
        known = own.get(column_of(column, list(own))[0])
        if role == "future" and known != "future":
            raise HrxError(f"{name}: {column!r} is not known ahead in this task. Name it in past=.")
    read = targets if options.target in ((), EACH) else tuple(options.target)
    found = _Task(task, rows, read, roles, _labels(rows, roles))
    about = (f"{name}/{step}", step, options.season or task.seasonality, "", len(rows) * len(read), found.row)
    windows = f"{task.num_windows} windows of the task, horizon {task.horizon}"
    note = "; ".join([windows, *(f"{role}: {column}" for column, role in roles.items())])
    joint = len(read) > 1 and options.target != EACH
    return Dataset(*about, variates=len(read), note=note, joint=joint)


def _load(task: Any) -> Sequence[Mapping[str, Any]]:
    """Return the series of a task, ordered by id. Local files are read here: fev's reader needs datasets below 5."""
    files = sorted(glob(str(user_path(task.dataset_path)))) if task.dataset_config is None else []
    try:
        if not files or task.generate_univariate_targets_from is not None:
            rows: Sequence[Mapping[str, Any]] = task.load_full_dataset(num_proc=1)
            return rows
        frame = pd.concat([_read_file(Path(file)) for file in files], ignore_index=True)
    except Exception as error:  # whatever pyarrow, datasets, the hub or fev raise
        raise DamagedDataset(f"its data cannot be read: {describe_error(error)}.") from error
    names = (task.id_column, task.timestamp_column, *task.target_columns, *task.dynamic_columns, *task.static_columns)
    if missing := [name for name in names if name not in frame]:
        raise DamagedDataset(f"its data have no column {missing[0]!r}, which the task names.")
    frame[task.id_column] = frame[task.id_column].astype(str)
    if all(map(np.isscalar, frame[task.target_columns[0]])):  # long: a row per time
        items = frame.sort_values([task.id_column, task.timestamp_column]).groupby(task.id_column, sort=True)
        fixed = (task.id_column, *task.static_columns)
        return [
            {name: one[name].iloc[0] if name in fixed else one[name].to_numpy() for name in names} for _, one in items
        ]
    frame = frame.sort_values(task.id_column)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*(frame[name] for name in names), strict=True)]


def _read_file(path: Path) -> pd.DataFrame:
    if path.suffix == ".arrow":
        return pd.DataFrame(import_module("datasets").Dataset.from_file(str(path)).to_pandas())
    return pd.read_parquet(path)


def _labels(rows: Sequence[Mapping[str, Any]], roles: Mapping[str, Role]) -> dict[str, tuple[str, ...]]:
    """Return the labels over all series of the columns of text and truth."""
    found = {}
    for column in roles:
        if rows and column in rows[0] and np.atleast_1d(rows[0][column]).dtype.kind in "OUb":
            cells = {str(cell) for row in rows for cell in np.atleast_1d(row[column]) if cell is not None}
            found[column] = tuple(sorted(cells))
    return found
