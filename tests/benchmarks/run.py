"""All benchmarks, one after the other, each in a process of its own: about ten minutes on two quiet cores.

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
BENCHMARKS = ("rows", "one_run", "growth", "audit_share", "estimator_cost", "engine")
OPTIONS = {"engine": ["--small"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs all benchmarks.")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "build" / "bench", metavar="DIR")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in BENCHMARKS:
        began = time.perf_counter()
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(options.out / f"{name}.json")]
        ended = subprocess.run([*command, *OPTIONS.get(name, [])], env=os.environ | {"OMP_NUM_THREADS": "1"})
        print(f"{name}: {time.perf_counter() - began:.0f} s\n", flush=True)
        failed += [name] if ended.returncode else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
