"""What each channel does, against closed forms of linear models and planted reaches."""

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers import by_definition
from helpers.linear import LinearChannels
from torch import Tensor

from hrx.adapters.inputs import Inputs, Kind, Layout, Role, Window
from hrx.adapters.wrapped import Bound
from hrx.audit import Protocol
from hrx.audit.attribution.explanation import estimate
from hrx.audit.covariates import (
    channel_effects,
    channel_errors,
    effect_forecasts,
    reach,
    replaced_rows,
    standardised,
    with_sensitivity,
)
from hrx.audit.protocol import rearranged
from hrx.audit.scoring.deletion import replacements
from hrx.audit.scoring.score import ScoredRun, score_joint
from hrx.errors import ProtocolError
from hrx.records.channels import ChannelEffect, from_json, to_json

L, H = 6, 4
NAMES = {"target": ("load",), "past": ("price",), "future": ("temp", "holiday"), "static": ("area",)}
KINDS: dict[str, Kind] = {"holiday": "two-valued"}


class Case(NamedTuple):
    model: LinearChannels
    bound: Bound
    x: Tensor
    blocks: dict[str, np.ndarray]

    def weights(self, name: str) -> np.ndarray:
        """`(H, length)`: the rows of a channel."""
        channel = self.bound.layout.by_name[name]
        place = NAMES[channel.role].index(name)
        return self.model.weights[channel.role][0, :, place].numpy()

    def values(self, name: str) -> np.ndarray:
        return self.x[:, self.bound.layout.by_name[name].positions].double().numpy()


def case(windows: int = 2, blocks: int = 5) -> Case:
    """A linear model of four numbers and a flag that is zero in the window and one in some of its past."""
    draw = np.random.default_rng(0)

    def values(*shape: int) -> Tensor:
        return torch.as_tensor(draw.standard_normal(shape), dtype=torch.float32)

    future = values(windows, L + H, 2)
    future[..., 1] = 0
    window = Window(values(windows, L, 1), values(windows, L, 1), future, values(windows, 1), NAMES)
    layout = Layout.of(window, H, KINDS)
    model = LinearChannels(L, H, targets=1, past=1, future=2, static=1)
    history = {one.name: draw.standard_normal((blocks, one.length)) for one in layout.channels}
    history["holiday"] = (draw.random((blocks, L + H)) < 0.5).astype(np.float64)
    return Case(model, Bound(model, layout), layout.pack(window), history)


def by_name(found: list[ChannelEffect]) -> dict[str, ChannelEffect]:
    return {one.name: one for one in found}


def test_effect_share_and_error_of_a_linear_model_are_those_of_the_closed_form() -> None:
    given, variance = case(), 2.5
    found = by_name(channel_effects(given.bound, given.x, given.blocks, variance, draws=9))  # all five blocks
    changes = {
        name: np.square((given.blocks[name][None] - given.values(name)[:, None]) @ given.weights(name).T) / variance
        for name in found
    }
    total = sum(change.mean(axis=(0, 1)) for change in changes.values())
    for name, one in found.items():
        change = changes[name]
        assert one.blocks == 5
        np.testing.assert_allclose(one.effect, change.mean(axis=(0, 1)), rtol=1e-5)
        by_window = np.array([np.std(change[w], axis=0, ddof=1) / 5**0.5 for w in range(2)])
        np.testing.assert_allclose(one.error, np.sqrt((by_window**2).sum(axis=0)) / 2, rtol=1e-5)
        np.testing.assert_allclose(one.share, one.effect / total, rtol=1e-5)
        assert one.total == pytest.approx(change.mean(), rel=1e-5)
        assert one.read
        assert one.read_from == 1


def test_the_past_and_the_future_of_a_covariate_that_is_known_ahead_have_effects_of_their_own() -> None:
    given = case()
    found = by_name(channel_effects(given.bound, given.x, given.blocks, 1.0, draws=9))
    apart = given.blocks["temp"][None] - given.values("temp")[:, None]
    weights = given.weights("temp").T
    for part, at in (("past", slice(0, L)), ("future", slice(L, None))):
        expected = np.square(apart[..., at] @ weights[at]).mean(axis=(0, 1))
        np.testing.assert_allclose(getattr(found["temp"], part), expected, rtol=1e-5)
    assert found["price"].past is None
    assert found["price"].future is None


