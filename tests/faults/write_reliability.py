"""Writes the figures of `make faults` into docs/reliability.md, between its two markers."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures: written by make faults -->", "<!-- end of figures -->"
HEADS = ["| suite | fault | made | handled |", "| --- | --- | ---: | ---: |"]


def updated(text: str, figures: Iterable[Mapping[str, Any]]) -> str:
    """The page with the rows of the suites that ran replaced by their figures; other suites keep their rows."""
    totals: dict[tuple[str, str], list[int]] = {}
    for row in figures:
        total = totals.setdefault((row["suite"], row["fault"]), [0, 0])
        total[0] += row["made"]
        total[1] += row["handled"]
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    ran = {suite for suite, _ in totals}
    for line in table.strip().splitlines()[len(HEADS) :]:
        suite, fault, made, handled = (cell.strip() for cell in line.strip("|").split("|"))
        if suite not in ran:
            totals[suite, fault] = [int(made), int(handled)]
    lines = [
        f"| {suite} | {fault} | {made} | {handled} |" for (suite, fault), (made, handled) in sorted(totals.items())
    ]
    return "\n".join([before + BEGIN, "", *HEADS, *lines, "", END + after])


def main() -> int:
    """Updates the page by the figures of the last run."""
    figures = [json.loads(file.read_text()) for file in sorted((ROOT / "build" / "faults").glob("*.json"))]
    if not figures:
        print("build/faults holds no figures: run `make faults`.", file=sys.stderr)
        return 1
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
    suites = sorted({figure["suite"] for figure in figures})
    print(f"{PAGE.relative_to(ROOT)}: figures of {', '.join(suites)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
