"""Writes the figures of `make faults` into docs/reliability.md, between its two markers."""

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures: written by make faults -->", "<!-- end of figures -->"


def main() -> int:
    """Replaces the table of the page by the figures of the last complete run."""
    made: Counter[tuple[str, str]] = Counter()
    handled: Counter[tuple[str, str]] = Counter()
    for file in sorted((ROOT / "build" / "faults").glob("*.json")):
        row = json.loads(file.read_text())
        place = row["suite"], row["fault"]
        made[place] += row["made"]
        handled[place] += row["handled"]
    if not made:
        print("build/faults holds no figures: run `make faults`.", file=sys.stderr)
        return 1
    lines = ["| suite | fault | made | handled |", "| --- | --- | ---: | ---: |"]
    lines += [
        f"| {suite} | {fault} | {count} | {handled[suite, fault]} |" for (suite, fault), count in sorted(made.items())
    ]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
