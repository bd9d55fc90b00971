"""`hrx report`: a ledger as one page that opens from disk, and figures for print beside it."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from hrx import __version__
from hrx.audit.ledger.record import DONE
from hrx.audit.ledger.store import Ledger
from hrx.reports.files import make_directory, write_bytes
from hrx.reports.page import parts
from hrx.reports.page.data import arrange, model_labels, statistics
from hrx.reports.page.html import embed, page, text
from hrx.reports.page.pictures import choose, palette
from hrx.reports.plots import figures
from hrx.reports.read import read
from hrx.reports.summary import summarise
from hrx.reports.words import listed

PAGE = "index.html"
SCRIPTS = (
    "core.js", "statistics.js", "heatmap.js", "heatdraw.js", "filters.js", "groups.js", "rankplot.js", "records.js",
    "report.js",
)  # fmt: skip


class Report(NamedTuple):
    """What was written."""

    page: Path
    figures: list[Path]
    runs: int


def write_report(ledger_path: str | Path, out_dir: str | Path) -> Report:
    """Writes `index.html` and `figures/` of a ledger. Other files of the directory stay as they are."""
    out = Path(out_dir)
    frame = read(ledger_path)
    make_directory(out / "figures")
    drawn = figures(ledger_path, out / "figures", frame)
    written = write_bytes(out / PAGE, render(Path(ledger_path), frame, drawn).encode())
    return Report(written, drawn, len(frame))


def render(ledger_path: Path, frame: pd.DataFrame, drawn: list[Path]) -> str:
    """The page of a ledger's runs, with its figures."""
    runs = arrange(frame)
    labels = model_labels(frame)
    with Ledger.open(ledger_path, create=False) as ledger:
        checks, audits = ledger.checks(), ledger.audits()
        chosen = choose(ledger, frame, labels)
    data = {
        "runs": runs.as_json(),
        "statistics": statistics(runs),
        "windows": {"shown": chosen.shown, "stored": chosen.stored, "palette": palette()},
    }
    summaries = summarise(frame, checks)
    heading = _heading(frame)
    return page(
        "report.html",
        SCRIPTS,
        {
            "title": f"{text(heading)} – hrx report",
            "heading": text(heading),
            "facts": text(_facts(frame, ledger_path.name)),
            "verdicts": parts.verdicts(summaries, list(dict.fromkeys(labels))),
            "figures": _figures(drawn),
            "excluded": parts.exclusions(frame),
            "checks": parts.admission(checks),
            "reproduce": parts.reproduction(frame, audits, ledger_path.name),
            "footer": text(f"Made by hrx {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from records alone."),
            "data": "\n".join(embed(name, value) for name, value in data.items()),
        },
    )


def _heading(frame: pd.DataFrame) -> str:
    models = list(dict.fromkeys(frame["model"].astype(str)))
    if len(models) == 1:
        return f"What {models[0]} reads for each step of its forecast"
    return f"What {len(models)} models read for each step of their forecasts"


def _facts(frame: pd.DataFrame, name: str) -> str:
    done = int((frame["status"] == DONE).sum())
    days = sorted(frame["created"].dropna().astype(str).str[:10].unique())
    when = "" if not days else f", {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}"
    return f"{name}: {len(frame)} runs, {done} of them scored, on {frame['dataset'].nunique()} datasets{when}"


def _figures(drawn: list[Path]) -> str:
    """The figures for print: shown where they are small vector files, linked in every format."""
    by_name: dict[str, list[Path]] = {}
    for path in drawn:
        by_name.setdefault(path.stem, []).append(path)
    shown = []
    for name, files in by_name.items():
        links = listed(f'<a href="figures/{text(file.name)}">{text(file.suffix[1:])}</a>' for file in files)
        caption = text(name.replace("-", " "))
        picture = next((file for file in files if file.suffix == ".svg"), None)
        image = ""
        if picture is not None:
            data = base64.b64encode(picture.read_bytes()).decode()
            image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        shown.append(f"<figure>{image}<figcaption>{caption}: {links}</figcaption></figure>")
    if not shown:
        return ""
    return f'<details class="print-figures"><summary>Figures for print</summary>{"".join(shown)}</details>'
