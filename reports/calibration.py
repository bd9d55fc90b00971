"""A calibration in words and files: tables beside the published ones, the criteria, the verdict.

Reads results only, without torch. Pictures are left to `hrx.reports.calibration_pictures`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from hrx.audit.calibration.generators import GENERATORS
from hrx.audit.calibration.results import QUANTITIES, Calibration, Trial, judge, middle, verdict
from hrx.reports.calibration_pictures import pictures
from hrx.reports.cells import Cell, Column, Format, Row, Value
from hrx.reports.files import make_directory, write_bytes
from hrx.reports.layout import wrap
from hrx.reports.table import Table
from hrx.reports.words import number_or_none

DEFAULT_ESTIMATOR = "input_gradient"
PLAIN = Format("number", plus=False)
SIGNED = Format("number")
EXPLAINED = Format("number", decimals=4, plus=False)
RANK = Format("number", decimals=2, plus=False)
LEFT_OUT = "Runs that explain less than 98 % of the held-out variance are left out of every median."

Fields = dict[str, float]


class Published(NamedTuple):
    """One table of the paper on its synthetic data."""

    label: str
    of: str
    rows: dict[str, Fields]


@cache
def published_ground_truth() -> dict[str, Published]:
    """The paper's cells on its synthetic data, by table."""
    text = (files("hrx.reports") / "published" / "ground_truth.json").read_text(encoding="utf-8")
    return {name: Published(**table) for name, table in json.loads(text).items() if name != "source"}


def tables(calibration: Calibration) -> tuple[Table, ...]:
    """The medians of each backbone, each generator by itself, the planted ranks, and the criteria."""
    return _medians(calibration), _generators(calibration), _ranks(calibration), _criteria(calibration)


def render_calibration(calibration: Calibration, width: int = 80) -> str:
    """All tables and the verdict as plain text."""
    parts = [table.to_text(width) for table in tables(calibration)]
    sentence = "\n".join(wrap(f"Verdict: {verdict(judge(calibration))}", width))
    return "\n".join([*parts, sentence]) + "\n"


def calibration_json(calibration: Calibration) -> dict[str, object]:
    """What `hrx calibrate --json` prints."""
    criteria = judge(calibration)
    return {
        "estimator": calibration.estimator,
        "effort": calibration.effort,
        "backbones": [
            _cell_json(calibration, backbone, generator)
            for backbone in calibration.backbones
            for generator in GENERATORS
        ],
        "planted_rank": [
            {"backbone": backbone, "planted": point.planted, "measured": point.measured}
            for backbone in calibration.backbones
            for point in calibration.curve(backbone)
        ],
        "criteria": [one._asdict() for one in criteria],
        "sound": all(one.passed for one in criteria),
        "verdict": verdict(criteria),
    }


def write_calibration(calibration: Calibration, out: Path) -> list[Path]:
    """Tables, trials and pictures in a directory, each file whole or not there. Returns their paths."""
    make_directory(out)
    markdown = "\n".join(table.to_markdown() for table in tables(calibration))
    report = f"# Calibration\n\n{markdown}\n**Verdict:** {verdict(judge(calibration))}\n"
    told = json.dumps(calibration_json(calibration), indent=1) + "\n"
    return [
        write_bytes(out / "calibration.md", report.encode()),
        write_bytes(out / "calibration.json", told.encode()),
        write_bytes(out / "trials.csv", _trials_csv(calibration).encode()),
        *pictures(calibration, out),
    ]


def _cell_json(calibration: Calibration, backbone: str, generator: str) -> dict[str, object]:
    """The medians of one backbone on one generator, null where it learned nothing that may be read."""
    made, evidence = calibration.table(backbone, generator), calibration.evidence(backbone, generator)
    numbers = {name: number_or_none(_median(evidence, name)) for name in (*QUANTITIES, "auprc_gap", "measured_rank")}
    return {
        "backbone": backbone,
        "generator": generator,
        "runs": len(made),
        "learned": len(evidence),
        "least_squares": min((trial.least_squares for trial in made), default=None),
        "explained": min((trial.explained for trial in made), default=None),
        **numbers,
    }


def _median(trials: list[Trial], name: str) -> float:
    return middle(trials, lambda trial: float(getattr(trial, name)))