def test_a_flag_that_is_constant_in_its_window_has_an_effect_by_other_blocks_and_none_by_rearranging() -> None:
    given = case()
    flag = by_name(channel_effects(given.bound, given.x, given.blocks, 1.0))["holiday"]
    assert (flag.effect > 0).all()
    assert flag.rearranged.max() < 1e-12 * flag.effect.min()
    assert flag.read


def test_a_channel_without_weight_is_not_read_and_one_that_moves_later_steps_is_read_from_there() -> None:
    given = case()
    given.model.weights["past"][:] = 0
    given.model.weights["static"][:, :2] = 0
    found = by_name(channel_effects(given.bound, given.x, given.blocks, 1.0))
    assert (found["price"].effect == 0).all()
    assert not found["price"].read
    assert (found["price"].share == 0).all()
    assert found["area"].read_from == 3


def test_blocks_are_drawn_without_replacement_and_the_same_for_every_model_and_further_channel() -> None:
    given = case(blocks=40)
    first = by_name(channel_effects(given.bound, given.x, given.blocks, 1.0, draws=4))["load"]
    expected = np.square((given.blocks["load"][None] - given.values("load")[:, None]) @ given.weights("load").T)
    assert not np.allclose(first.effect, expected.mean(axis=(0, 1)))
    scaled = LinearChannels(L, H, targets=1, past=1, future=2, static=1)
    scaled.weights = {role: 2 * weight for role, weight in given.model.weights.items()}
    twice = by_name(channel_effects(Bound(scaled, given.bound.layout), given.x, given.blocks, 1.0, draws=4))["load"]
    np.testing.assert_allclose(twice.effect, 4 * first.effect, rtol=1e-5)
    fewer = given.bound.without("price")
    kept = torch.cat([given.x[:, :L], given.x[:, 2 * L :]], dim=1)
    again = by_name(channel_effects(fewer, kept, given.blocks, 1.0, draws=4))["load"]
    np.testing.assert_allclose(again.effect, first.effect, rtol=1e-4)


def test_blocks_with_missing_values_are_left_out_where_others_are_complete() -> None:
    given = case()
    given.blocks["load"][:3] = np.nan
    found = by_name(channel_effects(given.bound, given.x, given.blocks, 1.0))["load"]
    assert found.blocks == 2
    assert np.isfinite(found.effect).all()


def test_a_channel_without_other_blocks_has_no_effect_to_state() -> None:
    given = case()
    del given.blocks["area"]
    found = by_name(channel_effects(given.bound, given.x, given.blocks, 1.0))
    assert not found["area"].measured
    assert not found["area"].read
    assert np.isnan(found["area"].effect).all()
    assert np.isfinite(found["load"].share).all()
    with pytest.raises(ProtocolError, match=r"Blocks of load have the shape \(5, 3\)"):
        channel_effects(given.bound, given.x, {"load": np.zeros((5, 3))}, 1.0)


def test_the_forecasts_of_the_effects_are_counted_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    given, made = case(windows=3, blocks=20), list[int]()
    forward = Bound.forward

    def counted(self: Bound, x: Tensor, horizon: int) -> Tensor:
        made.append(len(x))
        return forward(self, x, horizon)

    channel_effects(given.bound, given.x, given.blocks, 1.0)  # batch sizes are found by forecasts of their own
    monkeypatch.setattr(Bound, "forward", counted)
    from hrx.audit.memory import MemoryBudget

    budget = MemoryBudget()
    monkeypatch.setattr(budget, "fastest", lambda model, window, horizon, most: most)
    channel_effects(given.bound, given.x, given.blocks, 1.0, budget=budget)
    assert sum(made) == 3 * effect_forecasts(given.bound)


def test_an_effect_is_the_same_from_the_json_of_a_record() -> None:
    given = case()
    found = channel_effects(given.bound, given.x, {**given.blocks, "area": np.empty((0, 1))}, 1.0)
    for one, again in zip(found, from_json(to_json(found)), strict=True):
        assert (again.name, again.role, again.kind, again.read_from) == (one.name, one.role, one.kind, one.read_from)
        np.testing.assert_allclose(again.effect, one.effect, rtol=1e-5)
        np.testing.assert_allclose(again.total, one.total, rtol=1e-5)


