"""Gradient estimators and occlusion against captum and against slow versions of their definitions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import captum.attr
import numpy as np
import pytest
import torch
from captum.attr._core import noise_tunnel
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import Forecaster, GradientPath, Limits, from_module, load
from hrx.audit import Protocol, explain
from hrx.audit.attribution import AttributionTask, find_estimator
from hrx.audit.attribution.explanation import estimate
from hrx.audit.attribution.gradients import integrated_gradients, noise
from hrx.audit.attribution.perturbation import replacements_of
from hrx.audit.attribution.settings import IntegratedGradientsSettings, SmoothGradSettings
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import scored_steps
from hrx.errors import ProtocolError

HORIZON = 24
LOOKBACK = 96
STEPS = [1, 10, 24]
AXES = [("step", STEPS), ("whole", None)]


def small_module(lookback: int = LOOKBACK, horizon: int = HORIZON) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(lookback, 32), torch.nn.Tanh(), torch.nn.Linear(32, horizon))


@pytest.fixture(params=["module", "chronos-bolt"])
def model(request: pytest.FixtureRequest, checkpoints: dict[str, Path]) -> Forecaster:
    return from_module(small_module()) if request.param == "module" else load(str(checkpoints["chronos-bolt"]))


def explained(model: Forecaster, step: int | None) -> Callable[[Tensor], Tensor]:
    """The function that captum explains: one step of the forecast, or the sum of all."""

    def forecast(x: Tensor) -> Tensor:
        y = model.forward(x, HORIZON)
        return y.sum(dim=1) if step is None else y[:, step - 1]

    return forecast


def difference(matrix: Tensor, attribute: Callable[[Callable[[Tensor], Tensor]], Tensor], model: Forecaster) -> float:
    """Largest difference from captum's attributions, relative to the largest of them; NaN if all are zero."""
    steps = [None] if matrix.shape[1] == 1 else STEPS
    theirs = torch.stack([attribute(explained(model, step)).detach().abs() for step in steps], dim=1)
    return float((matrix - theirs).abs().max() / theirs.max())


def task_of(model: Forecaster, x: Tensor, steps: tuple[int, ...] = ()) -> AttributionTask:
    return AttributionTask(model, x, HORIZON, steps, MemoryBudget())


@pytest.mark.parametrize(("axis", "steps"), AXES)
def test_saliency_is_captums(model: Forecaster, axis: str, steps: list[int] | None) -> None:
    x = series(2, LOOKBACK)
    ours = explain(model, x, HORIZON, estimator="saliency", axis=axis, steps=steps)
    with GradientPath():
        assert difference(ours, lambda f: captum.attr.Saliency(f).attribute(x.clone().requires_grad_()), model) <= 1e-5


@pytest.mark.parametrize(("axis", "steps"), AXES)
def test_gradient_x_input_is_captums(model: Forecaster, axis: str, steps: list[int] | None) -> None:
    x = series(2, LOOKBACK)
    ours = explain(model, x, HORIZON, estimator="gradient_x_input", axis=axis, steps=steps)
    with GradientPath():
        assert (
            difference(ours, lambda f: captum.attr.InputXGradient(f).attribute(x.clone().requires_grad_()), model)
            <= 1e-5
        )


@pytest.mark.parametrize(("axis", "steps"), AXES)
def test_integrated_gradients_are_captums(model: Forecaster, axis: str, steps: list[int] | None) -> None:
    x = series(2, LOOKBACK)
    baseline = x.mean(dim=1, keepdim=True).expand_as(x)
    ours = explain(
        model, x, HORIZON, estimator="integrated_gradients", axis=axis, steps=steps, settings='{"points": 12}'
    )

    def theirs(f: Callable[[Tensor], Tensor]) -> Tensor:
        return captum.attr.IntegratedGradients(f).attribute(x, baseline, n_steps=12, method="gausslegendre")

    with GradientPath():
        assert difference(ours, theirs, model) <= 1e-5


@pytest.mark.parametrize(("axis", "steps"), AXES)
def test_smoothgrad_is_captums_under_the_same_noise(
    model: Forecaster, axis: str, steps: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, settings = series(2, LOOKBACK), SmoothGradSettings(samples=10)
    drawn = noise(task_of(model, x), settings)
    monkeypatch.setattr(noise_tunnel.torch, "normal", lambda *_: drawn.flatten(0, 1))
    ours = explain(model, x, HORIZON, estimator="smoothgrad", axis=axis, steps=steps, settings='{"samples": 10}')

    def theirs(f: Callable[[Tensor], Tensor]) -> Tensor:
        tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(f))
        return tunnel.attribute(x, nt_type="smoothgrad", nt_samples=10, stdevs=1.0, abs=False)

    with GradientPath():
        assert difference(ours, theirs, model) <= 1e-5


