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
    """The page with these figures, those of one suite and fault added up."""
    totals: dict[tuple[str, str], list[int]] = {}
    for row in figures:
        total = totals.setdefault((row["suite"], row["fault"]), [0, 0])
        total[0] += row["made"]
        total[1] += row["handled"]
    before, rest = text.split(BEGIN)
    lines = [
        f"| {suite} | {fault} | {made} | {handled} |" for (suite, fault), (made, handled) in sorted(totals.items())
    ]
    return "\n".join([before + BEGIN, "", *HEADS, *lines, "", END + rest.split(END)[1]])


def suites() -> set[str]:
    """Names of the suites, by their files."""
    return {file.stem.removeprefix("test_").replace("_", " ") for file in Path(__file__).parent.glob("test_*.py")}


def main() -> int:
    """Updates the page by the figures of the last run, in which every suite must have one."""
    figures = [json.loads(file.read_text()) for file in sorted((ROOT / "build" / "faults").glob("*.json"))]
    if missing := sorted(suites() - {figure["suite"] for figure in figures}):
        print(f"build/faults has no figure of {', '.join(missing)}: run `make faults`.", file=sys.stderr)
        return 1
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
    made, handled = (sum(figure[name] for figure in figures) for name in ("made", "handled"))
    print(f"{PAGE.relative_to(ROOT)}: {handled} of {made} faults handled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
