"""Channels with roles: windows, layouts, what a model takes and gives, and a model bound to one layout."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.linear import LinearChannels
from torch import Tensor

from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.inputs import Inputs, Layout, Output, Outputs, Role, Window
from hrx.adapters.wrapped import Bound
from hrx.audit.admission import parity
from hrx.audit.attribution.gradients import jacobian
from hrx.errors import HrxError

L, H = 6, 3


def window(batch: int = 2) -> Window:
    draw = torch.Generator().manual_seed(0)

    def values(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    return Window(
        values(batch, L, 2), values(batch, L, 1), values(batch, L + H, 2), values(batch, 1),
        {"target": ("load", "wind"), "past": ("price",), "future": ("temp", "holiday"), "static": ("area",)},
    )  # fmt: skip


def test_a_layout_puts_channels_one_after_another_and_back() -> None:
    given = window()
    layout = Layout.of(given, H, {"holiday": "two-valued"})
    x = layout.pack(given)
    assert layout.sections == (L, L, L, L + H, L + H, 1)
    assert x.shape == (2, layout.size) == (2, sum(layout.sections))
    assert torch.equal(x[:, layout.by_name["wind"].positions], given.target[..., 1])
    assert torch.equal(x[:, layout.by_name["holiday"].positions], given.future[..., 1])
    assert layout.by_name["holiday"].kind == "two-valued"
    assert layout.by_name["temp"].kind == "number"
    again = layout.unpack(x)
    assert again.names == given.names
    for role, values in given.roles():
        assert torch.equal(getattr(again, role), values)


def test_a_window_names_its_channels_where_nobody_did() -> None:
    assert Window(torch.zeros(1, L, 2)).named("target") == ("target 1", "target 2")


def test_one_series_has_the_layout_of_its_values() -> None:
    x = torch.arange(12.0).reshape(2, L)
    layout = Layout.of(Window(x[..., None]), H)
    assert torch.equal(layout.pack(layout.unpack(x)), x)
    assert layout.sections == (L,)


def test_rows_of_a_bound_model_are_the_weights_of_each_channel() -> None:
    model, given = LinearChannels(L, H, targets=2, past=1, future=2, static=1), window()
    layout = Layout.of(given, H)
    for explained in (0, 1):
        bound = Bound(model, layout, explained)
        x = layout.pack(given)
        assert parity(bound, x, H) <= 1e-6
        rows = jacobian(bound, x, H).jacobian
        expected = torch.cat([model.weights[role][explained].flatten(1) for role in model.weights], dim=1)
        torch.testing.assert_close(rows[0], expected.to(rows))
        torch.testing.assert_close(rows[1], expected.to(rows))


def test_a_spread_is_the_upper_level_less_the_lower() -> None:
    model, given = LinearChannels(L, H, targets=2, past=1, future=2, static=1), window()
    layout = Layout.of(given, H)
    x = layout.pack(given)
    low, high, spread = (Bound(model, layout, 1, Output.parse(one)).forward(x, H) for one in (0.1, "0.9", "0.1:0.9"))
    torch.testing.assert_close(spread, high - low)
    assert spread.min() > 0


def test_a_bound_model_takes_its_own_layout_only() -> None:
    model, given = LinearChannels(L, H, targets=2, past=1, future=2, static=1), window()
    bound = Bound(model, Layout.of(given, H))
    with pytest.raises(ModelError, match=r"bound to windows of 37 positions and a horizon of 3"):
        bound.forward(torch.zeros(1, 5), H)


@pytest.mark.parametrize(
    ("role", "taken", "at", "sentence"),
    [
        (
            "past", Role("optional", ahead_missing="zero"), (1, slice(2, 4), 0),
            "2 price lacks 2 of 6 values, the first at position 3",
        ),
        (
            "future", Role("optional", missing="zero"), (0, slice(L + 1, None), 1),
            "1 holiday lacks 2 of 3 values, the first at step 2 ahead",
        ),
        (
            "static", Role("optional"), (1, 0),
            "2 area lacks 1 of 1 values, the first at position 1",
        ),
    ],
)  # fmt: skip
def test_a_missing_value_that_a_model_does_not_take_is_named(role: str, taken: Role, at: Any, sentence: str) -> None:
    model, given = LinearChannels(L, H, targets=2, past=1, future=2, static=1), window()
    layout = Layout.of(given, H)
    complete = layout.pack(given)
    getattr(given, role)[at] = torch.nan
    x = layout.pack(given)
    model.inputs = Inputs((1, None), **dict.fromkeys(("past", "future", "static"), Role("optional")) | {role: taken})
    with pytest.raises(
        ModelError, match=f"takes no missing values of {role} covariates, but in window {sentence}: fill"
    ):
        Bound(model, layout).forward(x, H)
    assert Bound(model, layout).refusal_of_missing(complete) is None
    takes = replace(taken, missing="zero", ahead_missing="zero")
    model.inputs = replace(model.inputs, **{role: takes})
    expected = Bound(model, layout).forward(x.nan_to_num(), H)
    torch.testing.assert_close(Bound(model, layout).forward(x, H), expected)


def test_float64_and_a_copy_keep_the_layout() -> None:
    model, given = LinearChannels(L, H, targets=2, past=1, future=2, static=1), window()
    layout = Layout.of(given, H)
    twin = Bound(model, layout).double()
    assert twin is not None
    x = layout.pack(given).double()
    single = Bound(model, layout).forward(x.float(), H).double()
    torch.testing.assert_close(twin.forward(x, H), single, rtol=1e-5, atol=1e-5)
    assert twin.forward(x, H).dtype == torch.float64


def test_a_model_shows_what_it_reads_and_gives() -> None:
    model = LinearChannels(L, H)
    model.inputs = Inputs((1, None), past=Role("optional", categorical="native"), static=Role("required", ("area",)))
    assert repr(model) == (
        "<linear-channels generated: 1 to any targets; past: optional, categorical; static: area (required); "
        "point (median), quantiles 0.1 to 0.9 and between>"
    )
    model.identity = replace(model.identity, model="generated")
    assert repr(model).startswith("<generated: 1 to any targets; ")


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"past": Role()}, "takes no past covariates: drop price"),
            ({"future": Role("required", ("temp", "rain"))}, "was trained with the future covariates temp, rain"),
            ({"targets": (1, 1)}, "forecasts one target, not 2"),
            ({"targets": (3, None)}, "forecasts at least 3 targets, not 2"),
        ],
    )
    def test_channels_that_a_model_does_not_take_are_named(self, change: dict[str, object], sentence: str) -> None:
        model = LinearChannels(L, H, targets=2, past=1, future=2, static=1)
        model.inputs = replace(model.inputs, **change)
        with pytest.raises(HrxError, match=sentence):
            Bound(model, Layout.of(window(), H))

    def test_required_covariates_are_named(self) -> None:
        inputs = Inputs(future=Role("required", ("temp",)))
        assert inputs.refusal({"target": ("y",)}) == "needs its future covariates: temp"

    def test_codes_need_a_model_that_takes_them(self) -> None:
        names = {"target": ("y",), "static": ("area",)}
        assert "encode area" in (Inputs(static=Role("optional")).refusal(names, ["area"]) or "")
        assert Inputs(static=Role("optional", categorical="native")).refusal(names, ["area"]) is None

    def test_a_setting_beyond_the_limits_is_refused(self) -> None:
        model = LinearChannels(L, H, targets=2, past=1, future=2, static=1)
        model.limits = Limits(longest_horizon=2)
        with pytest.raises(ModelError, match="forecasts at most 2 steps, not 3"):
            Bound(model, Layout.of(window(), H))


class TestOutputs:
    @pytest.mark.parametrize(
        ("given", "columns"),
        [
            ("point", ("point",)), ("mean", ("mean",)), ("median", (0.5,)), (0.9, (0.9,)), ("0.9", (0.9,)),
            ((0.1, 0.9), (0.1, 0.9)), ("0.1:0.9", (0.1, 0.9)),
        ],
    )  # fmt: skip
    def test_words_levels_and_spreads_are_read(self, given: object, columns: Sequence[object]) -> None:
        assert Output.parse(given).columns == columns
        assert Output.parse(str(Output.parse(given))) == Output.parse(given)

    @pytest.mark.parametrize("given", ["q90", 1.0, 0, (0.9, 0.1), (0.1, 0.5, 0.9), None, "0.1:"])
    def test_anything_else_is_refused(self, given: object) -> None:
        with pytest.raises(HrxError, match="is not an output"):
            Output.parse(given)

    def test_what_the_official_call_does_not_give_is_refused(self) -> None:
        deciles = Outputs((0.1, 0.5, 0.9), point="median")
        assert deciles.refusal(Output.parse("median")) is None
        assert deciles.refusal(Output.parse((0.1, 0.9))) is None
        assert deciles.refusal(Output.parse(0.3)) == "gives the quantiles 0.1, 0.5, 0.9, not 0.3"
        assert deciles.refusal(Output.parse("mean")) == "gives no mean"
        between = replace(deciles, interpolates=True)
        assert between.refusal(Output.parse(0.3)) is None
        assert between.refusal(Output.parse(0.95)) == "gives quantiles between 0.1 and 0.9, not 0.95"
        assert "its output is the point forecast" in (Outputs().refusal(Output.parse(0.9)) or "")
        assert Outputs(point="median").refusal(Output.parse("median")) is None

    def test_what_a_model_takes_and_gives_is_said_in_one_line(self) -> None:
        takes = Inputs((1, None), past=Role("optional"), future=Role("required", ("temp",)))
        assert str(takes) == "1 to any targets; past: optional; future: temp (required)"
        assert str(Inputs()) == "one target"
        assert str(Outputs((0.1, 0.9), interpolates=True, point="median")) == (
            "point (median), quantiles 0.1 to 0.9 and between"
        )
