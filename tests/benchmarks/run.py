"""All benchmarks, one after the other, each in its own process.

    python tests/benchmarks/run.py [--out DIR]

Prints their tables, and writes one JSON file each to DIR (build/bench). Where HRX_TEST_DATA names a folder with
checkpoints/ttm-r2 and gift_eval/, the real weights and real data are measured too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = {
    "jacobian_rows": ["jacobian_rows.py"],
    "jacobian_rows_short": ["jacobian_rows.py", "--setting", "96x24", "--windows", "4"],
    "jacobian_rows_two_threads": ["jacobian_rows.py", "--threads", "2", "--windows", "4"],
    "one_run": ["one_run.py"],
    "one_run_two_threads": ["one_run.py", "--threads", "2"],
    "growth": ["growth.py"],
    "audit_share": ["audit_share.py"],
    "estimator_cost": ["estimator_cost.py"],
    "engine": ["engine.py", "--small"],
    "cost_of_verdict": ["cost_of_verdict.py"],
    "effort": ["effort.py"],
}
"""Commands by the name of their JSON file."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs all benchmarks.")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "build" / "bench", metavar="DIR")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, (file, *rest) in BENCHMARKS.items():
        start = time.perf_counter()
        command = [sys.executable, str(HERE / file), *rest, "--json", str(options.out / f"{name}.json")]
        # The benchmark sets its own threads; without this, libraries start more of them as they load.
        finished = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
        print(f"{name}: {time.perf_counter() - start:.0f} s\n", flush=True)
        failed += [name] if finished.returncode else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
