"""What is known by name: models with their cards, and datasets with what of them is on disk. Imports no torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hrx.adapters.families import EMBEDDED, families, published_card, short_names
from hrx.gift_eval import catalogue, open_source
from hrx.gift_eval.catalogue import Configuration, State, check_sizes
from hrx.reports.text import counted


def known_models() -> list[dict[str, Any]]:
    """Return the embedded checkpoint and the short names, with their cards and whether their library is installed."""
    listed: list[dict[str, Any]] = []
    released = [(card.name, card.family, card.hub_id) for card in short_names().values()]
    for name, family, source in [(EMBEDDED, "chronos-bolt", "embedded"), *released]:
        known, card = families()[family], published_card(name if source == "embedded" else source)
        if card.synthetic:
            seen = "nothing real"
        elif card.saw_all:
            seen = "training splits"
        elif card.seen is not None:
            seen = counted(len(card.seen), "dataset")
        else:
            seen = {"none": "nothing", "train": "in part", "test": "in part", None: "unknown"}[card.benchmark]
        about: dict[str, Any] = {"name": name, "family": family, "source": source, "library": known.distribution}
        about |= {"installed": known.installed, "install": known.install_command}
        about |= {"licence_note": known.licence_note} if known.licence_note else {}
        declared = _fields(card, "parameters", "licence", "native_lookback", "native_horizon", "pretraining")
        about |= declared | {"gift_eval": seen, "seen": sorted(card.seen or ()), "sources": card.sources}
        about |= {"inputs": asdict(known.inputs), "outputs": asdict(known.outputs)}
        listed.append(about)
    return listed


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
    known, in_paper = [], {dataset.folder: dataset for dataset in catalogue.paper_datasets()}
    for d in open_source("sample"):
        same = _fields(d, "name", "frequency", "variates", "season", "domain")
        known.append(KnownDataset(**same, source="sample", series=d.count, licence="public domain", on_disk="yes"))
    names = ["name", "frequency", "variates", "season", "covariates", "series", "shortest", "longest", "licence"]
    for folder in catalogue.folders():
        paper = in_paper.get(folder.name)
        known.append(
            KnownDataset(
                **_fields(folder, *names, "bytes", "sha256", "copy_of"),
                source="gift-eval",
                domain=folder.field,
                benchmark_domain=folder.domain,
                configurations=tuple(each for each in catalogue.configurations() if each.folder == folder.name),
                paper_name=paper.name if paper else "",
                paper_runs=paper.runs if paper else None,
                on_disk={State.RIGHT: "yes", State.MISSING: "no", State.DAMAGED: "damaged"}[check_sizes(root, folder)],
            )
        )
    for p in catalogue.paper_datasets():
        if not p.folder:
            same = _fields(p, "name", "source", "frequency", "variates", "file", "bring")
            known.append(KnownDataset(**same, paper_name=p.name, paper_runs=p.runs))
    return known


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
