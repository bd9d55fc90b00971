"""Memory of opening the largest dataset of the catalogue and reading three of its items.

    python tests/benchmarks/memory_of_opening.py [--json] [--take N] [--items N] [--folder DIR]

Writes a dataset of the shape of bitbrains_fast_storage/5T in the official format (1,250 items × 2 variates, 302 MB)
to a temporary directory, then opens it in a fresh process, so that writing does not affect the measurement.
`--folder` measures an existing directory instead. Linux only: the figures come from /proc.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ITEMS, VARIATES, LENGTH = 1250, 2, 30_200
ROWS_PER_BATCH = 100

CHILD = """
import gc, json, sys
import datasets, numpy, pyarrow
from hrx.gift_eval import spaced
from hrx.gift_eval.arrow_folders import open_directory

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

def reset_peak():
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

pyarrow.array([1.0]).to_numpy(zero_copy_only=False)  # imports pandas once: 45 MB that are not data
reset_peak()
before = status("VmRSS")
(dataset,) = open_directory(sys.argv[1])
opened = status("VmHWM") - before
items = [dataset.read_item(index) for index in spaced(dataset.items, int(sys.argv[2]))]
print(json.dumps({
    "bytes_taken": sum(item.values.nbytes for item in items),
    "peak_growth_opening": opened,
    "peak_growth_opening_and_taking": status("VmHWM") - before,
}))
"""


def write(folder: Path, items: int) -> None:
    """A dataset as save_to_disk leaves it, batch by batch."""
    import numpy as np
    import pyarrow as pa

    folder.mkdir(parents=True)
    path = folder / "data-00000-of-00001.arrow"
    target = pa.list_(pa.list_(pa.float32()))
    schema = pa.schema(
        [("item_id", pa.string()), ("start", pa.timestamp("s")), ("freq", pa.string()), ("target", target)]
    )
    random = np.random.default_rng(0)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for first in range(0, items, ROWS_PER_BATCH):
            rows = min(ROWS_PER_BATCH, items - first)
            values = pa.array(random.normal(size=rows * VARIATES * LENGTH).astype(np.float32))
            inner = pa.ListArray.from_arrays(pa.array(np.arange(rows * VARIATES + 1, dtype=np.int32) * LENGTH), values)
            outer = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * VARIATES), inner)
            names = pa.array([str(first + row) for row in range(rows)])
            starts = pa.array(np.zeros(rows, dtype=np.int64), pa.timestamp("s"))
            batch = pa.RecordBatch.from_arrays([names, starts, pa.array(["5T"] * rows), outer], schema=schema)
            writer.write_batch(batch)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": path.name}]}))
    (folder / "dataset_info.json").write_text("{}")


def measure(folder: Path, take: int) -> dict[str, int]:
    """The figures of a fresh process, in bytes."""
    command = [sys.executable, "-c", CHILD, str(folder), str(take)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"file_bytes": sum(path.stat().st_size for path in folder.glob("data-*.arrow")), **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--take", type=int, default=3, help="items to take, evenly spaced (default: 3)")
    parser.add_argument("--items", type=int, default=ITEMS, help=f"items to write (default: {ITEMS})")
    parser.add_argument("--folder", type=Path, help="measure this directory instead of a synthetic one")
    options = parser.parse_args()
    if options.folder:
        figures = measure(options.folder, options.take)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "bitbrains_fast_storage" / "5T"
            write(folder, options.items)
            figures = measure(folder, options.take)
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):32} {value / 1e6:10.2f} MB")


if __name__ == "__main__":
    main()
