"""Forecasters without derivatives: functions of arrays and of frames, samplers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import hrx
from hrx.adapters.inputs import Layout, Window
from hrx.adapters.wrapped import Bound
from hrx.audit.admission import admit
from hrx.audit.attribution.explanation import explain
from hrx.errors import HrxError

LOOKBACK, HORIZON = 24, 6
WEIGHTS = np.random.default_rng(3).normal(size=(LOOKBACK, HORIZON))
SERIES = np.random.default_rng(0).normal(size=200).cumsum()


def linear(x: np.ndarray) -> np.ndarray:
    return x @ WEIGHTS


def noisy(x: np.ndarray, horizon: int, seed: int) -> np.ndarray:
    """Random numbers that depend on the place of a window in the batch, as those of most samplers do."""
    return x @ WEIGHTS + np.random.default_rng(seed).normal(size=(len(x), horizon))


@pytest.mark.parametrize("estimator", ["occlusion", "shapley_segments", "winit"])
def test_a_function_of_arrays_is_explained_like_the_same_module(estimator: str) -> None:
    module = torch.nn.Linear(LOOKBACK, HORIZON, bias=False)
    module.weight.data = torch.tensor(WEIGHTS.T, dtype=torch.float32)
    how: dict[str, Any] = {"horizon": HORIZON, "lookback": LOOKBACK, "estimator": estimator}
    boxed = hrx.explain(hrx.from_callable(linear), SERIES, **how)
    expected = hrx.explain(module, SERIES, **how)
    np.testing.assert_allclose(boxed.matrix, expected.matrix, rtol=1e-4, atol=1e-5)
    assert boxed.score().g_margin == pytest.approx(expected.score().g_margin, rel=1e-3)


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [
        (None, None),
        ("occlusion", '{"spans": 5, "replacement": "mean"}'),
        ("shapley_segments", None),
        ("shapley_segments", '{"segments": 20}'),
        ("winit", None),
    ],
)
def test_the_cost_that_is_told_first_is_the_number_of_forecasts(
    estimator: str | None, settings: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes: list[int] = []

    def counting(x: np.ndarray) -> np.ndarray:
        sizes.append(len(x))
        return linear(x)

    model = hrx.from_callable(counting)
    hrx.explain(model, SERIES, HORIZON, lookback=LOOKBACK, estimator=estimator, settings=settings)
    counted = sum(sizes) - 2  # without the forecast that is shown, and the one it is checked by
    told, time = capsys.readouterr().err.rsplit(", ", 1)
    assert told == f"{counted} forecasts by counting (black box)"
    assert time.startswith(("less than 1 s", "about "))  # a busy machine needs longer


def test_a_gradient_estimator_is_refused_with_those_that_need_none() -> None:
    with pytest.raises(HrxError, match=r"linear \(black box\) has no derivatives.*Choose occlusion"):
        hrx.explain(hrx.from_callable(linear), SERIES, HORIZON, lookback=LOOKBACK, estimator="input_gradient")
    with pytest.raises(HrxError, match="has no derivatives"):
        explain(hrx.from_callable(linear), torch.randn(1, LOOKBACK), HORIZON, estimator="dynamask")


def test_a_function_of_a_user_explains_a_black_box() -> None:
    def first_difference(forward: Callable[..., Any], x: torch.Tensor, step: int) -> torch.Tensor:
        moved = x[:, None] + torch.eye(x.shape[1])
        return (forward(moved.flatten(0, 1))[:, step - 1].reshape(len(x), -1) - forward(x)[:, step - 1, None]).abs()

    x = hrx.explain(
        hrx.from_callable(linear), SERIES, HORIZON, lookback=LOOKBACK, steps=[2], estimator=first_difference
    )
    np.testing.assert_allclose(x.matrix[0, 0], np.abs(WEIGHTS[:, 1]), rtol=1e-3)


def test_a_function_of_frames_gets_every_channel_in_its_place() -> None:
    seen: list[tuple[pd.DataFrame, pd.DataFrame]] = []

    def f(past: pd.DataFrame, ahead: pd.DataFrame) -> pd.Series:
        seen.append((past, ahead))
        return ahead["temp"] * 2 + ahead["shop"]

    draw = torch.Generator().manual_seed(0)
    window = Window(
        torch.randn(2, 4, 1, generator=draw),
        torch.randn(2, 4, 1, generator=draw),
        torch.randn(2, 7, 1, generator=draw),
        torch.tensor([[5.0], [6.0]]),
        {"target": ("load",), "past": ("price",), "future": ("temp",), "static": ("shop",)},
    )
    layout = Layout.of(window, 3)
    model = Bound(hrx.from_callable(f, frame=True), layout)
    y = model.forward(layout.pack(window), 3)
    assert window.future is not None
    assert window.static is not None
    assert window.past is not None
    torch.testing.assert_close(y, 2 * window.future[:, 4:, 0] + window.static)
    past, ahead = seen[-1]
    assert list(past.columns) == ["window", "step", "load", "price", "temp", "shop"]
    assert list(ahead.columns) == ["window", "step", "temp", "shop"]
    assert past.query("window == 1")["step"].tolist() == [-3, -2, -1, 0]
    assert ahead.query("window == 0")["step"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(past.query("window == 1")["price"], window.past[1, :, 0])
    np.testing.assert_array_equal(past.query("window == 1")["temp"], window.future[1, :4, 0])


def test_a_sampler_is_a_function_of_windows_and_seed_whatever_their_batch() -> None:
    model = hrx.from_callable(noisy, seeded=True)
    x = torch.randn(3, LOOKBACK)
    together = model.forward(x, HORIZON)
    torch.testing.assert_close(together[2:], model.forward(x[2:], HORIZON))
    assert float(model.noise(x, HORIZON).mean()) == pytest.approx(1, abs=0.5)  # standard normal by construction
    explained = hrx.explain(model, SERIES, HORIZON, lookback=LOOKBACK)
    assert any("between 5 seeds its forecast varies by" in note for note in explained.notes)
    # Common random numbers: additive noise is the same in every forecast, so no row holds any of it.
    plain = hrx.explain(hrx.from_callable(linear), SERIES, HORIZON, lookback=LOOKBACK)
    np.testing.assert_allclose(explained.matrix, plain.matrix, rtol=1e-4, atol=1e-5)


def test_a_model_that_samples_in_secret_gets_a_sentence_and_no_matrix() -> None:
    generator = np.random.default_rng(0)
    sampling = hrx.from_callable(lambda x: x @ WEIGHTS + generator.normal(size=(len(x), HORIZON)), name="deepar")
    with pytest.raises(HrxError, match=r"deepar .*another forecast of the same window.*seeded=True"):
        hrx.explain(sampling, SERIES, HORIZON, lookback=LOOKBACK)
    with pytest.raises(HrxError, match="it samples"):
        hrx.explain(lambda x: x[:, -HORIZON:] + torch.randn(len(x), HORIZON), SERIES, HORIZON, lookback=LOOKBACK)


def test_a_detached_gradient_gets_a_sentence_and_no_matrix() -> None:
    def detached(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x.tolist())[:, -HORIZON:] ** 2 + 0 * x[:, -HORIZON:]

    with pytest.raises(HrxError, match="no gradient, although it changes with the window"):
        hrx.explain(detached, SERIES, HORIZON, lookback=LOOKBACK)
    unchecked = hrx.explain(detached, SERIES, HORIZON, lookback=LOOKBACK, check=False)
    assert not unchecked.matrix.any()


def test_check_makes_one_official_call_and_leaves_the_random_state() -> None:
    model = hrx.from_module(torch.nn.Linear(LOOKBACK, HORIZON))
    calls = 0
    official = model.official

    def counting(x: torch.Tensor, horizon: int) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return official(x, horizon)

    model.official = counting  # type: ignore[method-assign]
    before = torch.get_rng_state()
    hrx.explain(model, SERIES, HORIZON, lookback=LOOKBACK)
    assert calls == 1
    assert torch.equal(before, torch.get_rng_state())
    hrx.explain(model, SERIES, HORIZON, lookback=LOOKBACK, check=False)
    assert calls == 1


def test_a_forecast_that_differs_from_the_official_call_is_refused() -> None:
    model = hrx.from_module(torch.nn.Linear(LOOKBACK, HORIZON), name="patched")
    official = model.official
    model.official = lambda x, horizon: official(x, horizon) * 1.01  # type: ignore[method-assign]
    with pytest.raises(
        HrxError, match=r"patched: the forecast .* differs from the module without gradients by 9.9e-03"
    ):
        hrx.explain(model, SERIES, HORIZON, lookback=LOOKBACK)


def test_a_black_box_is_admitted_without_the_checks_of_gradients() -> None:
    x = torch.randn(3, LOOKBACK)
    assert {one.check: one.passed for one in admit(hrx.from_callable(linear), x, HORIZON)} == {
        "isolation": True, "determinism": True, "sensitivity": True,
    }  # fmt: skip
    blind = admit(hrx.from_callable(lambda x: np.ones((len(x), HORIZON))), x, HORIZON)
    assert [one.check for one in blind if not one.passed] == ["sensitivity"]
    mixed = admit(hrx.from_callable(lambda x: x[:, -HORIZON:] - x.mean()), x, HORIZON)
    assert "isolation" in [one.check for one in mixed if not one.passed]


def test_an_audit_of_a_black_box_is_labelled(tmp_path: Any) -> None:
    summary = hrx.run_audit(
        hrx.from_callable(linear), data=SERIES, settings="24x6", estimator="occlusion", seeds=1, out=tmp_path / "audit"
    )
    assert summary.models[0].model == "linear (black box)"
    assert summary.runs()["status"].tolist() == ["done"]
    refused = hrx.run_audit(hrx.from_callable(linear), data=SERIES, settings="24x6", seeds=1, out=tmp_path / "other")
    assert "has no derivatives" in refused.runs()["reason"].iloc[0]


@pytest.mark.parametrize(
    ("function", "how", "sentence"),
    [
        (lambda x: x[:, -2:], {}, r"returned shape \(1, 2\) for 1 windows and a horizon of 6"),
        (lambda x: x[:, -6:] * np.nan, {}, "NaN or infinite"),
        (lambda x: 1 / 0, {}, "ZeroDivisionError: division by zero"),
        (lambda x: "no", {}, "ValueError"),
        (lambda past, ahead: past["price"], {"frame": True}, "KeyError"),
    ],
)
def test_a_wrong_answer_of_a_function_is_one_sentence(
    function: Callable[..., Any], how: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(HrxError, match=sentence):
        hrx.explain(hrx.from_callable(function, name="mine", **how), SERIES, HORIZON, lookback=LOOKBACK)


def test_wrong_arguments_of_from_callable_are_sentences() -> None:
    with pytest.raises(HrxError, match="A int is not a function of windows"):
        hrx.from_callable(3)  # type: ignore[arg-type]
    with pytest.raises(HrxError, match="exclude each other"):
        hrx.from_callable(linear, frame=True, seeded=True)


def test_a_function_that_writes_into_its_input_changes_nothing() -> None:
    def writing(x: np.ndarray) -> np.ndarray:
        y = linear(x)
        x[:] = 0
        return y

    x = hrx.explain(hrx.from_callable(writing), SERIES, HORIZON, lookback=LOOKBACK)
    expected = hrx.explain(hrx.from_callable(linear), SERIES, HORIZON, lookback=LOOKBACK)
    np.testing.assert_array_equal(x.matrix, expected.matrix)
