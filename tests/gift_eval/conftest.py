"""Writes datasets like Hugging Face's save_to_disk, batch by batch."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def save() -> Callable[..., list[Path]]:
    """save(folder, shard, …): a shard is a list of record batches, a batch a list of targets, one per row."""
    pytest.importorskip("datasets", reason="datasets is not installed (pip install 'hrx[gift-eval]')")
    return _save


def _save(
    folder: Path,
    *shards: Sequence[Sequence[Any]],
    freq: str | None = "D",
    start: int | None = 0,
    target: Any = None,
    drop: str = "",
) -> list[Path]:
    import pyarrow as pa

    types = {
        "item_id": pa.string(),
        "start": pa.timestamp("s"),
        "freq": pa.string(),
        "target": target or pa.list_(pa.float32()),
    }
    schema = pa.schema([(name, kind) for name, kind in types.items() if name != drop])
    folder.mkdir(parents=True)
    paths = [folder / f"data-{number:05}-of-{len(shards):05}.arrow" for number in range(len(shards))]
    item = 0
    for path, batches in zip(paths, shards, strict=True):
        with path.open("wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for targets in batches:
                rows = [
                    {"item_id": f"T{item + i}", "start": start, "freq": freq, "target": values}
                    for i, values in enumerate(targets)
                ]
                item += len(rows)
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    state = {"_data_files": [{"filename": path.name} for path in paths]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return paths
