"""Runs with covariates, and runs of another output than the point forecast: their records, keys and admission."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.linear import LinearChannels
from helpers.tiny import series as random_windows

from hrx.adapters import Forecaster, Limits, from_module
from hrx.adapters.inputs import POINT, Inputs, Output, Role
from hrx.audit import Protocol
from hrx.audit.admission import CHECK_NAMES
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.channels import bind
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import estimate_model, measure_run
from hrx.audit.runner.worker import Admit, WorkerContext, WorkerSettings
from hrx.gift_eval import Dataset, Series
from hrx.gift_eval.covariates import CovariateSeries
from hrx.gift_eval.series import Covariate
from hrx.gift_eval.windows import statistics
from hrx.records.channels import from_json
from hrx.records.record import DONE, EXCLUDED, Record

L, H, T = 16, 9, 300


def series(covariates: bool = True) -> Series:
    draw = np.random.default_rng(0)
    price, temp = draw.standard_normal(T), 5 * draw.standard_normal(T + 12)
    flag = (np.arange(T + 12) % 7 == 0).astype(np.float64)
    beside = (
        Covariate("price", "past", price),
        Covariate("temp", "future", temp),
        Covariate("holiday", "future", flag),
        Covariate("area", "static", np.array([2.0]), others=(1.0, 2.0, 5.0)),
    )
    values = 3 + 2 * draw.standard_normal(T)
    return Series("made", "one", "H", 24, "", values, 0, names=("load",), covariates=beside if covariates else ())


def model(**options: int) -> LinearChannels:
    """Reads the target as means of it, so that it forecasts alike in every unit."""
    linear = LinearChannels(L, H, **({"past": 1, "future": 2, "static": 1} | options))
    target = linear.weights["target"]
    target -= (target.sum(dim=-1, keepdim=True) - 1) / L
    return linear


def planned(of: Series, protocol: Protocol | None = None, output: Output = POINT, windows: int = 2) -> Run:
    dataset = Dataset("made", "H", 24, "", 1, row=lambda index: None)
    identity = model().identity
    return Run(
        identity, dataset, of, 0, Setting(L, H), 0, windows, protocol or Protocol(draws=2, scored=4), output=output
    )


def measured(forecaster: Forecaster, run: Run) -> Record:
    record = measure_run(forecaster, run, MemoryBudget()).record
    assert record.status == DONE, record.reason
    return record


def test_a_record_holds_what_each_channel_does_and_errors_on_the_scale_of_the_target() -> None:
    linear, run = model(), planned(series())
    linear.weights["past"][:] = 0
    record = measured(linear, run)
    assert json.loads(record.roles) == {
        "target": ["load"], "past": ["price"], "future": ["temp", "holiday"], "static": ["area"]
    }  # fmt: skip
    found = {one.name: one for one in from_json(record.channel_effects)}
    assert [(one.name, one.role, one.kind) for one in found.values()] == [
        ("load", "target", "number"),
        ("price", "past", "number"),
        ("temp", "future", "number"),
        ("holiday", "future", "two-valued"),
        ("area", "static", "two-valued"),
    ]
    assert [name for name, one in found.items() if not one.read] == ["price"]
    steps = json.loads(record.scored_steps)
    assert all(len(one.effect) == len(steps) == 4 for one in found.values())
    assert sum(one.share for one in found.values()) == pytest.approx(1, abs=1e-4)
    weights = linear.weights["future"][0, :, 0].abs().sum(dim=1).numpy()[steps]
    scale = np.std(run.series.covariates[1].values[: T - 60])  # type: ignore[union-attr]
    np.testing.assert_allclose(found["temp"].sensitivity, weights * scale, rtol=1e-4)  # type: ignore[arg-type]
    assert found["holiday"].sensitivity is None
    assert found["load"].errors is None
    assert set(found["price"].errors or {}) == {"as_is", "rearranged", "erased", "withheld"}

    data = CovariateSeries(run.series)  # type: ignore[arg-type]
    cut, (_, (std,)) = data.region(L, H, 64), statistics(data.series, H)
    arrays = {role: torch.as_tensor(values) for role, values in cut.arrays.items()}
    forecast = sum(
        torch.einsum("hcl,blc->bh", linear.weights[role][0], values[:, None] if values.ndim == 2 else values)
        for role, values in arrays.items()
    )
    off = (forecast.numpy() - cut.truth[..., 0]) / std  # type: ignore[union-attr]
    assert record.mse == pytest.approx(np.mean(off**2), rel=1e-4)
    assert record.variance == pytest.approx(np.var(forecast.numpy()) / std**2, rel=1e-4)  # type: ignore[union-attr]
    assert record.mse_last == pytest.approx(
        np.mean(((cut.arrays["target"][:, -1] - cut.truth[..., 0]) / std) ** 2), rel=1e-6
    )
    assert record.g_margin == pytest.approx(record.g_own - record.g_shuffled)
    assert record.g_margin_channel is not None
    assert (record.channels, record.output) == (5, "point")
    assert record.effective_lookback <= L


def test_an_idle_covariate_changes_no_forecast_but_is_listed() -> None:
    linear = model()
    for role in ("past", "future", "static"):
        linear.weights[role][:] = 0
    with_covariates, without = (measured(linear, planned(series(given))) for given in (True, False))
    assert with_covariates.mse == pytest.approx(without.mse, rel=1e-5)
    assert without.roles is None
    assert without.channel_effects is None
    read = {one.name for one in from_json(with_covariates.channel_effects) if one.read}
    assert read == {"load"}


def test_a_model_that_takes_no_covariates_is_measured_on_the_target_and_the_record_says_what_is_left_out() -> None:
    torch.manual_seed(0)
    plain = from_module(torch.nn.Linear(L, H), scale="standardised")
    alone, beside = (measured(plain, planned(series(given))) for given in (False, True))
    assert (beside.g_margin, beside.mse, beside.rank) == (alone.g_margin, alone.mse, alone.rank)
    assert beside.roles is None
    assert json.loads(beside.channels_left_out) == {
        "price": "takes no past covariates: drop price",
        "temp": "takes no future covariates: drop temp, holiday",
        "holiday": "takes no future covariates: drop temp, holiday",
        "area": "takes no static covariates: drop area",
    }


def test_roles_that_a_model_does_not_take_are_left_out_alone() -> None:
    linear = model()
    linear.inputs = replace(linear.inputs, past=Role())
    del linear.weights["past"]
    record = measured(linear, planned(series()))
    assert set(json.loads(record.roles)) == {"target", "future", "static"}
    assert set(json.loads(record.channels_left_out)) == {"price"}


def test_a_covariate_that_the_model_needs_and_the_series_lacks_excludes_the_run() -> None:
    linear = model()
    linear.inputs = Inputs(past=Role("required", ("wind",)))
    record = measure_run(linear, planned(series()), MemoryBudget()).record
    assert record.status == EXCLUDED
    assert record.reason == "linear-channels needs its past covariates: wind"
    linear.inputs = replace(model().inputs, past=Role("optional"))
    gap = series()
    price = gap.covariates[0].values.copy()
    price[-30] = np.nan
    gap = replace(gap, covariates=(gap.covariates[0]._replace(values=price), *gap.covariates[1:]))
    record = measure_run(linear, planned(gap, windows=4), MemoryBudget()).record
    assert record.reason.startswith("linear-channels takes no missing values of past covariates, but in window ")
    assert record.reason.endswith(": fill them in, or drop price")


def test_a_model_that_cannot_read_a_series_alone_is_run_with_its_covariates() -> None:
    needs = Limits(needs="needs its exogenous columns")
    assert planned(series()).limits(needs).refusal(L, H) is None
    assert planned(series(False)).limits(needs).refusal(L, H) == "needs its exogenous columns"
    linear, run = model(), planned(series())
    linear.limits = needs
    assert measured(linear, run).roles
    assert estimate_model(linear, {run.setting: [run]}, MemoryBudget())[run.setting].refusal == ""


def test_the_key_holds_roles_and_output_and_that_of_a_univariate_run_stays() -> None:
    run, alone = planned(series()), planned(series(False))
    covariates = series().covariates
    other_role = replace(series(), covariates=(covariates[0]._replace(role="static"), *covariates[1:]))
    keys = {run.key, alone.key, planned(other_role).key, planned(series(False), output=Output((0.9,))).key}
    assert len(keys) == 4
    assert replace(alone, output=POINT).key == alone.key
    assert (alone.bound, bool(run.bound)) == ("", True)


def test_an_output_is_explained_under_the_variance_and_the_errors_of_the_point_forecast() -> None:
    linear = model(past=0, future=0, static=0)
    point, high = (measured(linear, planned(series(False), output=one)) for one in (POINT, Output((0.9,))))
    assert high.output == "0.9"
    assert high.mse == pytest.approx(point.mse, rel=1e-5)
    assert high.variance == pytest.approx(point.variance, rel=1e-4)
    assert high.g_margin == pytest.approx(point.g_margin, rel=1e-3, abs=1e-5)  # a shifted forecast has the same rows
    record = measure_run(linear, planned(series(False), output=Output(("mean",))), MemoryBudget()).record
    assert record.reason == "linear-channels gives no mean"


def test_all_admission_checks_are_made_on_windows_of_the_channels() -> None:
    class Context(WorkerContext):
        def model(self, key: object) -> Forecaster:
            return model()

        def refuse_changed(self, key: object) -> None:
            pass

    context, run = Context(WorkerSettings({}, 2**30)), planned(series())
    checks = Admit(run, random_windows(2, L)).run_in(context)
    assert {check.check for check in checks} == CHECK_NAMES
    assert all(check.passed for check in checks), checks


def test_a_dry_run_counts_the_forecasts_of_the_channels() -> None:
    run = planned(series())
    bound = bind(model(), run)
    assert bound
    # Unperturbed; blocks and rearrangements of three channels, and of two known ahead their parts too; values of the
    # flag and the static channel; four treatments but one of four channels.
    assert bound.forecasts == 1 + 3 * 16 + 2 * 32 + (L + H + 1) + 4 * (8 + 3)
    cost = estimate_model(model(), {run.setting: [run]}, MemoryBudget())[run.setting]
    assert cost.seconds is not None, cost
