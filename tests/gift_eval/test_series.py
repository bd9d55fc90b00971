import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrx.gift_eval import read_series
from hrx.gift_eval.series import DamagedDataset, Dataset, Series, StoredSeries, UnusableSeries, fill, spaced

gappy = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), min_size=1)


def filled_slowly(values: list[float]) -> tuple[list[float], int]:
    result: list[float] = []
    count = 0
    for value in values:
        if math.isfinite(value):
            result.append(value)
        elif result:
            result.append(result[-1])
            count += 1
    return result, count


def series(values: object, **changes: object) -> Series:
    fields: dict[str, object] = {
        "dataset": "d/H",
        "item": "T1",
        "frequency": "H",
        "season": 24,
        "domain": "",
        "values": values,
        "missing": 0,
    }
    return Series(**{**fields, **changes})  # type: ignore[arg-type]


@given(gappy)
def test_filling_agrees_with_walking_through_the_values(values: list[float]) -> None:
    expected, count = filled_slowly(values)
    if not expected:
        with pytest.raises(UnusableSeries):
            fill(values)
    else:
        found = fill(values)
        assert found.values.tolist() == expected
        assert found.missing == count


@given(gappy, gappy)
def test_filling_never_looks_ahead(past: list[float], future: list[float]) -> None:
    if any(map(math.isfinite, past)):
        alone = fill(past).values
        assert np.array_equal(fill(past + future).values[: alone.size], alone)


def test_a_series_with_no_observed_value_is_unusable_and_says_why() -> None:
    with pytest.raises(UnusableSeries, match="all 3 values are missing"):
        fill([math.nan, math.nan, math.nan])
    with pytest.raises(UnusableSeries, match="empty"):
        fill([])


@given(gappy)
def test_filled_values_are_marked_as_not_observed(values: list[float]) -> None:
    finite = [math.isfinite(value) for value in values]
    if any(finite):
        assert fill(values).observed.tolist() == finite[finite.index(True) :]


def test_a_masked_value_is_missing_whatever_stands_behind_the_mask() -> None:
    values = np.ma.masked_array([7.0, 1.0, 900.0, 2.0], mask=[True, False, True, False])
    filled = fill(values)
    assert (filled.values.tolist(), filled.observed.tolist()) == ([1, 1, 2], [True, False, True])
    assert (filled.missing, filled.dropped) == (1, 1)
    assert fill(np.ma.masked_array([1, 2, 3], mask=[False, True, False])).values.tolist() == [1, 1, 3]
    with pytest.raises(UnusableSeries, match="all 2 values are missing"):
        fill(np.ma.masked_all(2))
    given = {"array": values, "rows": np.ma.stack([values, values]), "entry": {"target": values}, "list": [values]}
    for kind, data in given.items():
        assert read_series(data).series[-1].series.values.tolist() == [1, 1, 2], kind


@pytest.mark.parametrize("infinite", [math.inf, -math.inf, float("1e400")])
def test_an_infinite_value_is_refused_with_its_place(infinite: float) -> None:
    with pytest.raises(UnusableSeries, match=r"value 3 is -?inf: a value lies between"):
        fill([1.0, 2.0, infinite, 4.0])
    rows = [StoredSeries("T1", np.array([1.0, infinite, infinite]))]
    with pytest.raises(UnusableSeries, match=r"d/H series T1: value 2 is -?inf, and 1 more are infinite"):
        Dataset("d/H", "H", 24, "", 1, rows.__getitem__).read(0)


@pytest.mark.parametrize("start", [2**53, -(2**53) - 6, 2**60, 2**70])
def test_whole_numbers_that_a_float_would_round_are_refused_instead_of_called_constant(start: int) -> None:
    values = [start + step for step in range(7)]
    assert len({float(value) for value in values}) < 7
    with pytest.raises(UnusableSeries, match="rounds whole numbers"):
        fill(values)


def test_large_whole_numbers_that_a_float_holds_are_taken() -> None:
    values = [2**60, 2**61, -(2**53), 3 * 2**55]
    assert fill(values).values.tolist() == values


def test_a_series_cannot_be_changed_and_does_not_share_its_values() -> None:
    values = np.arange(4.0)
    made = series(values)
    values[0] = 9
    assert made.values[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        made.values[0] = 1


def test_the_fingerprint_depends_on_the_name_and_on_every_value_and_on_nothing_else() -> None:
    base = series([1.0, 2.0, 3.0])
    assert base.fingerprint == series(np.array([1, 2, 3], dtype=np.float32), domain="x").fingerprint
    others = [
        series([1.0, 2.0, np.nextafter(3.0, 4)]),
        series([1.0, 2.0]),
        series([1.0, 2.0, 3.0], item="T2"),
        series([1.0, 2.0, 3.0], dataset="e/H"),
        # The boundary between two names is part of them.
        series([1.0, 2.0, 3.0], dataset="d/HT", item="1"),
    ]
    assert len({made.fingerprint for made in [base, *others]}) == len(others) + 1


def test_a_dataset_fills_what_it_reads_and_names_the_series_that_cannot_be_used() -> None:
    rows = [StoredSeries("T1", np.array([math.nan, 1, math.nan, 2])), StoredSeries("T2", np.array([math.nan]))]
    dataset = Dataset("d/H", "H", 24, "Energy", 2, rows.__getitem__)
    found = dataset.read(0)
    assert (found.dataset, found.item, found.frequency, found.season) == ("d/H", "T1", "H", 24)
    assert (found.domain, found.values.tolist(), found.missing) == ("Energy", [1, 1, 2], 1)
    with pytest.raises(UnusableSeries, match=r"d/H series T2: all 1 values are missing"):
        dataset.read(1)
    for index in (-1, 2):
        with pytest.raises(IndexError):
            dataset.read(index)


def test_a_damaged_dataset_says_so_when_it_is_read() -> None:
    dataset = pickle.loads(pickle.dumps(Dataset.damaged("d/H", "/data/d/H is cut short.")))
    assert dataset.count == 0
    with pytest.raises(DamagedDataset, match="/data/d/H is cut short"):
        dataset.read(0)


@given(st.integers(1, 500), st.integers(1, 50))
def test_spaced_indices_are_distinct_even_and_hold_both_ends(count: int, n: int) -> None:
    found = spaced(count, n)
    assert len(found) == min(count, n)
    assert found[0] == 0
    if len(found) > 1:
        assert found[-1] == count - 1
        gaps = np.diff(found)
        assert gaps.min() >= 1
        assert gaps.max() - gaps.min() <= 1


def test_spaced_indices_of_small_cases() -> None:
    assert spaced(7, 3) == (0, 3, 6)
    assert spaced(7, 1) == (0,)
    assert spaced(2, 3) == (0, 1)
    assert spaced(0, 3) == ()
