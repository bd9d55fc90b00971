"""Processor time, memory and bytes of `hrx report` on ledgers of the published size and of 100,000 records.

    python tests/benchmarks/report_size.py [RECORDS …]

The records are those of `helpers.crowd`: random numbers over 8 models, 66 datasets and 7 settings, with 60 examples.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers import crowd

from hrx.reports import render_table, write_report

FIRST = ("records-0", "rank-yes", "example-0")
"""Parts that the page loads at once."""


def measure(count: int) -> tuple[str | float, ...]:
    """Seconds, megabytes of memory, and megabytes of the page, with what it loads at once, and of all parts."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = crowd.write(Path(folder) / "ledger.db", crowd.records(count), 60)
        before = time.process_time()
        page = write_report(ledger, Path(folder) / "out").page
        seconds = time.process_time() - before
        parts = {one.stem: one.stat().st_size for one in page.parent.glob("index-data/*.js")}
        first = page.stat().st_size + sum(parts.get(name, 0) for name in FIRST)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{count:,}", seconds, memory, first / 1e6, sum(parts.values()) / 1e6


if __name__ == "__main__":
    heads = ("records", "processor seconds", "peak memory, MB", "first load, MB", "all parts, MB")
    print(render_table(heads, [measure(int(count)) for count in sys.argv[1:] or ("16729", "100000")], width=100))