def test_entries_without_a_slope_are_the_mean_change_when_a_value_is_replaced_by_another() -> None:
    given = case()
    rows = replaced_rows(given.bound, given.x, given.blocks)
    assert set(rows) == {"holiday", "area"}
    np.testing.assert_allclose(rows["holiday"][1], np.abs(given.weights("holiday")), rtol=1e-4, atol=1e-5)
    given.blocks["area"] = np.array([[1.0], [2.0], [4.0]])
    x = given.x.clone()
    x[:, -1] = torch.tensor([2.0, 1.0])
    rows = replaced_rows(given.bound, x, given.blocks)
    for w, others in enumerate(([1.0, 4.0], [2.0, 4.0])):
        change = np.mean([abs(value - float(x[w, -1])) for value in others])
        np.testing.assert_allclose(rows["area"][w], change * np.abs(given.weights("area")), rtol=1e-4)


def test_a_missing_value_of_a_flag_has_no_entry() -> None:
    given = case()
    at = given.bound.layout.by_name["holiday"].start + 2
    given.x[0, at] = torch.nan
    rows = replaced_rows(given.bound, given.x, given.blocks)["holiday"]
    assert (rows[0, :, 2] == 0).all()
    np.testing.assert_allclose(rows[1, :, 2], np.abs(given.weights("holiday")[:, 2]), rtol=1e-4)


SCALES = {"load": 2.0, "price": 0.5, "temp": 10.0}


def matrix_of(given: Case) -> Tensor:
    found = estimate(given.bound, given.x, H, Protocol())
    rows = replaced_rows(given.bound, given.x, given.blocks)
    return standardised(given.bound, found.matrix, SCALES, rows, found.steps)


def test_sensitivity_is_the_change_per_standard_deviation_and_a_flag_has_none() -> None:
    given = case()
    matrix = matrix_of(given)
    flag = given.bound.layout.by_name["holiday"].positions
    np.testing.assert_allclose(matrix[0, :, flag].numpy(), np.abs(given.weights("holiday")), rtol=1e-4, atol=1e-5)
    effects = channel_effects(given.bound, given.x, given.blocks, 1.0)
    found = by_name(with_sensitivity(effects, given.bound, matrix))
    for name, scale in SCALES.items():
        expected = scale * np.abs(given.weights(name)).sum(axis=1)
        np.testing.assert_allclose(found[name].sensitivity, expected, rtol=1e-5)  # type: ignore[arg-type]
    assert found["holiday"].sensitivity is None
    assert found["area"].sensitivity is None


def test_values_are_rearranged_within_a_channel_and_missing_ones_stay() -> None:
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    x[1, 15] = x[1, 17] = torch.nan
    sections = (8, 12)
    drawn = rearranged(x, (1, 2), 0, 4, sections=sections)
    assert torch.equal(drawn[..., :8], rearranged(x[:, :8], (1, 2), 0, 4))  # as without the second channel
    for w, draws in enumerate(drawn[:, 0]):
        for one in draws:
            for part in (slice(0, 8), slice(8, 20)):
                own, there = x[w, part], x[w, part].isnan()
                assert torch.equal(one[part].isnan(), there)
                assert torch.equal(one[part][~there].sort().values, own[~there].sort().values)
        assert not torch.equal(draws[0].nan_to_num(), draws[2].nan_to_num())
        for first, second in ((0, 1), (2, 3)):  # opposite ranks
            for part in (slice(0, 8), slice(8, 20)):
                values = draws[:, part][:, ~x[w, part].isnan()]
                places = values.argsort(dim=1).argsort(dim=1)
                assert torch.equal(places[first] + places[second], torch.full_like(places[0], values.shape[1] - 1))


