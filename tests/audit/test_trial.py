"""Accelerations on trial: what keeps one on, what switches it off, and what is said of it."""

import copy
import json
from functools import partial
from typing import Any

import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import Forecaster, from_module
from hrx.adapters.acceleration import Accelerated, obstacle
from hrx.adapters.gradients import relative_difference
from hrx.audit import trial
from hrx.audit.admission.checks import EQUIVALENCE_LIMIT
from hrx.audit.memory import Budget
from hrx.audit.trial import ROWS, ROWS_LIMIT, Comparison, decide, try_out, varied
from hrx.audit.way import Wanted, choose

HORIZON = 8


class Slope(torch.autograd.Function):
    """The identity with another derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.slope = slope
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:
        return ctx.slope * given[0], None


class Curve(torch.nn.Module):
    """`sin` of a linear layer. A copy of it may be `bent` (other forecasts) or have another `slope` (other rows)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(32, HORIZON)
        self.bent, self.slope = 0.0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(self.layer(x)) * (1 + self.bent)
        return Slope.apply(y, self.slope) if self.slope != 1 else y


@pytest.fixture
def tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is the processor, on which everything is faster."""
    monkeypatch.setattr(trial, "obstacle", lambda acceleration, device: "")
    monkeypatch.setattr(trial, "Accelerated", partial(Accelerated, device="cpu"))
    monkeypatch.setattr(trial._Bench, "speed", lambda self, model, without: 2.0)


def moved(monkeypatch: pytest.MonkeyPatch, **changes: float) -> Forecaster:
    """A model of which every copy on another device differs."""
    model = from_module(Curve())

    def converted(convert: object) -> Forecaster:
        other = copy.copy(model)
        other.predictor = copy.deepcopy(model.predictor)
        vars(other.predictor).update(changes)
        return other

    monkeypatch.setattr(model, "converted", converted, raising=False)
    return model


def tried(model: Forecaster, *wanted: Any) -> trial.Tried:
    return try_out(model, series(3, 32), HORIZON, wanted, Budget())


def test_an_acceleration_is_kept_where_everything_is_within_its_limit_and_faster() -> None:
    within = [Comparison("forecasts", 0.9 * EQUIVALENCE_LIMIT), Comparison(ROWS, 0.9 * ROWS_LIMIT)]
    assert decide("cuda", within, 1.01) == trial.Trial("cuda", True, 0.9 * EQUIVALENCE_LIMIT, 1.01, "")


@pytest.mark.parametrize(
    ("figures", "speed", "note"),
    [
        ((1.1e-5, 0.0), 2.0, "forecasts differ by 1.1e-05, more than 1e-05"),
        ((float("nan"), 0.0), 2.0, "forecasts differ by nan, more than 1e-05"),
        ((float("inf"), 0.0), 2.0, "forecasts differ by inf, more than 1e-05"),
        ((0.0, 1.1e-4), 2.0, "rows of the Jacobian differ by 0.00011, more than 1e-04"),
        ((2e-5, 9e-4), 2.0, "rows of the Jacobian differ by 0.0009, more than 1e-04"),
        ((0.0, 0.0), 1.0, "no faster: 1 times"),
        ((0.0, 0.0), 0.41, "no faster: 0.41 times"),
    ],
)
def test_it_is_off_with_the_worst_reason_where_one_of_them_is_not(
    figures: tuple[float, float], speed: float, note: str
) -> None:
    forecasts, rows = figures
    found = decide("bf16", [Comparison("forecasts", forecasts), Comparison(ROWS, rows)], speed)
    assert not found.kept
    assert found.note == note


@pytest.mark.usefixtures("tried_here")
def test_a_copy_that_computes_the_same_is_kept_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = moved(monkeypatch)
    found = tried(model, "cuda")
    assert isinstance(found.model, Accelerated)
    assert found.model.accelerations == ("cuda",)
    assert found.trials == (trial.Trial("cuda", True, 0.0, 2.0, ""),)


@pytest.mark.usefixtures("tried_here")
def test_a_copy_with_other_forecasts_is_off_and_the_model_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model = moved(monkeypatch, bent=1e-3)
    found = tried(model, "cuda")
    assert found.model is model
    assert found.trials[0].parity == pytest.approx(1e-3, rel=1e-2)
    assert "differ by 0.001" in found.trials[0].note


@pytest.mark.usefixtures("tried_here")
def test_a_copy_that_forecasts_no_numbers_is_off_and_told_in_json_that_every_reader_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = moved(monkeypatch, bent=float("nan"))
    chosen = choose(model, series(3, 32), HORIZON, Wanted(accelerations=("cuda",)), Budget()).way
    assert chosen.accelerations == ()
    assert chosen.notes == ("cuda is off: forecasts differ by inf, more than 1e-05.",)
    (told,) = json.loads(str(chosen.probe), parse_constant=pytest.fail)["accelerations"]
    assert told["parity"] is None


@pytest.mark.usefixtures("tried_here")
def test_a_copy_with_the_same_forecasts_and_other_rows_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model = moved(monkeypatch, slope=1.01)
    found = tried(model, "cuda")
    assert found.model is model
    assert found.trials[0].parity is not None
    assert found.trials[0].parity <= 1e-6
    assert found.trials[0].note == "rows of the Jacobian differ by 0.01, more than 1e-04"


@pytest.mark.usefixtures("tried_here")
def test_an_acceleration_that_raises_is_off_with_what_it_raised_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = from_module(lambda x: x[:, :HORIZON] * 2, name="a function")
    found = tried(model, "cuda", "compile")
    assert [one.acceleration for one in found.trials] == ["cuda", "compile"]
    assert "has no module that could be moved" in found.trials[0].note
    assert found.trials[1].kept
    assert isinstance(found.model, Accelerated)
    assert found.model.accelerations == ("compile",)


def test_what_the_machine_cannot_do_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def no(acceleration: str, device: str) -> str:
        asked.append((acceleration, device))
        return f"no {acceleration}"

    monkeypatch.setattr(trial, "obstacle", no)
    model = from_module(Curve())
    found = tried(model, "compile", "cuda")
    assert asked == [("cuda", "cpu"), ("compile", "cpu")]
    assert found.model is model
    assert [(one.kept, one.parity, one.speed, one.note) for one in found.trials] == [
        (False, None, None, "no cuda"),
        (False, None, None, "no compile"),
    ]


def test_bf16_is_tried_on_the_device_that_was_kept(monkeypatch: pytest.MonkeyPatch, tried_here: None) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(trial, "obstacle", lambda one, device: asked.append((one, device)) or "")
    found = tried(moved(monkeypatch), "cuda", "bf16")
    assert asked == [("cuda", "cpu"), ("bf16", "cuda")]
    assert [one.kept for one in found.trials] == [True, False]


def test_bf16_is_off_on_a_model_whose_forecasts_it_rounds() -> None:
    if reason := obstacle("bf16"):
        pytest.skip(reason)
    found = tried(from_module(Curve()), "bf16")
    (one,) = found.trials
    assert not one.kept
    assert one.parity is not None
    assert one.parity > EQUIVALENCE_LIMIT
    assert "differ by" in one.note


def test_where_nothing_is_wanted_nothing_is_forecast() -> None:
    def never(x: Tensor) -> Tensor:
        raise AssertionError("forecast")

    model = from_module(never)
    assert tried(model) == trial.Tried(model, ())


def test_compared_forecasts_are_of_the_windows_and_of_a_batch_that_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    model = from_module(Curve())
    bench = trial._Bench(model, series(3, 32), HORIZON, Budget())
    sizes = [len(x) for _, x, _ in bench._expected]
    assert sizes[0] == 3 < sizes[1]
    assert len(bench.batch) <= sizes[1]
    off = from_module(lambda x: model.predictor(x) * (1 + 1e-3 * (len(x) > 3)))  # type: ignore[operator]
    found = {one.what: one.figure for one in bench.compare(Accelerated(off, []), "compile")}
    assert found["forecasts"] == 0
    assert found["forecasts of a larger batch"] == pytest.approx(1e-3, rel=1e-2)


def test_the_windows_of_a_larger_batch_are_all_different_and_of_the_right_number() -> None:
    x = series(3, 32)
    for size in (1, 3, 7, 100):
        made = varied(x, size)
        assert made.shape == (size, 32)
        assert len(torch.unique(made, dim=0)) == size


def test_speed_is_the_ratio_of_the_fastest_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    model = from_module(Curve())
    bench = trial._Bench(model, series(2, 32), HORIZON, Budget())
    quick, slow = from_module(Curve(), name="quick"), from_module(Curve(), name="slow")
    turns = {"quick": iter([9.0, 0.5, 7.0, 8.0, 2.0]), "slow": iter([3.0, 4.0, 1.5, 9.0, 9.0])}
    monkeypatch.setattr(bench, "_seconds", lambda one: next(turns[one.identity.model]))
    assert bench.speed(quick, slow) == 3.0


def test_a_compiled_model_that_is_kept_forecasts_within_the_limit() -> None:
    if reason := obstacle("compile"):
        pytest.skip(reason)
    model, x = from_module(Curve()), series(5, 32)
    found = tried(model, "compile")
    (one,) = found.trials
    assert one.parity is not None
    assert one.parity <= EQUIVALENCE_LIMIT
    assert one.speed is not None
    assert one.kept == (one.speed > 1)
    with torch.no_grad():
        assert relative_difference(found.model.forward(x, HORIZON), model.official(x, HORIZON)) <= EQUIVALENCE_LIMIT


def test_a_model_that_refuses_a_larger_batch_is_told_and_goes_on_without(tried_here: None) -> None:
    def picky(x: Tensor) -> Tensor:
        if len(x) > 4:
            raise ValueError("too many windows")
        return x[:, :HORIZON] * 2

    model = from_module(picky)
    found = tried(model, "bf16")
    assert found.model is model
    assert [(one.kept, one.note) for one in found.trials] == [(False, "ValueError: too many windows")]
