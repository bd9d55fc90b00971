import re
from dataclasses import FrozenInstanceError, fields

import pytest

from hrx.records.merge import COMPARED, differences
from hrx.records.quantities import DISTANCES, GAINS, QUANTITIES, TRUNCATIONS
from hrx.records.record import COLUMNS, DONE, NAMES, Record


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="g_onw"):
        Record(key="a", status=DONE, g_onw=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="g_onw"):
        Record(key="a", status=DONE).updated(g_onw=0.5)


def test_key_and_status_are_required_and_every_other_field_starts_empty() -> None:
    with pytest.raises(TypeError, match="status"):
        Record(key="a")  # type: ignore[call-arg]
    record = Record(key="a", status=DONE)
    assert {name for name in NAMES if getattr(record, name) is not None} == {"key", "status"}


def test_a_record_is_never_changed_in_place() -> None:
    record = Record(key="a", status=DONE)
    with pytest.raises(FrozenInstanceError):
        record.g_own = 0.5  # type: ignore[misc]
    assert record.updated(g_own=0.5, reason="r") == Record(key="a", status=DONE, g_own=0.5, reason="r")
    assert record.g_own is None


def test_columns_are_the_fields_of_the_record_in_order_with_a_type_and_a_meaning() -> None:
    assert tuple(field.name for field in fields(Record)) == NAMES == tuple(column.name for column in COLUMNS)
    assert {column.kind for column in COLUMNS} == {"TEXT", "INTEGER", "REAL"}
    for column in COLUMNS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
        assert column.meaning
    kinds = {column.name: column.kind for column in COLUMNS}
    assert (kinds["key"], kinds["seed"], kinds["g_own"], kinds["device"]) == ("TEXT", "INTEGER", "REAL", "TEXT")


def test_every_quantity_has_a_normalised_value_a_raw_value_and_a_standard_error() -> None:
    numbers = {column.name for column in COLUMNS if column.kind == "REAL"}
    for name in QUANTITIES:
        assert {name, f"{name}_raw", f"{name}_se"} <= numbers, name


def test_gains_have_a_column_by_step_and_by_channel_and_sweeps_one_for_each_rank_and_distance() -> None:
    assert {f"{name}_steps" for name in GAINS} | {f"{name}_channel" for name in GAINS} <= set(NAMES)
    ranks = {name for name in NAMES if name.startswith("g_own_rank_")}
    distances = {name for name in NAMES if name.startswith("g_distance_")}
    assert ranks == {f"g_own_rank_{rank}" for rank in TRUNCATIONS}
    assert distances == {f"g_distance_{distance}" for distance in DISTANCES}
    assert {f"{name}_fine{suffix}" for name in GAINS for suffix in ("", "_se")} <= set(NAMES)


def test_two_measurements_are_compared_in_every_number_except_times_and_what_follows_from_others() -> None:
    numbers = {column.name for column in COLUMNS if column.kind != "TEXT"}
    times = {"forward_seconds", "matrix_seconds", "seconds"}
    needed = {name for name in numbers if name.startswith("context_")} - {"context_bound", "context_windows"}
    assert numbers - set(COMPARED) == times | needed | {
        "beats_naive", "p_margin", "support", "sparse", "forecasts", "max_missing"
    }  # fmt: skip
    assert {"status", "check_failed", "starts", "g_own_steps", "context_curves"} <= set(COMPARED)


def test_numbers_agree_within_a_relative_1e4_or_an_absolute_1e6() -> None:
    one = Record(
        key="a", status=DONE, g_own=0.5, g_shuffled=1e-9, g_own_steps="[0.1, null]", seconds=1.0, beats_naive=1
    )
    two = one.updated(g_own=0.5 * (1 + 9e-5), g_shuffled=-5e-7, g_own_steps="[0.100001, null]", seconds=9.0)
    assert differences(one, two.updated(beats_naive=0)) == []
    assert [d.column for d in differences(one, two.updated(g_own=0.5 * (1 + 3e-4)))] == ["g_own"]
    assert [d.column for d in differences(one, two.updated(g_shuffled=-2e-6))] == ["g_shuffled"]
    assert [d.column for d in differences(one, two.updated(g_own_steps="[0.1]"))] == ["g_own_steps"]
    assert [d.column for d in differences(one, two.updated(g_own_steps="[0.1, 0.0]"))] == ["g_own_steps"]
