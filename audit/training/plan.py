"""Which models are trained: backbones × series × settings × depths × seeds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Setting, choose_series
from hrx.audit.training.loop import Recipe, cut_splits, refuse_gaps
from hrx.audit.training.train import TrainingTask
from hrx.errors import HrxError
from hrx.gift_eval import Dataset, Series, UnusableSeries

MOST_NAME = 200
"""Bytes of a directory's name; file systems take 255."""


class TrainingPlan(NamedTuple):
    """The models to train, and why the others cannot be trained."""

    tasks: list[TrainingTask]
    refused: tuple[str, ...]
    """A sentence for each series that cannot be used at a setting; settings may share one."""


class _Place(NamedTuple):
    """A series at a setting; `several` says whether its dataset has others."""

    series: Series
    several: bool
    setting: Setting


class _Refused(NamedTuple):
    """Why a series cannot be trained at a setting."""

    setting: Setting
    reason: str


def plan_training(
    names: Sequence[str],
    datasets: Iterable[Dataset],
    settings: Sequence[Setting],
    *,
    depths: Sequence[int],
    seeds: int,
    series: int,
    recipe: Recipe,
    arguments: Mapping[str, Mapping[str, Any]],
) -> TrainingPlan:
    """Every model to train, on the series that an audit of the same data chooses.

    Raises on a damaged dataset, on a setting that no series can be trained at, and on names that are not distinct.
    """
    refused: list[_Refused] = []
    usable: list[_Place] = []
    for dataset in datasets:
        if dataset.damage:
            raise HrxError(dataset.damage)
        for setting, chosen in choose_series(dataset, settings, series).items():
            for one in chosen:
                try:
                    if one.error:
                        raise one.error
                    assert isinstance(one.series, Series), "read without channels"
                    cut_splits(one.series, setting.lookback, setting.horizon)
                    refuse_gaps(one.series, setting.horizon, Protocol.max_missing)
                except UnusableSeries as error:
                    refused.append(_Refused(setting, str(error)))
                else:
                    usable.append(_Place(one.series, dataset.count > 1, setting))
    for setting in settings:
        if all(place.setting != setting for place in usable):
            reasons = [one.reason for one in refused if one.setting == setting]
            raise HrxError(reasons[0] if reasons else "The data hold no series. Give another --data.")
    tasks = [
        TrainingTask(name, place.series, place.several, place.setting, depth, seed, recipe, arguments.get(name, {}))
        for place in usable
        for name in dict.fromkeys(names)
        for depth in (depths or (None,))
        for seed in range(seeds)
    ]
    _check_names(tasks)
    return TrainingPlan(tasks, tuple(dict.fromkeys(one.reason for one in refused)))


def _check_names(tasks: Iterable[TrainingTask]) -> None:
    """Raises where two models would have one directory, or a name is too long for one."""
    first: dict[str, TrainingTask] = {}
    for task in tasks:
        other = first.setdefault(task.name, task)
        if other is not task:
            raise HrxError(
                f"{other.series.label} and {task.series.label} would both be trained as {task.name}. "
                "Rename one of them."
            )
        if len(task.name.encode()) > MOST_NAME:
            raise HrxError(
                f"{task.series.label}: the directory of a model would have a name of {len(task.name.encode())} bytes, "
                f"more than {MOST_NAME}. Give the series a shorter name."
            )
