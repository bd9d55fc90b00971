"""The needed context: how short the lookback can be, by replacing older values and by really cutting it."""

import json
import math
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
import torch
from helpers.tiny import series
from hypothesis import given, settings
from hypothesis import strategies as st

from hrx.adapters import Forecaster, Identity, Limits, from_module
from hrx.audit import Protocol
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import measure_run
from hrx.audit.scoring.deletion import replacements
from hrx.audit.scoring.needed_context import needed_context
from hrx.errors import ProtocolError
from hrx.gift_eval import Dataset, Series, cut_region
from hrx.gift_eval.windows import seasonal_error, split, standardise
from hrx.records.context import context_from_columns, kept_contexts, mean_context, shortest_within
from hrx.records.merge import differences
from hrx.records.quantities import Skill
from hrx.records.record import DONE, NAMES, Record

LOOKBACK, HORIZON = 64, 6


def reader(count: int, limits: Limits | None = None) -> Forecaster:
    """Reads the last `count` values and nothing else, from a lookback of any length."""
    weight = weights(count)
    return from_module(
        lambda x: x[:, -count:] @ weight[-x.shape[1] :], name=f"last {count}", limits=limits, scale="standardised"
    )


def weights(count: int) -> torch.Tensor:
    """`(count, H)`, the largest on the oldest value, so that leaving it out alone changes the forecasts."""
    weight = torch.rand(count, HORIZON, generator=torch.Generator().manual_seed(count)) + 0.5
    weight[0] = 3.0 + count**0.5
    return weight


@settings(deadline=None)
@given(st.integers(1, 2000))
def test_the_grid_holds_halves_and_three_quarters_of_the_lookback_down_to_one(lookback: int) -> None:
    expected, size = {lookback}, float(lookback)
    while size >= 0.5:
        expected |= {max(1, math.floor(size + 0.5)), max(1, math.floor(0.75 * size + 0.5))}
        size /= 2
    contexts = kept_contexts(lookback).tolist()
    assert contexts == sorted(expected | {1}, reverse=True)
    assert all(longer <= 2 * shorter for longer, shorter in pairwise(contexts))


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(0, 0.03), st.just(math.nan)), min_size=1, max_size=12))
def test_a_context_is_enough_only_where_every_longer_one_is(changes: list[float]) -> None:
    change = np.array([0.0, *changes])
    contexts = np.arange(len(change), 0, -1)
    enough = [at for at in range(len(change)) if all(change[longer] <= 0.01 for longer in range(at + 1))]
    assert shortest_within(contexts, change, 0.01) == enough[-1]


@pytest.mark.parametrize(("count", "on_grid"), [(1, 1), (7, 8), (8, 8), (33, 48), (LOOKBACK, LOOKBACK)])
def test_a_model_that_reads_the_last_values_needs_exactly_those(count: int, on_grid: int) -> None:
    model, x = reader(count), series(4, LOOKBACK)
    coarse = needed_context(model, x, HORIZON)
    assert (coarse.needed, coarse.outcome) == (on_grid, "whole" if on_grid == LOOKBACK else "holds")
    fine = needed_context(model, x, HORIZON, kept=np.arange(1, LOOKBACK))
    assert fine.needed == count
    assert fine.next_shorter == (count - 1 or None)
    assert (fine.change[: LOOKBACK - count + 1] < 1e-12).all()
    assert fine.shortest_cut is not None
    assert fine.shortest_cut.lookback == count


def test_the_bound_is_a_setting_and_a_looser_one_needs_less() -> None:
    model, x = from_module(lambda x: (x * torch.linspace(0.1, 1, x.shape[1])).cumsum(1)[:, -HORIZON:]), series(4, 64)
    needed = [needed_context(model, x, HORIZON, protocol=Protocol(context_bound=b)).needed for b in (0.001, 0.1, 10.0)]
    assert needed[0] > needed[1] > needed[2] == 1