def test_the_standard_deviation_of_smoothgrads_noise_is_the_given_part_of_the_windows_range() -> None:
    x = series(2, LOOKBACK) * torch.tensor([[1.0], [50.0]])
    drawn = noise(task_of(from_module(small_module()), x), SmoothGradSettings(samples=400, noise=0.2))
    expected = 0.2 * (x.amax(dim=1) - x.amin(dim=1))
    torch.testing.assert_close(drawn.std(dim=(1, 2)), expected, rtol=0.02, atol=0)
    assert drawn.mean(dim=(1, 2)).abs().lt(0.02 * expected).all()


def test_the_noise_of_smoothgrad_differs_from_the_draws_that_score_the_matrix() -> None:
    x, settings = series(1, LOOKBACK), SmoothGradSettings(samples=1, noise=1.0)
    unit = noise(task_of(from_module(small_module()), x), settings)[0, 0].double() / float(x.max() - x.min())
    for draw in range(64):
        scoring = np.random.default_rng([0, 0, 0, draw]).standard_normal(LOOKBACK)
        assert not np.allclose(unit.numpy(), scoring, rtol=1e-4)


@pytest.mark.parametrize(("axis", "steps"), AXES)
@pytest.mark.parametrize(("spans", "replacement"), [(16, "mean"), (10, "rearranged")])
def test_occlusion_is_captums_under_each_replacement(
    model: Forecaster, axis: str, steps: list[int] | None, spans: int, replacement: str
) -> None:
    x, span = series(2, LOOKBACK), -(-LOOKBACK // spans)
    settings = f'{{"spans": {spans}, "replacement": "{replacement}", "draws": 2}}'
    ours = explain(model, x, HORIZON, estimator="occlusion", axis=axis, steps=steps, settings=settings)
    draws = replacements_of(task_of(model, x), replacement, 0, 2)

    def theirs(f: Callable[[Tensor], Tensor]) -> Tensor:
        occlusion = captum.attr.Occlusion(f)
        each = [occlusion.attribute(x, (span,), (span,), draws[:, d].contiguous()).abs() for d in range(2)]
        return torch.stack(each).mean(dim=0)

    with torch.no_grad():
        assert difference(ours, theirs, model) <= 1e-5


def test_replacements_rearrange_the_window_and_mirror_each_other() -> None:
    x = series(3, 40)
    drawn = replacements_of(task_of(from_module(small_module(40)), x), "rearranged", 0, 4)
    ordered = x.sort(dim=1).values
    assert torch.equal(drawn.sort(dim=-1).values, ordered[:, None].expand(-1, 4, -1))
    place = torch.searchsorted(ordered[:, None].expand(-1, 4, -1).contiguous(), drawn)
    assert torch.equal(place[:, 1], 39 - place[:, 0])
    assert torch.equal(place[:, 3], 39 - place[:, 2])
    assert not torch.equal(place[:, 2], place[:, 0])


def slow_tsr(forecast: Callable[[Tensor], Tensor], x: Tensor, base: str) -> Tensor:
    """One masked position, one step and one backward pass at a time."""

    def attribution(window: Tensor, h: int) -> Tensor:
        leaf = window[None].clone().requires_grad_()
        forecast(leaf)[0, h].backward()
        return leaf.grad[0] * window if base == "gradient_x_input" else leaf.grad[0].abs()

    rows = []
    for window in x:
        for h in scored_steps(HORIZON, 8).tolist():
            whole, change = attribution(window, h), []
            for t in range(len(window)):
                masked = window.clone()
                masked[t] = window.mean()
                change.append(float((attribution(masked, h) - whole).abs().sum()))
            scaled = [(c - min(change)) / (max(change) - min(change)) for c in change]
            limit = np.quantile(scaled, 0.55)
            rows.append([c if c > limit else 0.1 * c for c in scaled])
    return torch.tensor(rows, dtype=torch.float64).reshape(len(x), 8, -1)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["gradient_x_input", "saliency"])
def test_tsr_is_its_definition(base: str) -> None:
    module, x = small_module(24).double(), series(2, 24).double()
    ours = explain(from_module(lambda w: module(w)), x, HORIZON, estimator="tsr", settings=f'{{"base": "{base}"}}')
    torch.testing.assert_close(ours, slow_tsr(module, x, base), rtol=1e-8, atol=1e-8)


def test_tsr_runs_on_a_library_model_with_and_without_the_axis(checkpoints: dict[str, Path]) -> None:
    model, x = load(str(checkpoints["chronos-bolt"])), series(1, 48)
    for axis, rows in (("step", 3), ("whole", 1)):
        steps = None if axis == "whole" else [1, 6, 12]
        matrix = explain(model, x, 12, estimator="tsr", axis=axis, steps=steps)
        assert matrix.shape == (1, rows, 48)
        assert (matrix.amax(dim=-1) == 1).all()


