"""The datasets of GIFT-Eval and of the paper: folders, configurations, and the paper's dataset names.

The facts are in `catalogue_data/*.csv`; the README there names their sources. They are read on first use. `download`
compares them with the files on disk, `store` reads the values.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from hrx.errors import HrxError, unknown

from . import frequency as frequencies
from .series import Dataset

DATA_FILE = "data-00000-of-00001.arrow"
STATE_FILE = "state.json"
INFO_FILE = "dataset_info.json"
TSLIB = "Time-Series-Library"
"""The source of the sets on which the paper trains its backbones."""


@dataclass(frozen=True)
class Folder:
    """One folder of the official download: `name` is its path, `us_births/D` or `m4_hourly`.

    `domain` is the benchmark's name for where the series come from, `paper_domain` the paper's, empty where the
    paper omits the folder. Lengths are those of the shortest and longest series, None where not known. `bytes` and
    `sha256` are those of the Arrow file. `copy_of` names the folder that this one repeats by mistake.
    """

    name: str
    frequency: str
    domain: str
    paper_domain: str
    variates: int
    covariates: int
    series: int
    shortest: int | None
    longest: int | None
    licence: str
    bytes: int
    sha256: str
    copy_of: str

    @property
    def season(self) -> int:
        """Values per season, as an audit takes it."""
        return frequencies.season(self.frequency)

    @property
    def field(self) -> str:
        """The paper's name for the domain; the benchmark's where the paper has none."""
        return self.paper_domain or self.domain


@dataclass(frozen=True)
class Configuration:
    """One line of the leaderboard, `us_births/D/short`; `windows` is None where the shortest length is not known."""

    name: str
    folder: str
    term: str
    prediction_length: int
    windows: int | None


@dataclass(frozen=True)
class PaperDataset:
    """One of the paper's dataset names, and the number of runs in its table.

    `folder` is its GIFT-Eval folder. Where there is none, `bring` says what a person needs to supply, and `file`
    its name at the source; `rows` is the number of time steps in a file of the Time-Series-Library.
    """

    name: str
    source: str
    folder: str
    frequency: str
    variates: int
    runs: int
    file: str
    rows: int | None
    bring: str


Entry = TypeVar("Entry", Folder, Configuration, PaperDataset)
Named = TypeVar("Named", Folder, Dataset)


@cache
def folders() -> tuple[Folder, ...]:
    """The benchmark's 55 folders, and the stray copy beside them that the official download and the paper have."""
    return _read("folders.csv", Folder)


@cache
def configurations() -> tuple[Configuration, ...]:
    """The leaderboard's 97 configurations."""
    return _read("configurations.csv", Configuration)


@cache
def paper_datasets() -> tuple[PaperDataset, ...]:
    """The paper's 66 dataset names."""
    return _read("paper_datasets.csv", PaperDataset)


@cache
def tslib_sets() -> tuple[PaperDataset, ...]:
    """The thirteen sets of the Time-Series-Library."""
    return tuple(each for each in paper_datasets() if each.source == TSLIB)


def choose(names: Sequence[str]) -> tuple[Folder, ...]:
    """The folders that `names` mean; no names mean every folder."""
    return tuple(select(folders(), names)) if names else folders()


def select(datasets: Iterable[Named], names: Sequence[str]) -> list[Named]:
    """Those of `datasets` that `names` mean, each once: one (`us_births/D`), or all its frequencies (`us_births`)."""
    known = by_name(datasets)
    for name in names:
        if name not in known:
            raise HrxError(unknown("dataset", name, known))
    return list({dataset.name: dataset for name in names for dataset in known[name]}.values())


def by_name(datasets: Iterable[Named]) -> dict[str, list[Named]]:
    """The datasets of each name: one by its full name, and all its frequencies by the part before the slash."""
    known: dict[str, list[Named]] = {}
    for dataset in datasets:
        for name in dict.fromkeys((dataset.name, dataset.name.partition("/")[0])):
            known.setdefault(name, []).append(dataset)
    return known


def _read(file: str, kind: type[Entry]) -> tuple[Entry, ...]:
    """The lines of a CSV as instances of a dataclass; an empty number is None."""
    text = files(__package__).joinpath("catalogue_data", file).read_text(encoding="utf-8")
    types = {field.name: field.type for field in fields(kind)}
    lines: list[Any] = list(csv.DictReader(text.splitlines()))
    for line in lines:
        line |= {name: int(cell) if cell else None for name, cell in line.items() if types[name] is not str}
    return tuple(kind(**line) for line in lines)
