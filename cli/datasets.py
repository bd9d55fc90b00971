"""`hrx datasets`: what is known and what is on disk, the datasets of one source, or the official scores."""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hrx.cli.terminal import StatusLine, show
from hrx.errors import Exit, HrxError
from hrx.gift_eval import data_root, open_source
from hrx.gift_eval.catalogue import Configuration, configurations, folders, paper_datasets
from hrx.gift_eval.download import State, check_sizes
from hrx.gift_eval.official import NaiveScores, score
from hrx.reports import render_table

ON_DISK = {State.RIGHT: "yes", State.MISSING: "no", State.DAMAGED: "damaged"}


@dataclass(frozen=True)
class Known:
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


def datasets(options: argparse.Namespace) -> int:
    """The verb."""
    if options.scores:
        return _scores("gift-eval" if options.data is None else options.data, options.json)
    return _catalogue(options.json) if options.data is None else _source(options.data, options.json)


def _catalogue(as_json: bool) -> int:
    """Everything that has a name: the sample, GIFT-Eval's folders, and what the paper took from elsewhere."""
    root = data_root()
    known = [*_sample(), *_benchmark(root), *_elsewhere()]
    if as_json:
        print(json.dumps([asdict(each) for each in known], indent=1))
        return Exit.DONE
    rows = [
        (
            each.name,
            each.frequency,
            each.domain,
            str(each.variates),
            str(each.series),
            str(len(each.configurations)),
            each.on_disk,
        )
        for each in known
        if not each.bring
    ]
    show(render_table(("name", "freq", "domain", "vars", "series", "terms", "on disk"), rows))
    here = sum(each.source == "gift-eval" and each.on_disk == "yes" for each in known)
    show(f"\nGIFT-Eval: {here} of {len(folders())} folders are in {root}. `hrx data fetch NAME` brings the others.")
    show(
        "\nThe paper's other datasets have to be brought, as csv:FILE or finance:FILE:\n" + "\n".join(_to_bring(known))
    )
    return Exit.DONE


def _to_bring(known: list[Known]) -> Iterator[str]:
    """A sentence for every kind of file, and the datasets that need one."""
    for sentence in dict.fromkeys(each.bring for each in known if each.bring):
        names = [f"{each.name} ({each.file})" if each.file else each.name for each in known if each.bring == sentence]
        yield textwrap.fill(f"{', '.join(names)}: {sentence}", 78, initial_indent="- ", subsequent_indent="  ")


def _sample() -> list[Known]:
    return [
        Known(
            name=dataset.name,
            source="sample",
            frequency=dataset.frequency,
            variates=dataset.variates,
            season=dataset.season,
            domain=dataset.domain,
            series=dataset.count,
            licence="public domain",
            on_disk="yes",
        )
        for dataset in open_source("sample")
    ]


def _benchmark(root: Path) -> list[Known]:
    in_paper = {dataset.folder: dataset for dataset in paper_datasets()}
    return [
        Known(
            name=folder.name,
            source="gift-eval",
            frequency=folder.frequency,
            variates=folder.variates,
            season=folder.season,
            domain=folder.field,
            benchmark_domain=folder.domain,
            covariates=folder.covariates,
            series=folder.series,
            shortest=folder.shortest,
            longest=folder.longest,
            configurations=tuple(each for each in configurations() if each.folder == folder.name),
            paper_name=in_paper[folder.name].name if folder.name in in_paper else "",
            paper_runs=in_paper[folder.name].runs if folder.name in in_paper else None,
            licence=folder.licence,
            bytes=folder.bytes,
            sha256=folder.sha256,
            copy_of=folder.copy_of,
            on_disk=ON_DISK[check_sizes(root, folder)],
        )
        for folder in folders()
    ]


def _elsewhere() -> list[Known]:
    return [
        Known(
            name=dataset.name,
            source=dataset.source,
            frequency=dataset.frequency,
            variates=dataset.variates,
            paper_name=dataset.name,
            paper_runs=dataset.runs,
            file=dataset.file,
            bring=dataset.bring,
        )
        for dataset in paper_datasets()
        if not dataset.folder
    ]


def _source(spec: str, as_json: bool) -> int:
    """The datasets of a source. Series are counted, not read."""
    found = open_source(spec)
    if as_json:
        listed = [
            {
                "name": dataset.name,
                "frequency": dataset.frequency,
                "season": dataset.season,
                "domain": dataset.domain,
                "series": dataset.count,
                "variates": dataset.variates,
                "note": dataset.note,
                "damage": dataset.damage,
            }
            for dataset in found
        ]
        print(json.dumps(listed, indent=1))
        return Exit.DONE
    rows = [(d.name, d.frequency, str(d.season), str(d.count), d.damage or d.domain) for d in found]
    show(render_table(("name", "frequency", "season", "series", "domain"), rows))
    for dataset in found:
        if dataset.note:
            show(f"\n{dataset.name}: {dataset.note}")
    return Exit.DONE


def _scores(spec: str, as_json: bool) -> int:
    """Both naive forecasts on every official configuration of the source."""
    found, line = [], StatusLine()
    for scored in score(open_source(spec)):
        found.append(scored)
        line.say(f"{len(found)} scored: {scored.configuration}")
    line.clear()
    if not found:
        raise HrxError(
            f"{spec!r} holds no dataset of GIFT-Eval, and only these have official test windows. Give the benchmark's "
            "data directory, or drop --data."
        )
    if as_json:
        print(json.dumps([_scored(each) for each in found], indent=1))
    else:
        rows = [(each.configuration, *each.naive, *each.seasonal) for each in found if not each.damage]
        headers = ("config", "naive MSE", "MAE", "MASE", "seasonal MSE", "MAE", "MASE")
        show(render_table(headers, rows, width=110))
    for reason in dict.fromkeys(each.damage for each in found if each.damage):
        print(f"hrx datasets: not scored: {reason}", file=sys.stderr)
    return Exit.INCOMPLETE if any(each.damage for each in found) else Exit.DONE


def _scored(scored: NaiveScores) -> dict[str, object]:
    shown: dict[str, object] = {"config": scored.configuration}
    for name, scores in (("naive", scored.naive), ("seasonal", scored.seasonal)):
        for metric, value in scores._asdict().items():
            shown[f"{name}_{metric}"] = None if math.isnan(value) else value
    return shown | ({"damage": scored.damage} if scored.damage else {})