def test_integrated_gradients_of_every_step_add_up_to_its_change_from_the_baseline(
    checkpoints: dict[str, Path],
) -> None:
    for double in (from_module(small_module()).double(), load(str(checkpoints["chronos-bolt"])).double()):
        x = series(2, LOOKBACK).double()
        steps = scored_steps(HORIZON, 8)
        task = replace(task_of(double, x, tuple((steps + 1).tolist())), signed=True)
        signed = integrated_gradients(task, IntegratedGradientsSettings(points=64)).signed
        with torch.no_grad():
            # Just off the flat window: Chronos-Bolt divides by the window's deviation, and jumps where it is zero.
            flat = x.mean(dim=1, keepdim=True)
            change = double.forward(x, HORIZON) - double.forward(flat + 1e-8 * (x - flat), HORIZON)
            change = change[:, steps]
        assert (signed.sum(dim=-1) - change).abs().max() <= 1e-5 * change.abs().max()


def test_saliency_is_the_input_gradient_at_the_scored_steps(model: Forecaster) -> None:
    x, steps = series(2, LOOKBACK), scored_steps(HORIZON, 8)
    result = estimate(model, x, HORIZON, Protocol(estimator="saliency"))
    assert result.steps == (1, 4, 8, 11, 14, 17, 21, 24)
    assert torch.equal(result.matrix, explain(model, x, HORIZON)[:, steps])


@pytest.mark.parametrize("name", ["saliency", "gradient_x_input", "integrated_gradients", "smoothgrad"])
def test_gradient_estimators_sum_magnitudes_over_the_channels_of_a_multivariate_window(name: str) -> None:
    weight = torch.randn(5, 2, 7, 3, generator=torch.Generator().manual_seed(0))
    model = from_module(lambda x: torch.einsum("hclk,blk->bhc", weight, x), limits=Limits(multivariate=True))
    x = torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(1))
    per_channel = weight.sum(dim=1)[None].expand(4, -1, -1, -1)
    factor = {"gradient_x_input": x[:, None], "integrated_gradients": (x - x.mean(dim=1, keepdim=True))[:, None]}
    expected = (per_channel * factor.get(name, torch.ones(()))).abs().sum(dim=-1)
    torch.testing.assert_close(explain(model, x, 5, estimator=name), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["occlusion", "tsr", "dynamask", "extremalmask", "contralsp"])
def test_an_estimator_for_one_variate_refuses_several(name: str) -> None:
    model = from_module(lambda x: x[:, :5], limits=Limits(multivariate=True))
    with pytest.raises(ProtocolError, match=f"{name} explains windows of one variate, not of 3"):
        explain(model, torch.randn(4, 7, 3), 5, estimator=name)


def test_the_whole_forecast_has_one_row_and_no_steps() -> None:
    model, x = from_module(small_module()), series(2, LOOKBACK)
    result = estimate(model, x, HORIZON, Protocol(axis="whole"))
    assert result.matrix.shape == (2, 1, LOOKBACK)
    assert len(result.steps) == 0
    with pytest.raises(ProtocolError, match="Drop steps"):
        explain(model, x, HORIZON, axis="whole", steps=[1])


@pytest.mark.parametrize("steps", [[], [HORIZON + 1], [0]])
def test_steps_outside_the_horizon_are_refused(steps: list[int]) -> None:
    with pytest.raises(ProtocolError, match="Steps count from 1 to 24"):
        explain(from_module(small_module()), series(2, LOOKBACK), HORIZON, steps=steps)


@pytest.mark.parametrize("name", ["integrated_gradients", "smoothgrad", "tsr"])
def test_a_windows_explanation_does_not_depend_on_later_windows(name: str, checkpoints: dict[str, Path]) -> None:
    model, x = load(str(checkpoints["chronos-bolt"])), series(3, 48)
    settings = {"integrated_gradients": '{"points": 6}', "smoothgrad": '{"samples": 6}'}.get(name, "{}")
    steps = [1, 5, 12]
    together = explain(model, x, 12, estimator=name, steps=steps, settings=settings)
    first = explain(model, x[:1], 12, estimator=name, steps=steps, settings=settings)
    assert torch.equal(together[:1], first)


@pytest.mark.parametrize("name", ["smoothgrad", "occlusion"])
def test_random_draws_depend_on_seed_and_stream_and_not_on_the_global_generator(name: str) -> None:
    model, x = from_module(small_module()), series(2, LOOKBACK)
    before = torch.get_rng_state()
    first = explain(model, x, HORIZON, estimator=name)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002  # the legacy generator is the one that must not matter
    assert torch.equal(explain(model, x, HORIZON, estimator=name), first)
    assert not torch.equal(explain(model, x, HORIZON, estimator=name, seed=1), first)
    assert not torch.equal(explain(model, x, HORIZON, estimator=name, stream=1), first)


def test_only_the_input_gradient_fills_all_rows_by_default() -> None:
    assert find_estimator("input_gradient").every_step
    assert not find_estimator("saliency").every_step