@pytest.mark.parametrize("kind", ["antithetic", "paired"])
def test_both_curves_agree_with_their_definitions(kind: str) -> None:
    weight = torch.randn(HORIZON, LOOKBACK, generator=torch.Generator().manual_seed(1))
    model = from_module(lambda x: torch.tanh(x @ weight[:, -x.shape[1] :].T) + x.mean(dim=1, keepdim=True))
    x, y = series(3, LOOKBACK), torch.randn(3, HORIZON)
    protocol = Protocol(draws=4, draws_kind=kind, seed=5)  # type: ignore[arg-type]

    def errors(forecast: torch.Tensor) -> Skill:
        mse = float((forecast - y).square().mean())
        return Skill(mse, mae=math.nan, mse_zero=math.nan, mse_last=math.nan, mse_seasonal=math.nan)

    found = needed_context(model, x, HORIZON, errors=errors, protocol=protocol, stream=7)

    def forecast(window: torch.Tensor) -> np.ndarray:
        return model.forward(window[None], HORIZON)[0].double().numpy()

    full = [forecast(window) for window in x]
    variance = np.var(np.stack(full))
    drawn = replacements(x, protocol, 7, 0, 4, 1)[:, 0]
    for at, kept in enumerate(found.kept.tolist()):
        changes = []
        for w, window in enumerate(x):
            for d in range(4):
                perturbed = window.clone()
                for position in range(LOOKBACK - kept):
                    perturbed[position] = drawn[w, d, position]
                changes += [(a - b) ** 2 for a, b in zip(forecast(perturbed), full[w], strict=True)]
        assert found.change[at] == pytest.approx(fmean(changes) / variance, rel=1e-4, abs=1e-9)
        cut = [forecast(window[LOOKBACK - kept :]) for window in x]
        assert found.lookbacks[at] == kept
        by_cutting = fmean(
            (a - b) ** 2 for one, other in zip(cut, full, strict=True) for a, b in zip(one, other, strict=True)
        )
        assert found.cut_change[at] == pytest.approx(by_cutting / variance, rel=1e-4, abs=1e-9)
        assert found.mse[at] == pytest.approx(np.mean((np.stack(cut) - y.numpy()) ** 2), rel=1e-4)


def test_a_model_that_needs_old_values_without_reading_them_fails_the_check() -> None:
    """The forecast depends on the length of the window, as with positions counted from its start, or padding."""
    tail = reader(8)
    model = from_module(lambda x: tail.forward(x, HORIZON) + 0.2 * x.shape[1], limits=Limits(padded_to=LOOKBACK))
    found = needed_context(model, series(4, LOOKBACK), HORIZON)
    assert (found.needed, found.outcome, found.padded_to) == (8, "fails", LOOKBACK)
    assert found.check is not None
    variance = float(model.forward(series(4, LOOKBACK), HORIZON).double().var(correction=0))
    assert found.check.change == pytest.approx((0.2 * 56) ** 2 / variance, rel=1e-4)
    assert found.shortest_cut is not None
    assert found.shortest_cut.lookback == LOOKBACK


def test_the_cut_respects_the_lookbacks_that_the_model_takes() -> None:
    limits = Limits(shortest_lookback=10, lookback_multiple=16)
    found = needed_context(reader(8, limits), series(4, LOOKBACK), HORIZON)
    assert found.kept.tolist() == [64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1]
    assert found.lookbacks.tolist() == [64, 48, 32, 32, *[16] * 8]
    assert found.check is not None
    assert (found.needed, found.check.lookback, found.outcome) == (8, 16, "holds")


@pytest.mark.parametrize("declared", [True, False])
def test_a_model_of_one_lookback_is_not_cut_and_says_why(declared: bool) -> None:
    layer = torch.nn.Linear(LOOKBACK, HORIZON)
    with torch.no_grad():
        layer.weight[:, :-8] = 0
    model = from_module(layer, limits=Limits(lookbacks=(LOOKBACK,)) if declared else None)
    found = needed_context(model, series(4, LOOKBACK), HORIZON)
    assert (found.needed, found.outcome, found.check, found.shortest_cut) == (8, "impossible", None, None)
    assert ("a lookback of 48: RuntimeError" in found.refusal) != declared
    stored = found.columns()
    assert stored["context_cut_change"] is stored["context_time_ratio"] is stored["context_shortest_cut"] is None


def test_contexts_beyond_the_lookback_are_refused() -> None:
    with pytest.raises(ProtocolError, match="between 1 and the lookback 64"):
        needed_context(reader(8), series(4, LOOKBACK), HORIZON, kept=np.array([65]))
    with pytest.raises(ProtocolError, match="context_bound=0 must be above 0"):
        Protocol(context_bound=0)