@pytest.mark.parametrize("along", ["joint", "channels"])
def test_scores_over_all_positions_and_over_channels_agree_with_the_definitions(along: str) -> None:
    draw = torch.Generator().manual_seed(4)
    window = Window(torch.randn(2, 12, 1, generator=draw), torch.randn(2, 12, 2, generator=draw))
    layout, protocol = Layout.of(window, 9), Protocol(draws=2)
    bound, x = Bound(LinearChannels(12, 9, past=2), layout), layout.pack(window)
    matrix = torch.rand(2, 9, 36, generator=draw).double()
    run = ScoredRun(bound, x, 9, protocol, stream=3)
    found = score_joint(run, matrix, range(1, 10))
    drawn = replacements(x, protocol, 3, 0, 2, 1, bound.sections)[:, 0].numpy()

    def forecast(values: np.ndarray) -> np.ndarray:
        packed = torch.as_tensor(values if values.ndim == 1 else values.T.reshape(-1))
        return bound.forward(packed[None], 9)[0].numpy()

    if along == "joint":
        slow, scores = by_definition.Run(forecast, x.numpy(), matrix.numpy(), drawn, 9), found.joint
    else:
        assert found.channels
        columns = x.reshape(2, 3, 12).mT.numpy()
        sums, moved = matrix.reshape(2, 9, 3, 12).sum(dim=3).numpy(), np.moveaxis(drawn.reshape(2, 2, 3, 12), 2, 3)
        slow, scores = by_definition.Run(forecast, columns, sums, moved, 9, channels=True), found.channels
    for name, raw in slow.quantities().items():
        scale = 1 if name == "insertion" else slow.variance
        assert getattr(scores.normalised, name) == pytest.approx(raw / scale, rel=1e-5, abs=1e-6), name


def test_a_single_channel_with_a_slope_has_no_order_of_channels() -> None:
    window = Window(torch.randn(2, 12, 1), future=torch.zeros(2, 21, 1), names={"target": ("a",), "future": ("flag",)})
    layout = Layout.of(window, 9, {"flag": "two-valued"})
    run = ScoredRun(Bound(LinearChannels(12, 9, future=1), layout), layout.pack(window), 9, Protocol(draws=2))
    assert score_joint(run, torch.rand(2, 9, 33), range(1, 10)).channels is None


class Ahead(LinearChannels):
    """Reads nothing but the steps ahead of one known covariate, by a function of them `(B, H)`."""

    def __init__(self, horizon: int, read: Callable[[Tensor], Tensor]):
        super().__init__(4, horizon, future=1)
        self._read = read

    def predict_window(self, window: Window, horizon: int, columns: object) -> Tensor:
        assert window.future is not None
        return self._read(window.future[:, -horizon:, 0])[:, :, None, None]


def reached(horizon: int, read: Callable[[Tensor], Tensor]) -> str:
    window = Window(torch.randn(1, 4, 1), future=torch.randn(1, 4 + horizon, 1))
    layout = Layout.of(window, horizon)
    return str(reach(Bound(Ahead(horizon, read), layout), layout.pack(window), "future 1", (0.0, 1.0)))


def banded(width: int) -> Callable[[Tensor], Tensor]:
    place = torch.arange(12)
    weight = torch.rand(12, 12, generator=torch.Generator().manual_seed(0)) + 0.1
    return lambda ahead: ahead @ (weight * ((place[:, None] - place).abs() <= width))


def late(ahead: Tensor, steps: Tensor) -> Tensor:
    """The last steps of a forecast; those before them are zero."""
    return torch.nn.functional.pad(steps, (12 - steps.shape[1], 0))


def patches_before(ahead: Tensor) -> Tensor:
    """Steps 5 to 12, each of what the patches of four before its own hold."""
    return (ahead * torch.arange(12.0)).cumsum(1)[:, [3] * 4 + [7] * 4]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda ahead: ahead * 2, "its own step"),
        (lambda ahead: ahead @ torch.rand(12, 12, generator=torch.Generator().manual_seed(0)), "every step"),
        (lambda ahead: ahead * 0, "no step"),
        (lambda ahead: ahead - ahead + ahead.mean(dim=1, keepdim=True), "no step"),
        (lambda ahead: torch.cumsum(ahead * torch.arange(1, 13), dim=1), "its own and later steps"),
        (banded(3), "steps within ±3 of its own"),
        (lambda ahead: late(ahead, (ahead @ torch.arange(12.0))[:, None].expand(-1, 7)), "from step 6 on"),
        (lambda ahead: late(ahead, patches_before(ahead)), "later steps, from step 5 on"),
    ],
)
def test_reach_says_which_steps_a_value_ahead_moves(read: Callable[[Tensor], Tensor], said: str) -> None:
    assert reached(12, read) == said


