"""What a window may know, as properties of generated series: the stored values with their gaps, through the filling
and the standardising, to the windows.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hrx.gift_eval import Dataset, UnusableSeries, Windows, cut
from hrx.gift_eval.series import StoredSeries
from hrx.gift_eval.windows import split, standardise
from hrx.records.quantities import Floats

quick = settings(max_examples=40, deadline=None)
ANYTHING = st.sampled_from([0.0, -1.0, 1e6, -1e6, 1e300, np.nan])


@dataclass(frozen=True)
class Case:
    """The stored values (C, T') of one item, and a setting that they admit."""

    stored: Floats
    lookback: int
    horizon: int
    windows: int
    seed: int

    @property
    def setting(self) -> tuple[int, int, int, int]:
        return self.lookback, self.horizon, self.windows, self.seed

    def dataset(self, stored: Floats | None = None, domain: str = "") -> Dataset:
        rows = [
            StoredSeries("T1", values, str(c)) for c, values in enumerate(self.stored if stored is None else stored)
        ]
        return Dataset("d/H", "H", 5, domain, len(rows), rows.__getitem__, variates=len(rows))

    def cut(self, stored: Floats | None = None) -> Windows:
        return cut(self.dataset(stored).read_item(0), *self.setting)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lookback, horizon = draw(st.integers(1, 30)), draw(st.integers(1, 20))
    length = lookback + horizon + draw(st.integers(5, 150))
    channels = draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    stored = random.normal(size=(channels, length)).cumsum(axis=1)
    stored[random.random(stored.shape) < draw(st.sampled_from([0, 0.05, 0.4]))] = np.nan
    # Both ends of what the statistics see are there, so that no series is empty, constant or late.
    stored[:, 0], stored[:, 1] = 50.0, -50.0
    assume(split(length, horizon) >= 2)
    return Case(stored, lookback, horizon, draw(st.integers(1, 6)), draw(st.integers(0, 9)))


@quick
@given(cases(), st.data())
def test_no_window_touches_its_own_future(case: Case, data: st.DataObject) -> None:
    before = case.cut()
    window = data.draw(st.integers(0, len(before.starts) - 1))
    changed = case.stored.copy()
    changed[:, before.starts[window] :] = data.draw(ANYTHING)
    after = case.cut(changed)
    assert np.array_equal(before.starts, after.starts)
    assert np.array_equal(before.x[: window + 1], after.x[: window + 1])
    assert np.array_equal(before.seasonal[: window + 1], after.seasonal[: window + 1])


@quick
@given(cases(), ANYTHING)
def test_no_statistic_sees_the_test_region(case: Case, anything: float) -> None:
    region = split(case.stored.shape[1], case.horizon)
    changed = case.stored.copy()
    changed[:, region:] = anything
    for channel in range(len(case.stored)):
        before, after = (case.dataset(stored).read(channel) for stored in (case.stored, changed))
        assert before.values.size == after.values.size
        one, other = standardise(before.values, region), standardise(after.values, region)
        assert (one.mean, one.std) == (other.mean, other.std)
        assert np.array_equal(one.values[:region], other.values[:region])


@quick
@given(cases())
def test_the_windows_of_an_item_are_those_of_its_variates_side_by_side(case: Case) -> None:
    assume(case.windows > 1)  # a single window of an item has a place of its own
    dataset, together = case.dataset(), case.cut()
    channels = len(case.stored)
    assert together.x.shape == (len(together.starts), case.lookback, channels)
    assert together.y.shape == together.seasonal.shape == (len(together.starts), case.horizon, channels)
    for channel in range(channels):
        alone = cut(dataset.read(channel), *case.setting)
        assert np.array_equal(alone.starts, together.starts)
        assert np.array_equal(alone.x, together.x[..., channel])
        assert np.array_equal(alone.y, together.y[..., channel])
        assert np.array_equal(alone.seasonal, together.seasonal[..., channel])


@quick
@given(cases(), st.data())
def test_filling_an_item_is_causal(case: Case, data: st.DataObject) -> None:
    cutoff = data.draw(st.integers(1, case.stored.shape[1] - 1))
    changed = case.stored.copy()
    changed[:, cutoff:] = data.draw(ANYTHING)
    before, after = (case.dataset(stored).read_item(0).values for stored in (case.stored, changed))
    assert np.array_equal(before[:, :cutoff], after[:, :cutoff])


def test_an_item_begins_where_all_its_variates_have_been_observed() -> None:
    nan = np.nan
    stored = np.array([[nan, 1, nan, 2, nan], [nan, nan, 5, nan, 6]])
    dataset = Case(stored, 1, 1, 1, 0).dataset()
    item = dataset.read_item(0)
    assert item.values.tolist() == [[1, 2, 2], [5, 5, 6]]
    # The first variate's value at the common start is filled in from before it.
    assert (item.missing, item.dropped) == ((2, 1), 2)
    assert (item.item, item.names, item.label) == ("T1", ("0", "1"), "d/H series T1")
    assert (dataset.read(0).item, dataset.read(0).dropped, dataset.read(1).dropped) == ("T1[0]", 1, 2)


def test_an_item_whose_variates_do_not_fit_together_is_unusable_and_says_which() -> None:
    case = Case(np.array([[1.0, 2, 3], [np.nan] * 3]), 1, 1, 1, 0)
    with pytest.raises(UnusableSeries, match=r"d/H series T1: variate 1: all 3 values are missing"):
        case.dataset().read_item(0)
    flat = Case(np.stack([np.arange(50.0), np.ones(50)]), 5, 5, 1, 0)
    with pytest.raises(UnusableSeries, match=r"d/H series T1: variate 1: .*constant before its test region"):
        flat.cut()
    rows = [StoredSeries("T1", np.arange(3.0), "0"), StoredSeries("T1", np.arange(4.0), "1")]
    ragged = Dataset("d/H", "H", 5, "", 2, rows.__getitem__, variates=2)
    with pytest.raises(UnusableSeries, match=r"different lengths, 3 to 4 values"):
        ragged.read_item(0)
    with pytest.raises(IndexError, match="1 items; there is no number 1"):
        ragged.read_item(1)


def test_the_fingerprint_of_an_item_depends_on_its_variates_names_and_values() -> None:
    stored = np.arange(6.0).reshape(2, 3)
    base = Case(stored, 1, 1, 1, 0).dataset().read_item(0)
    again = Case(stored, 1, 1, 1, 0).dataset(domain="x").read_item(0)
    other = Case(stored[::-1], 1, 1, 1, 0).dataset().read_item(0)
    assert base.fingerprint == again.fingerprint != other.fingerprint
    with pytest.raises(ValueError, match="read-only"):
        base.values[0, 0] = 1
