"""What GIFT-Eval and the paper hold, as data: folders, configurations, and the paper's dataset names.

The facts lie in `catalogue_data/*.csv`, and its README says where they come from. They are read when they are first
asked for. What is on this machine's disk is left to `verification`, the values to `store`.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Protocol, TypeVar

from hrx.errors import HrxError, unknown

from . import frequency as frequencies

DATA_FILE = "data-00000-of-00001.arrow"
STATE_FILE = "state.json"
INFO_FILE = "dataset_info.json"


class Named(Protocol):
    """Whatever is called `us_births/D` or `m4_hourly`."""

    @property
    def name(self) -> str: ...


NamedT = TypeVar("NamedT", bound=Named)


@dataclass(frozen=True)
class Folder:
    """One folder of the official download: `name` is its path, `us_births/D` or `m4_hourly`.

    `domain` is the benchmark's word for where the series come from, `paper_domain` the paper's, empty where the
    paper leaves the folder out. Lengths are those of the shortest and longest series, None where not known.
    `bytes` and `sha256` are those of the Arrow file. `copy_of` names the folder that this one repeats by mistake.
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
    def dataset(self) -> str:
        """The name without its frequency level."""
        return self.name.partition("/")[0]

    @property
    def season(self) -> int:
        """Values per season, as the leaderboard has it."""
        return frequencies.season(self.frequency)

    @property
    def field(self) -> str:
        """The paper's word for the domain; the benchmark's where the paper has none."""
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
    """One of the paper's dataset names and how many runs its table counts.

    `folder` is the GIFT-Eval folder it means. Where there is none, `bring` says what a person needs to bring, and
    `file` what that is called where it comes from.
    """

    name: str
    source: str
    folder: str
    frequency: str
    variates: int
    runs: int
    file: str
    bring: str


@cache
def folders() -> tuple[Folder, ...]:
    """The benchmark's 55 folders, and the stray copy beside them that the official download and the paper have."""
    return tuple(
        Folder(
            name=line["folder"],
            frequency=line["frequency"],
            domain=line["domain"],
            paper_domain=line["paper_domain"],
            variates=int(line["variates"]),
            covariates=int(line["covariates"]),
            series=int(line["series"]),
            shortest=_whole(line["shortest"]),
            longest=_whole(line["longest"]),
            licence=line["licence"],
            bytes=int(line["bytes"]),
            sha256=line["sha256"],
            copy_of=line["copy_of"],
        )
        for line in _lines("folders.csv")
    )


@cache
def configurations() -> tuple[Configuration, ...]:
    """The leaderboard's 97 configurations."""
    return tuple(
        Configuration(
            name=line["configuration"],
            folder=line["folder"],
            term=line["term"],
            prediction_length=int(line["prediction_length"]),
            windows=_whole(line["windows"]),
        )
        for line in _lines("configurations.csv")
    )


@cache
def paper_datasets() -> tuple[PaperDataset, ...]:
    """The paper's 66 dataset names."""
    return tuple(
        PaperDataset(
            name=line["name"],
            source=line["source"],
            folder=line["folder"],
            frequency=line["frequency"],
            variates=int(line["variates"]),
            runs=int(line["runs"]),
            file=line["file"],
            bring=line["bring"],
        )
        for line in _lines("paper_datasets.csv")
    )


def choose(names: Sequence[str]) -> tuple[Folder, ...]:
    """The folders that `names` mean, each once: a folder (`us_births/D`), or a dataset with all its frequencies
    (`us_births`). No names mean every folder.
    """
    if not names:
        return folders()
    known = by_name(folders())
    chosen: dict[str, Folder] = {}
    for name in names:
        if name not in known:
            raise HrxError(unknown("dataset", name, known))
        chosen.update((folder.name, folder) for folder in known[name])
    return tuple(chosen.values())


def by_name(datasets: Iterable[NamedT]) -> dict[str, tuple[NamedT, ...]]:
    """What each name means: a dataset by its own, and all frequencies of one by the name before the slash."""
    found: dict[str, tuple[NamedT, ...]] = {}
    for dataset in datasets:
        for name in dict.fromkeys((dataset.name, dataset.name.partition("/")[0])):
            found[name] = (*found.get(name, ()), dataset)
    return found


def _lines(file: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath("catalogue_data", file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _whole(cell: str) -> int | None:
    return int(cell) if cell else None