def test_reach_needs_a_channel_known_ahead_and_two_values() -> None:
    given = case()
    with pytest.raises(ProtocolError, match="price is a past channel"):
        reach(given.bound, given.x, "price", (0, 1))
    with pytest.raises(ProtocolError, match="two values that differ"):
        reach(given.bound, given.x, "temp", (1, 1))


def test_errors_with_a_channel_as_it_is_rearranged_erased_and_withheld_are_those_of_the_closed_form() -> None:
    given, scale = case(), 3.0
    role = Role("optional", categorical="native", missing="zero", ahead_missing="zero")
    given.model.inputs = Inputs((1, 1), role, role, role)
    bound = Bound(given.model, given.bound.layout)
    truth = torch.randn(2, H, generator=torch.Generator().manual_seed(5))
    found = channel_errors(bound, given.x, truth, scale)
    assert set(found) == {"price", "temp", "holiday", "area"}
    forecast = given.bound.forward(given.x, H).double().numpy()
    for name, errors in found.items():
        without = forecast - given.values(name) @ given.weights(name).T
        as_is = np.square((forecast - truth.numpy()) / scale).mean(axis=1)
        erased = np.square((without - truth.numpy()) / scale).mean(axis=1)
        np.testing.assert_allclose(errors["as_is"], as_is, rtol=1e-5)
        if name in ("price", "area"):  # the linear model tells the channels of a role apart by their place
            np.testing.assert_allclose(errors["withheld"], erased, rtol=1e-4)
        np.testing.assert_allclose(errors["erased"], erased, rtol=1e-4)
    np.testing.assert_allclose(found["holiday"]["rearranged"], found["holiday"]["as_is"], rtol=1e-6)
    assert not np.allclose(found["price"]["rearranged"], found["price"]["as_is"])


def test_a_treatment_that_the_call_does_not_take_is_left_out() -> None:
    given = case()
    role = Role("required", missing="refused", categorical="native")
    given.model.inputs = Inputs((1, 1), role, role, role)
    bound = Bound(given.model, given.bound.layout)
    found = channel_errors(bound, given.x, torch.zeros(2, H), 1.0)
    assert set(found["price"]) == {"as_is", "rearranged"}
    assert set(found["temp"]) == {"as_is", "rearranged", "withheld"}  # holiday is still there


def test_estimators_take_the_mean_the_range_and_the_spans_of_each_channel_by_itself() -> None:
    given = case()
    linear = {one.name: given.weights(one.name) for one in given.bound.layout.channels}
    rows = {name: np.abs(weights) for name, weights in linear.items()}
    flag = given.bound.layout.by_name["holiday"].positions

    def rows_of(name: str, **settings: object) -> dict[str, np.ndarray]:
        found = estimate(given.bound, given.x, H, Protocol(estimator=name, estimator_settings=json.dumps(settings)))
        return {one.name: found.matrix[..., one.positions].numpy() for one in given.bound.layout.channels}

    for name, found in rows_of("integrated_gradients").items():
        values = given.values(name)
        away = np.abs(values - values.mean(axis=1, keepdims=True)) if name in SCALES else 0 * values
        np.testing.assert_allclose(found, away[:, None] * rows[name], rtol=1e-3, atol=1e-5)
    for name, found in rows_of("smoothgrad").items():
        np.testing.assert_allclose(found, np.broadcast_to(rows[name], found.shape), rtol=1e-4, atol=1e-5)
    for name, found in rows_of("occlusion", spans=L, replacement="mean").items():
        values = given.values(name)
        away = np.abs(values - values.mean(axis=1, keepdims=True)) if name in SCALES else 0 * values
        np.testing.assert_allclose(found, away[:, None] * rows[name], rtol=1e-2, atol=1e-5)
    shapley = rows_of("shapley_segments", segments=1, coalitions=32, replacement="mean")
    for name in SCALES:
        values = given.values(name)
        change = np.abs((values - values.mean(axis=1, keepdims=True)) @ linear[name].T)
        np.testing.assert_allclose(shapley[name], change[..., None].repeat(values.shape[1], -1), rtol=1e-3, atol=1e-5)
    given.x[0, flag.start + 1] = torch.nan
    missing = estimate(given.bound, given.x, H, Protocol()).matrix
    assert (missing[0, :, flag.start + 1] == 0).all()
    with pytest.raises(ProtocolError, match=r"winit explains one series, not the 5 channels.*shapley_segments"):
        rows_of("winit")