def _medians(calibration: Calibration) -> Table:
    """One row for each quantity of each backbone, beside the paper's."""
    published = published_ground_truth()
    own = calibration.estimator == DEFAULT_ESTIMATOR
    source = published["backbones" if own else "estimators"]

    def rows() -> Iterator[Row]:
        for backbone in calibration.backbones:
            evidence = calibration.evidence(backbone)
            beside = source.rows.get(backbone if own else calibration.estimator, {})
            section = f"{backbone}, median of {len(evidence)} runs"
            for name in QUANTITIES:
                format = SIGNED if name.startswith("g_") else PLAIN
                cell = Cell(number_or_none(_median(evidence, name)), format).beside(beside.get(name))
                yield Row((Cell(_words(name)), cell), section=section)

    return Table(
        "calibration",
        f"Constructed ground truth, {calibration.estimator}, {calibration.effort} calibration",
        (Column("quantity", "quantity"), Column("median", "median", PLAIN)),
        tuple(rows()),
        note=f"{LEFT_OUT} Paper: {source.label}, {source.of}.",
        label=source.label,
    )


def _words(quantity: str) -> str:
    """`auprc_vector` as people write it."""
    name, _, form = quantity.partition("_")
    return quantity if name == "g" else f"{name.upper()} {form}"


def _generators(calibration: Calibration) -> Table:
    """Each generator by itself: what was learned, the gain, and the gap in AUPRC beside the paper's."""
    gaps = published_ground_truth()["gaps"]
    own = calibration.estimator == DEFAULT_ESTIMATOR

    def row(backbone: str, generator: str) -> Row:
        made, evidence = calibration.table(backbone, generator), calibration.evidence(backbone, generator)
        least = min((trial.explained for trial in made), default=float("nan"))
        paper = gaps.rows.get(backbone, {}).get(generator) if own else None
        numbers = (("g_own", SIGNED), ("auprc_vector", PLAIN), ("auprc_matrix", PLAIN))
        cells = [Cell(number_or_none(_median(evidence, name)), format) for name, format in numbers]
        gap = Cell(number_or_none(_median(evidence, "auprc_gap")), SIGNED).beside(paper)
        return Row((Cell(generator), Cell(least, EXPLAINED), *cells, gap), section=backbone)

    return Table(
        "calibration_generators",
        "By generator: medians, and the least share of the held-out variance that a run explains",
        (
            Column("generator", "generator"),
            Column("explained", "explained", EXPLAINED),
            Column("g_own", "g_own", SIGNED),
            Column("auprc_vector", "vector", PLAIN),
            Column("auprc_matrix", "matrix", PLAIN),
            Column("auprc_gap", "gap", SIGNED),
        ),
        tuple(row(backbone, generator) for backbone in calibration.backbones for generator in GENERATORS),
        note=f"vector, matrix, gap: AUPRC. sparsenull is the negative control. Paper: {gaps.label}."
        if own
        else "vector, matrix, gap: AUPRC. sparsenull is the negative control.",
        label=gaps.label,
    )


def _ranks(calibration: Calibration) -> Table:
    """Planted and measured ranks, one column for each backbone."""
    curves = {backbone: dict(calibration.curve(backbone)) for backbone in calibration.backbones}
    planted = sorted({rank for curve in curves.values() for rank in curve})

    def row(rank: float) -> Row:
        found: list[Value] = [curve.get(rank) for curve in curves.values()]
        return Row((Cell(rank, RANK), *(Cell(value, RANK) for value in found)))

    return Table(
        "planted_rank",
        "Effective rank of the answer, and what is measured of it (median)",
        (Column("planted", "planted", RANK), *(Column(backbone, backbone, RANK) for backbone in curves)),
        tuple(row(rank) for rank in planted),
    )


def _criteria(calibration: Calibration) -> Table:
    rows = tuple(
        Row((Cell(one.criterion), Cell("pass" if one.passed else "FAIL"), Cell(one.figure)), section=one.backbone)
        for one in judge(calibration)
    )
    names = ("criterion", "result", "figure")
    return Table("criteria", "What a sound instrument does", tuple(Column(name, name) for name in names), rows)


def _trials_csv(calibration: Calibration) -> str:
    """Every trained model and the exact control, one line each, in full precision."""
    held = io.StringIO()
    names = ["estimator", *(field.name for field in fields(Trial)), "learned"]
    writer = csv.DictWriter(held, names, lineterminator="\n")
    writer.writeheader()
    for trial in (calibration.control, *calibration.trials):
        writer.writerow({"estimator": calibration.estimator, **asdict(trial), "learned": trial.learned})
    return held.getvalue()
