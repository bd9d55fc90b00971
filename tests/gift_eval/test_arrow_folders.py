import json
import math
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hrx.errors import HrxError
from hrx.gift_eval import DamagedDataset, UnusableSeries
from hrx.gift_eval.arrow_folders import open_directory

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'hrx[gift-eval]')")
pytest.importorskip("datasets", reason="datasets is not installed (pip install 'hrx[gift-eval]')")

NESTED = pa.list_(pa.list_(pa.float32()))
FIXED = pa.list_(pa.list_(pa.float32()), 2)


def rewrite(path: Path, table: Any) -> None:
    """Put other rows into a shard."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def test_a_univariate_dataset_has_one_series_per_row(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "us_births" / "D", [[[1.5, 2.5], [3.0]]])
    (dataset,) = open_directory(tmp_path)
    assert (dataset.name, dataset.frequency, dataset.season, dataset.domain) == ("us_births/D", "D", 7, "")
    assert dataset.count == 2
    found = [dataset.read(i) for i in range(2)]
    assert [(s.item, s.values.tolist(), s.missing) for s in found] == [
        ("T0", [1.5, 2.5], 0),
        ("T1", [3.0], 0),
    ]
    assert found[0].values.dtype == np.float64


@pytest.mark.parametrize("target", [NESTED, FIXED, pa.large_list(pa.list_(pa.float64()))])
def test_every_variate_of_a_multivariate_dataset_is_a_series(tmp_path: Path, save: Any, target: Any) -> None:
    save(tmp_path / "jena" / "10T", [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]], freq="10T", target=target)
    (dataset,) = open_directory(tmp_path)
    assert (dataset.count, dataset.season) == (4, 144)
    found = [dataset.read(i) for i in range(4)]
    assert [s.item for s in found] == ["T0[0]", "T0[1]", "T1[0]", "T1[1]"]
    assert [s.values.tolist() for s in found] == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_rows_are_found_across_record_batches_and_shards_in_the_order_listed(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d", [[[0.0], [1.0]], [[2.0]]], [[[3.0]], [], [[4.0], [5.0]]])
    (dataset,) = open_directory(tmp_path)
    assert [dataset.read(i).values.tolist() for i in range(dataset.count)] == [[float(i)] for i in range(6)]
    assert dataset.read(5).item == "T5"


def test_files_that_the_state_does_not_list_are_not_data(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d", [[[0.0]]])
    (tmp_path / "d" / "cache-123.arrow").write_bytes(b"stray")
    (dataset,) = open_directory(tmp_path)
    assert dataset.read(0).values.tolist() == [0]


def test_names_are_the_paths_below_the_root_whichever_level_is_opened(
    tmp_path: Path, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, freq in [("us_births/D", "D"), ("us_births/W", "W-TUE"), ("m4_hourly", "H")]:
        save(tmp_path / name, [[[1.0]]], freq=freq)
    (tmp_path / ".cache" / "x").mkdir(parents=True)
    assert [d.name for d in open_directory(tmp_path)] == ["m4_hourly", "us_births/D", "us_births/W"]
    assert [d.name for d in open_directory(tmp_path / "us_births")] == ["us_births/D", "us_births/W"]
    assert [d.name for d in open_directory(tmp_path / "us_births" / "W")] == ["us_births/W"]
    assert [d.name for d in open_directory(tmp_path / "m4_hourly")] == ["m4_hourly"]
    monkeypatch.chdir(tmp_path / "us_births" / "D")
    assert [d.name for d in open_directory(".")] == ["us_births/D"]


def test_null_and_nan_are_missing_values(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d", [[[None, 1.0, math.nan, None, 2.0]]])
    found = open_directory(tmp_path)[0].read(0)
    assert (found.values.tolist(), found.missing) == ([1, 1, 1, 2], 2)


def test_a_series_without_values_is_unusable_and_its_neighbours_are_not(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d", [[[math.nan, math.nan], [], None, [1.0]]])
    (dataset,) = open_directory(tmp_path)
    for index, reason in enumerate(["all 2 values are missing", "empty", "empty"]):
        with pytest.raises(UnusableSeries, match=f"d series T{index}: .*{reason}"):
            dataset.read(index)
    assert dataset.read(3).values.tolist() == [1]


def test_opening_and_reading_copy_nothing_but_the_series_asked_for(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d", [np.ones((8, 100_000), dtype=np.float32).tolist()])
    before = pa.total_allocated_bytes()
    (dataset,) = open_directory(tmp_path)
    assert pa.total_allocated_bytes() - before < 10_000
    assert dataset.read(5).values.size == 100_000
    assert pa.total_allocated_bytes() - before < 10_000


def test_a_dataset_can_be_sent_to_another_process(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "d", [[[1.0]]])
    (dataset,) = open_directory(tmp_path)
    assert pickle.loads(pickle.dumps(dataset)).read(0).fingerprint == dataset.read(0).fingerprint


def test_a_file_cut_short_anywhere_is_damage_that_names_the_file_and_spares_the_others(
    tmp_path: Path, save: Any
) -> None:
    (path,) = save(tmp_path / "bad", [[[1.0, 2.0]], [[3.0]]])
    save(tmp_path / "good", [[[1.0]]])
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        bad, good = open_directory(tmp_path)
        assert (bad.name, bad.count) == ("bad", 0)
        assert bad.damage.startswith(f"bad: {path.name} ")
        assert str(tmp_path) not in bad.damage
        with pytest.raises(DamagedDataset, match="data-00000"):
            bad.read(0)
        assert good.read(0).values.tolist() == [1]


def test_flipped_bytes_raise_a_message_and_never_crash(tmp_path: Path, save: Any) -> None:
    (path,) = save(tmp_path / "d", [[[[1.0, 2.0], [3.0, 4.0]]]], target=NESTED)
    whole = bytearray(path.read_bytes())
    refused = 0
    for position in range(0, len(whole), 3):
        broken = whole.copy()
        broken[position] ^= 0xFF
        path.write_bytes(broken)
        (dataset,) = open_directory(tmp_path)
        refused += bool(dataset.damage)
        for index in range(min(dataset.count, 3)):
            with suppress(HrxError):
                dataset.read(index)
    assert refused > 0


def test_a_file_that_shrinks_after_it_was_opened_is_named(tmp_path: Path, save: Any) -> None:
    (path,) = save(tmp_path / "d", [[[1.0], [2.0]]])
    (dataset,) = open_directory(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedDataset, match="data-00000"):
        dataset.read(1)


@pytest.mark.parametrize("column", ["item_id", "start", "freq", "target"])
def test_a_missing_column_is_named(tmp_path: Path, save: Any, column: str) -> None:
    (path,) = save(tmp_path / "d", [[[1.0]]], drop=column)
    (dataset,) = open_directory(tmp_path)
    assert f"d: {path.name} has no column {column}" in dataset.damage


@pytest.mark.parametrize("target", [pa.float32(), pa.list_(pa.string()), pa.list_(pa.list_(pa.list_(pa.float32())))])
def test_a_target_of_another_shape_is_refused_with_its_type(tmp_path: Path, save: Any, target: Any) -> None:
    save(tmp_path / "d", [[None]], target=target)
    (dataset,) = open_directory(tmp_path)
    assert f"target has type {target}" in dataset.damage


@pytest.mark.parametrize(
    ("batches", "options", "reason"),
    [
        ([[]], {}, "holds no series"),
        ([], {}, "holds no series"),
        ([[[1.0]]], {"freq": "fortnight"}, "Unknown frequency 'fortnight'"),
        ([[[1.0]]], {"freq": None}, "the first row has no frequency"),
        ([[[]]], {"target": NESTED}, "the first row has no variates"),
        ([[None]], {"target": NESTED}, "the first row has no variates"),
    ],
)
def test_an_incomplete_dataset_is_damaged_and_its_reason_omits_the_directory(
    tmp_path: Path, save: Any, batches: Any, options: Any, reason: str
) -> None:
    save(tmp_path / "d", batches, **options)
    (dataset,) = open_directory(tmp_path)
    assert reason in dataset.damage
    assert dataset.damage.startswith("d: ")
    assert str(tmp_path) not in dataset.damage


@pytest.mark.parametrize("other", [[[3.0]], [[3.0], [4.0], [5.0]], None])
def test_a_row_with_more_or_fewer_variates_than_the_first_is_damage(tmp_path: Path, save: Any, other: Any) -> None:
    save(tmp_path / "d", [[[[1.0], [2.0]], other]], target=NESTED)
    (dataset,) = open_directory(tmp_path)
    assert dataset.read(1).values.tolist() == [2]
    with pytest.raises(DamagedDataset, match=f"row 'T1' has {len(other or [])} variates, the first 2"):
        dataset.read(2)


def test_a_row_of_another_frequency_and_a_row_without_one_are_damage_and_their_neighbours_are_read(
    tmp_path: Path, save: Any
) -> None:
    (path,) = save(tmp_path / "d", [[[1.0]]])
    fields = {"item_id": ["T0", "T1", "T2"], "start": pa.array([0] * 3, pa.timestamp("s")), "freq": ["D", "H", None]}
    table = pa.table({**fields, "target": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32()))})
    rewrite(path, table)
    (dataset,) = open_directory(tmp_path)
    assert dataset.read(0).values.tolist() == [1, 2]
    with pytest.raises(DamagedDataset, match=r"^d: row 'T1' has frequency H, the first D\.$"):
        dataset.read(1)
    with pytest.raises(DamagedDataset, match=r"^d: row 'T2' has no frequency\.$"):
        dataset.read(2)


def test_a_row_that_lists_its_times_is_refused(tmp_path: Path, save: Any) -> None:
    (path,) = save(tmp_path / "d", [[[1.0]]])
    times = pa.array([[86_400, 0]], pa.list_(pa.timestamp("s")))
    table = pa.table({"item_id": ["T0"], "start": times, "freq": ["D"], "target": [[1.0, 2.0]]})
    rewrite(path, table)
    (dataset,) = open_directory(tmp_path)
    assert "column start has type list<" in dataset.damage
    assert "expected one time per row" in dataset.damage


def test_the_variates_of_an_item_are_read_together_from_any_shard(tmp_path: Path, save: Any) -> None:
    save(
        tmp_path / "d",
        [[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]],
        [[[[9, math.nan], [None, 10]], [[math.nan] * 2, [1, 2]]]],
        target=NESTED,
    )
    (dataset,) = open_directory(tmp_path)
    assert (dataset.items, dataset.variates, dataset.count) == (4, 2, 8)
    assert dataset.read_item(1).values.tolist() == [[5, 6], [7, 8]]
    found = dataset.read_item(2)
    assert (found.item, found.names, found.values.tolist(), found.missing) == ("T2", ("0", "1"), [[9], [10]], (1, 0))
    with pytest.raises(UnusableSeries, match="d series T3: variate 0: all 2 values are missing"):
        dataset.read_item(3)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_folder_whose_name_is_not_text_is_read_under_a_printable_name(tmp_path: Path, save: Any) -> None:
    folder = tmp_path / os.fsdecode(b"d\xff")
    save(folder, [[[1.0, 2.0]]])
    (dataset,) = open_directory(tmp_path)
    assert (dataset.name, dataset.damage) == ("d\\xff", "")
    assert dataset.read_item(0).values.tolist() == [[1, 2]]
    (folder / "state.json").unlink()
    (folder / "state.json").symlink_to(folder / "nothing")
    (dataset,) = open_directory(tmp_path)
    assert dataset.damage.encode()


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"_data_files": [1]}', '{"_data_files": []}', "\x00"])
def test_a_state_that_lists_no_files_is_damage(tmp_path: Path, save: Any, state: str) -> None:
    save(tmp_path / "d", [[[1.0]]])
    (tmp_path / "d" / "state.json").write_text(state)
    (dataset,) = open_directory(tmp_path)
    assert dataset.damage.startswith("d: state.json ")


def test_a_missing_shard_and_a_missing_state_are_damage(tmp_path: Path, save: Any) -> None:
    _, second = save(tmp_path / "a", [[[1.0]]], [[[2.0]]])
    second.unlink()
    save(tmp_path / "b", [[[1.0]]])
    (tmp_path / "b" / "state.json").unlink()
    a, b = open_directory(tmp_path)
    assert f"a: {second.name} is missing" in a.damage
    assert "state.json cannot be read" in b.damage


def test_an_error_of_the_system_is_quoted_without_the_directory_on_this_machine(tmp_path: Path, save: Any) -> None:
    (path,) = save(tmp_path / "d", [[[1.0]]])
    path.unlink()
    path.mkdir()
    (dataset,) = open_directory(tmp_path)
    assert dataset.damage.startswith(f"d: {path.name} cannot be read as an Arrow stream: ")
    assert str(tmp_path) not in dataset.damage


def test_a_directory_without_datasets_and_a_missing_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(HrxError, match=r"No dataset was found under .*empty"):
        open_directory(tmp_path / "empty")
    with pytest.raises(HrxError, match="is not a directory"):
        open_directory(tmp_path / "absent")


def test_without_datasets_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HrxError, match=r"pip install .*\[gift-eval\]"):
        open_directory(tmp_path)


def test_what_save_to_disk_writes_is_read(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "item_id": datasets.Value("string"),
            "start": datasets.Value("timestamp[s]"),
            "freq": datasets.Value("string"),
            "target": datasets.Sequence(datasets.Value("float32")),
        }
    )
    rows = [{"item_id": f"T{i}", "start": 0, "freq": "W-THU", "target": [i, i + 0.5]} for i in range(5)]
    written = datasets.Dataset.from_list(rows, features=features)
    written.save_to_disk(str(tmp_path / "d" / "W"), num_shards=2)
    assert len(json.loads((tmp_path / "d" / "W" / "state.json").read_text())["_data_files"]) == 2
    (dataset,) = open_directory(tmp_path)
    assert (dataset.name, dataset.frequency, dataset.damage) == ("d/W", "W", "")
    assert [dataset.read(i).values.tolist() for i in range(dataset.count)] == [[i, i + 0.5] for i in range(5)]


@pytest.mark.parametrize("target", [pa.list_(pa.int64()), pa.list_(pa.float64())])
def test_infinite_values_and_rounded_whole_numbers_make_a_series_unusable(
    tmp_path: Path, save: Any, target: Any
) -> None:
    whole = target.value_type == pa.int64()
    wrong = [1, 2**60 + 1, 3] if whole else [1.0, math.inf, 3.0]
    save(tmp_path / "d", [[wrong, [1, 2, 3]]], target=target)
    (dataset,) = open_directory(tmp_path)
    sentence = "rounds whole numbers" if whole else "value 2 is inf: a value lies between"
    with pytest.raises(UnusableSeries, match=sentence):
        dataset.read(0)
    assert dataset.read(1).values.tolist() == [1, 2, 3]


def test_a_data_file_behind_a_link_is_read_from_the_folder_and_from_the_hubs_cache_alone(
    tmp_path: Path, save: Any
) -> None:
    hub = tmp_path / "datasets--x"
    (path,) = save(hub / "snapshots" / "abc" / "us_births" / "D", [[[1.0]]])
    (hub / "blobs").mkdir()
    path.rename(hub / "blobs" / "sha")
    path.symlink_to(hub / "blobs" / "sha")
    (dataset,) = open_directory(hub / "snapshots" / "abc")
    assert dataset.read(0).values.tolist() == [1.0]
    path.unlink()
    (hub / "blobs" / "sha").rename(tmp_path / "secret.arrow")
    path.symlink_to(tmp_path / "secret.arrow")
    (dataset,) = open_directory(hub / "snapshots" / "abc")
    assert "which is not in its folder" in dataset.damage