def test_a_multivariate_window_loses_old_values_in_all_channels() -> None:
    model = from_module(lambda x: x[:, -HORIZON:].cumsum(dim=1) * 1.5, limits=Limits(multivariate=True))
    x = series(6, LOOKBACK).reshape(2, 3, LOOKBACK).transpose(1, 2)
    assert needed_context(model, x, HORIZON).needed == HORIZON == 6


def planned(protocol: Protocol, seed: int = 0) -> Run:
    one = Series("synthetic/H", "one", "H", 24, "", series(1, 600)[0].double().numpy(), 0)
    dataset = Dataset("synthetic/H", "H", 24, "", 1, row=lambda index: None)  # type: ignore[arg-type, return-value]
    return Run(Identity("tail", "module", "t", "0", "torch"), dataset, one, 0, Setting(40, HORIZON), seed, 1, protocol)


def measured(protocol: Protocol, seed: int = 0) -> Record:
    # A little of the length of the window, so that the errors from a cut lookback differ.
    tail = reader(8)
    forecast = lambda x: 0.1 * tail.forward(x, HORIZON) + 0.001 * x.shape[1]  # noqa: E731
    model = from_module(forecast, scale="standardised")
    record = measure_run(model, planned(protocol, seed), MemoryBudget()).record
    assert record.status == DONE, record.reason
    return record


def test_a_record_holds_the_needed_context_and_the_errors_from_the_cut_lookback() -> None:
    protocol = Protocol(draws=2, context=True, context_bound=0.05, context_windows=5)
    record = measured(protocol)
    run = planned(protocol)
    assert (record.context_needed, record.context_lookback, record.context_windows_used) == (8, 8, 5)
    assert isinstance(run.series, Series)
    windows = cut_region(run.series, 40, HORIZON, 5)
    region = split(600, HORIZON)
    past = standardise(run.series.values, region).values[:region]
    scale = seasonal_error(past[:, None], 24)[0]
    for length, mse, mase in (
        (40, record.context_mse, record.context_mase),
        (8, record.context_cut_mse, record.context_cut_mase),
    ):
        wrong = 0.1 * windows.x[:, -8:] @ weights(8).numpy() + 0.001 * length - windows.y
        assert mse == pytest.approx(np.mean(wrong**2), rel=1e-4)
        assert mase == pytest.approx(np.mean(np.abs(wrong)) / scale, rel=1e-4)
    assert record.context_cut_change == pytest.approx(0.032**2 / record.variance, rel=1e-3)  # type: ignore[operator]
    again = context_from_columns({name: getattr(record, name) for name in NAMES})
    stored = again.columns()
    assert {name: getattr(record, name) for name in stored} == stored


def test_the_needed_context_changes_no_other_number_and_is_measured_on_request_only() -> None:
    plain, swept = measured(Protocol(draws=2)), measured(Protocol(draws=2, context=True))
    times = {"key", "created", "seconds", "forward_seconds", "matrix_seconds"}
    for name in NAMES:
        if name.startswith("context"):
            assert (getattr(plain, name) in (None, 0)) is True
        elif name not in times:
            assert getattr(plain, name) == getattr(swept, name), name


def test_seeds_of_a_series_share_its_needed_context_and_a_second_measurement_agrees() -> None:
    protocol = Protocol(draws=2, context=True)
    first, other, again = measured(protocol), measured(protocol, seed=1), measured(protocol)
    assert first.context_curves == other.context_curves
    assert differences(first, again) == []
    curves = json.loads(str(first.context_curves))
    curves["change"][3] += 0.5
    changed = differences(first, again.updated(context_curves=json.dumps(curves), context_time_ratio=9.0))
    assert [one.column for one in changed] == ["context_curves"]


def test_the_key_of_a_run_depends_on_the_context_only_where_it_is_measured() -> None:
    keys = [
        planned(Protocol(context=context, context_bound=bound)).key
        for context in (False, True)
        for bound in (0.01, 0.1)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_the_mean_of_several_series_decides_and_their_times_add_up() -> None:
    few, many = (needed_context(reader(count), series(4, LOOKBACK), HORIZON) for count in (3, 30))
    mean = mean_context([few, many])
    np.testing.assert_allclose(mean.change, (few.change + many.change) / 2)
    assert (few.needed, mean.needed, many.needed) == (3, 32, 32)
    np.testing.assert_allclose(mean.full_seconds, few.full_seconds + many.full_seconds)
    assert mean.windows == 8
