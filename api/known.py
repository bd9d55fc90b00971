"""What is known by name: models with their cards, and datasets with what of them is on disk. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hrx.adapters.families import EMBEDDED, ModelCard, families, published_card, short_names
from hrx.gift_eval import catalogue, open_source
from hrx.gift_eval.catalogue import Configuration, State, check_sizes
from hrx.reports.text import counted


def known_models() -> list[dict[str, Any]]:
    """Return the embedded checkpoint and the short names, with their cards and whether their library is installed."""
    listed: list[dict[str, Any]] = []
    released = [(card.name, card.family, card.hub_id) for card in short_names().values()]
    for name, family, source in [(EMBEDDED, "chronos-bolt", "embedded"), *released]:
        known = families()[family]
        about = {
            "library": known.distribution,
            "installed": known.installed,
            "install": known.install_command,
            **({"licence_note": known.licence_note} if known.licence_note else {}),
        }
        declared = _declared(published_card(name if source == "embedded" else source))
        listed.append({"name": name, "family": family, "source": source, **about, **declared})
    return listed


def _declared(card: ModelCard) -> dict[str, Any]:
    if card.synthetic:
        seen = "nothing real"
    elif card.saw_all:
        seen = "training splits"
    elif card.seen is not None:
        seen = counted(len(card.seen), "dataset")
    else:
        seen = {"none": "nothing", "train": "in part", "test": "in part", None: "unknown"}[card.benchmark]
    declared = _fields(card, "parameters", "licence", "native_lookback", "native_horizon", "pretraining")
    return declared | {"gift_eval": seen, "seen": sorted(card.seen or ()), "sources": card.sources}


@dataclass(frozen=True)
class KnownDataset:
    """One dataset of the list; what is not known of it is None or empty."""

    name: str
    source: str
    frequency: str
    variates: int
    season: int | None = None
    domain: str = ""
    benchmark_domain: str = ""
    covariates: int | None = None
    series: int | None = None
    shortest: int | None = None
    longest: int | None = None
    configurations: tuple[Configuration, ...] = ()
    paper_name: str = ""
    paper_runs: int | None = None
    licence: str = ""
    bytes: int | None = None
    sha256: str = ""
    copy_of: str = ""
    on_disk: str = "no"
    file: str = ""
    bring: str = ""


def known_datasets(root: Path) -> list[KnownDataset]:
    """Everything that has a name: the sample, GIFT-Eval's folders, and what the paper took from elsewhere."""
    return [*_sample(), *_benchmark(root), *_elsewhere()]


def _sample() -> Iterator[KnownDataset]:
    for d in open_source("sample"):
        about = _fields(d, "name", "frequency", "variates", "season", "domain")
        yield KnownDataset(**about, source="sample", series=d.count, licence="public domain", on_disk="yes")


def _benchmark(root: Path) -> Iterator[KnownDataset]:
    in_paper = {dataset.folder: dataset for dataset in catalogue.paper_datasets()}
    on_disk = {State.RIGHT: "yes", State.MISSING: "no", State.DAMAGED: "damaged"}
    same = ["name", "frequency", "variates", "season", "covariates", "series", "shortest", "longest", "licence"]
    same += ["bytes", "sha256", "copy_of"]
    for folder in catalogue.folders():
        paper = in_paper.get(folder.name)
        yield KnownDataset(
            **_fields(folder, *same),
            source="gift-eval",
            domain=folder.field,
            benchmark_domain=folder.domain,
            configurations=tuple(each for each in catalogue.configurations() if each.folder == folder.name),
            paper_name=paper.name if paper else "",
            paper_runs=paper.runs if paper else None,
            on_disk=on_disk[check_sizes(root, folder)],
        )


def _elsewhere() -> Iterator[KnownDataset]:
    for d in catalogue.paper_datasets():
        if not d.folder:
            same = _fields(d, "name", "source", "frequency", "variates", "file", "bring")
            yield KnownDataset(**same, paper_name=d.name, paper_runs=d.runs)


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
