"""`hrx.explain` with covariates, several targets and other outputs, against the weights of a linear model."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.linear import LinearChannels

import hrx
from hrx.errors import HrxError
from hrx.gift_eval.windows import starts

LOOKBACK, HORIZON, LENGTH = 24, 6, 220
COLUMNS = ["load", "price", "idle", "temp", "holiday"]
ROLES: dict[str, Any] = {"target": "load", "past": ["price", "idle"], "future": ["temp", "holiday"]}


@pytest.fixture
def frame() -> pd.DataFrame:
    """Daily rows, the last `HORIZON` with the known future only."""
    rng = np.random.default_rng(0)
    rows = LENGTH + HORIZON
    table = pd.DataFrame(rng.normal(size=(rows, 4)), columns=COLUMNS[:4])
    table["temp"] *= 10
    table["holiday"] = (rng.random(rows) < 0.2).astype(int)
    table.insert(0, "ds", pd.date_range("2024-01-01", periods=rows, freq="D"))
    table.loc[LENGTH:, ["load", "price", "idle"]] = np.nan
    return table


@pytest.fixture
def model() -> LinearChannels:
    """Reads all but `idle`; a value of `temp` ahead acts from step 3 on."""
    made = LinearChannels(LOOKBACK, HORIZON, past=2, future=2)
    made.weights["past"][:, :, 1] = 0
    made.weights["future"][:, :2, 0] = 0
    return made


def window(frame: pd.DataFrame, name: str) -> np.ndarray:
    stop = LENGTH + (HORIZON if name in ROLES["future"] else 0)
    return frame[name].to_numpy(float)[LENGTH - LOOKBACK : stop]


def weights(model: LinearChannels, name: str) -> np.ndarray:
    role = "target" if name == "load" else "past" if name in ROLES["past"] else "future"
    return model.weights[role][0, :, 0 if role == "target" else ROLES[role].index(name)].numpy()


def explain(model: Any, frame: pd.DataFrame, **more: Any) -> hrx.Explanation:
    return hrx.explain(model, frame, HORIZON, lookback=LOOKBACK, **{**ROLES, **more})


def test_parts_are_slopes_per_standard_deviation_and_changes_of_two_values(
    model: LinearChannels, frame: pd.DataFrame
) -> None:
    x = explain(model, frame)
    expected = sum(weights(model, name) @ window(frame, name) for name in COLUMNS)
    np.testing.assert_allclose(x.forecast[0], expected, rtol=1e-4)
    before = int(0.8 * LENGTH)  # the test region is the last fifth
    for name in COLUMNS[:4]:
        scaled = weights(model, name) * frame[name].to_numpy()[:before].std()
        np.testing.assert_allclose(x.parts[name].matrix[0], np.abs(scaled), rtol=1e-3)
        np.testing.assert_allclose(x.parts[name].signed[0], scaled, rtol=1e-3)  # type: ignore[index]
        np.testing.assert_allclose(x.parts[name].values[0], window(frame, name))
    holiday = x.parts["holiday"]
    assert (holiday.role, holiday.kind) == ("future", "two-valued")
    np.testing.assert_allclose(holiday.matrix[0], np.abs(weights(model, "holiday")), rtol=1e-3, atol=1e-4)
    assert holiday.signed is not None
    assert np.isnan(holiday.signed).all()
    assert x.matrix is not None
    np.testing.assert_array_equal(x.matrix, x.parts["load"].matrix)
    assert x.items == ("load",)


def test_channels_say_what_is_read_and_from_which_step_on(model: LinearChannels, frame: pd.DataFrame) -> None:
    channels = explain(model, frame).channels
    assert list(channels.columns) == [
        "item", "step", "channel", "role", "effect", "effect_error", "share", "sensitivity", "read", "read_from",
    ]  # fmt: skip
    assert len(channels) == HORIZON * len(COLUMNS)
    by_channel = channels.drop_duplicates("channel").set_index("channel")
    assert by_channel["read"].to_dict() == {
        "load": True, "price": True, "idle": False, "temp": True, "holiday": True,
    }  # fmt: skip
    assert by_channel.loc["temp", "read_from"] == 3
    assert by_channel["read_from"].isna().to_dict()["idle"]
    np.testing.assert_allclose(channels.groupby("step")["share"].sum(), 1)
    price = channels[channels["channel"] == "price"]
    summed = np.abs(weights(model, "price")).sum(axis=1) * frame["price"].to_numpy()[: int(0.8 * LENGTH)].std()
    np.testing.assert_allclose(price["sensitivity"], summed, rtol=1e-3)
    assert channels.loc[channels["channel"] == "holiday", "sensitivity"].isna().all()


def test_a_frame_has_each_channel_with_its_times(model: LinearChannels, frame: pd.DataFrame) -> None:
    table = explain(model, frame, steps=[1, 6]).to_frame()
    assert len(table) == 2 * (3 * LOOKBACK + 2 * (LOOKBACK + HORIZON))
    row = table.query("channel == 'temp' and step == 6 and position == 2").iloc[0]
    assert row["role"] == "future"
    assert row["input_time"] == frame["ds"][LENGTH + 2]
    assert row["forecast_time"] == frame["ds"][LENGTH + 5]
    assert row["lag"] == 3
    assert row["value"] == frame["temp"][LENGTH + 2]


def test_a_file_keeps_channels(model: LinearChannels, frame: pd.DataFrame, tmp_path: Path) -> None:
    x = explain(model, frame, output=0.9)
    again = hrx.Explanation.load(x.save(tmp_path / "x.npz"))
    assert (again.output, again.targets, again.variances) == ("0.9", ("load",), x.variances)
    assert list(again.quantiles) == [0.1, 0.5, 0.9]
    np.testing.assert_array_equal(again.parts["temp"].matrix, x.parts["temp"].matrix)
    pd.testing.assert_frame_equal(again.channels, x.channels, rtol=1e-4)
    pd.testing.assert_frame_equal(again.to_frame(), x.to_frame())
    assert again.score(model).g_margin == pytest.approx(x.score().g_margin)


def test_targets_together_are_items_with_all_channels(frame: pd.DataFrame) -> None:
    model = LinearChannels(LOOKBACK, HORIZON, targets=2, future=1)
    x = explain(model, frame, target=["load", "price"], past=(), future="temp", unused="ignore")
    assert x.items == ("load, price/load", "load, price/price")
    assert list(x.parts) == ["load", "price", "temp"]
    for item, target in enumerate(("load", "price")):
        for at, name in enumerate(("load", "price")):
            std = frame[name].to_numpy()[: int(0.8 * LENGTH)].std()
            expected = np.abs(model.weights["target"][item, :, at].numpy()) * std
            np.testing.assert_allclose(x.parts[name].matrix[item], expected, rtol=1e-3)
        np.testing.assert_array_equal(x.matrix[item], x.parts[target].matrix[item])
    one = x[1]
    assert one.items == ("load, price/price",)
    assert one.parts["temp"].matrix.shape == (1, HORIZON, LOOKBACK + HORIZON)
    assert set(one.channels["item"]) == {"load, price/price"}
    assert np.isfinite(one.score().g_margin)


def test_an_output_is_the_explained_number_and_a_spread_says_its_crossings(
    model: LinearChannels, frame: pd.DataFrame
) -> None:
    point, high = explain(model, frame), explain(model, frame, output=0.9)
    steps = np.arange(1, HORIZON + 1)
    np.testing.assert_allclose(high.forecast[0] - point.forecast[0], 0.4 * steps, rtol=1e-3)
    np.testing.assert_allclose(high.quantiles[0.1][0], point.forecast[0] - 0.4 * steps, rtol=1e-3)
    spread = explain(model, frame, output=(0.1, 0.9))
    np.testing.assert_allclose(spread.forecast[0], 0.8 * steps, atol=1e-3)
    assert (spread.output, spread.crossing) == ("0.1:0.9", 0)
    assert spread.variances == point.variances  # that of the median's forecasts
    half = torch.full((HORIZON, 1), 0.5)
    model._level = lambda column, horizon: half if column == 0.1 else -half  # type: ignore[method-assign]
    crossed = explain(model, frame, output=(0.1, 0.9))
    assert crossed.crossing == 1
    assert any("cross at 100.0% of the steps" in note for note in crossed.notes)
    with pytest.raises(HrxError, match="gives no mean"):
        explain(model, frame, output="mean")


def test_an_output_needs_no_covariates(frame: pd.DataFrame) -> None:
    model = LinearChannels(LOOKBACK, HORIZON)
    series = frame["load"][:LENGTH]
    x = hrx.explain(model, series, HORIZON, lookback=LOOKBACK, output=0.9)
    assert not x.parts
    np.testing.assert_allclose(x.matrix[0], np.abs(model.weights["target"][0, :, 0]), rtol=1e-5)
    assert np.isfinite(x.score().g_margin)
    scored = hrx.score(model, series, HORIZON, lookback=LOOKBACK, output=0.9)
    assert scored.g_margin == pytest.approx(x.score().g_margin)
    with pytest.raises(HrxError, match=r"bolt-mini gives .*not 0\.97"):
        hrx.explain("bolt-mini", series, HORIZON, lookback=LOOKBACK, output=0.97)


def test_future_data_is_the_same_as_rows_without_a_target(model: LinearChannels, frame: pd.DataFrame) -> None:
    ahead = frame.loc[LENGTH:, ["ds", "temp", "holiday"]]
    apart = explain(model, frame[:LENGTH], future_data=ahead)
    np.testing.assert_array_equal(apart.parts["temp"].matrix, explain(model, frame).parts["temp"].matrix)


def test_a_black_box_of_frames_reads_covariates(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    def f(past: pd.DataFrame, ahead: pd.DataFrame) -> pd.Series:
        last = past[past["step"] == 0].set_index("window")["load"]
        return ahead["window"].map(last) + 2 * ahead["temp"]

    x = explain(hrx.from_callable(f, frame=True), frame)
    read = x.channels.drop_duplicates("channel").set_index("channel")["read"].to_dict()
    assert read == {"load": True, "price": False, "idle": False, "temp": True, "holiday": False}
    assert x.method.estimator == "occlusion"
    assert "forecasts by f (black box)" in capsys.readouterr().err


def test_a_model_without_covariates_says_so(frame: pd.DataFrame) -> None:
    with pytest.raises(HrxError, match="bolt-mini takes no past covariates: drop price, idle"):
        explain("bolt-mini", frame)


def test_a_column_without_a_role_names_the_keywords(model: LinearChannels, frame: pd.DataFrame) -> None:
    with pytest.raises(HrxError, match=r"idle.*unused"):
        explain(model, frame, past=["price"])


def test_a_missing_future_value_names_the_first_time(model: LinearChannels, frame: pd.DataFrame) -> None:
    frame.loc[LENGTH + 4 :, "temp"] = np.nan
    with pytest.raises(HrxError, match=r"'temp' is known for 4 of 6 steps.*2024-08-12"):
        explain(model, frame)
    frame.loc[:, "temp"] = frame["temp"].ffill()
    frame.loc[LENGTH + 2, "temp"] = np.nan  # a gap
    with pytest.raises(HrxError, match=r"'temp' is missing at 2024-08-10.*no missing values"):
        explain(model, frame)


def test_a_gap_follows_the_rule_of_the_model(model: LinearChannels, frame: pd.DataFrame) -> None:
    frame.loc[LENGTH - 3, "price"] = np.nan
    x = explain(model, frame)
    assert any("1 values of price are missing, the first at 2024-08-05: read as zero" in note for note in x.notes)
    assert not x.parts["price"].observed[0, -3]
    assert not x.parts["price"].matrix[0, :, -3].any()  # nothing to read there


def test_a_constant_column_has_neither_sensitivity_nor_effect(model: LinearChannels, frame: pd.DataFrame) -> None:
    frame["price"] = 3.0
    x = explain(model, frame)
    price = x.channels.query("channel == 'price'")
    assert not price["read"].any()
    assert (price["effect"] < 1e-9).all()  # but for rounding
    assert price["sensitivity"].isna().all()  # it has no slope


def test_a_text_column_is_categorical_where_the_model_takes_codes(model: LinearChannels, frame: pd.DataFrame) -> None:
    frame["holiday"] = np.where(frame["holiday"] == 1, "yes", "no")
    x = explain(model, frame)
    assert x.parts["holiday"].kind == "categorical"
    assert x.parts["holiday"].labels == ("no", "yes")
    assert np.isin(x.parts["holiday"].values, (0, 1)).all()


def test_an_all_missing_column_is_read_as_missing(model: LinearChannels, frame: pd.DataFrame) -> None:
    frame["price"] = np.nan
    x = explain(model, frame)
    assert not x.parts["price"].observed.any()
    assert not x.parts["price"].matrix.any()
    assert not x.channels.query("channel == 'price'")["read"].any()


def test_the_frame_of_the_caller_stays_as_it_was(model: LinearChannels, frame: pd.DataFrame) -> None:
    before = frame.copy()
    explain(model, frame)
    pd.testing.assert_frame_equal(frame, before)


def test_heat_maps_run_past_the_forecast_line_for_what_is_known_ahead(
    model: LinearChannels, frame: pd.DataFrame
) -> None:
    x = explain(model, frame, output=(0.1, 0.9))
    figure = x.plot()
    titles = [one.get_title(loc="left").partition(" (")[0] for one in figure.axes]
    images = [one.get_images()[0] for one in figure.axes if one.get_images()]
    shown = [title for title in titles if title]
    assert shown[0] == "load"
    assert set(shown) == set(COLUMNS)
    ends = {name: image.get_extent()[1] for name, image in zip(shown, images, strict=False)}
    assert ends == {name: HORIZON if name in ROLES["future"] else 0 for name in COLUMNS}
    window = figure.axes[0]
    np.testing.assert_allclose(window.get_lines()[1].get_ydata(), x.quantiles[0.5][0])  # a spread is no value
    assert "0.1 to 0.9" in [text.get_text() for text in window.get_legend().get_texts()]  # type: ignore[union-attr]
    assert "spread 0.1:0.9" in str(figure.get_suptitle())
    about = next(one.get_title(loc="left") for one in figure.axes if one.get_title(loc="left").startswith("idle"))
    assert about == "idle (past): not read"


def test_the_figure_of_channels_has_effects_with_errors_and_shares(model: LinearChannels, frame: pd.DataFrame) -> None:
    x = explain(model, frame)
    bars, shares = x.plot_channels().axes[:2]
    totals = {one.name: one.total for one in x.effects[0]}
    names = [label.get_text().partition(" ")[0] for label in bars.get_yticklabels()]
    assert names == sorted(COLUMNS, key=lambda name: -totals[name])
    np.testing.assert_allclose([bar.get_width() for bar in bars.patches], [totals[name] for name in names])
    np.testing.assert_allclose(shares.get_images()[0].get_array().sum(axis=0), 100)  # type: ignore[union-attr]
    assert "from step 3" in [text.get_text() for text in bars.texts]
    with pytest.raises(HrxError, match="has one channel"):
        hrx.explain("bolt-mini", frame["load"][:LENGTH], HORIZON, lookback=LOOKBACK).plot_channels()


def test_held_out_windows_are_checked_and_scored_with_all_channels(model: LinearChannels, frame: pd.DataFrame) -> None:
    (held_out,) = explain(model, frame, held_out=True).held_out
    assert held_out.windows == 4
    assert not held_out.failed
    assert held_out.quantities is not None
    assert held_out.skill is not None
    end = int(0.8 * LENGTH)
    values = frame["load"].to_numpy()[:LENGTH]
    at = starts(LENGTH, LOOKBACK, HORIZON, 4, 0)
    errors = []
    for start in at:
        forecast = sum(
            weights(model, name)
            @ frame[name].to_numpy(float)[start - LOOKBACK : start + (HORIZON if name in ROLES["future"] else 0)]
            for name in COLUMNS
        )
        errors.append(np.mean((forecast - values[start : start + HORIZON]) ** 2) / values[:end].var())
    assert held_out.skill.mse == pytest.approx(np.mean(errors), rel=1e-3)


def test_a_series_without_a_test_region_says_by_what_its_effects_are_divided(
    model: LinearChannels, frame: pd.DataFrame
) -> None:
    said = "divided by the variance of this forecast alone, which does not compare with those of an audit"
    whole, short = explain(model, frame), explain(model, frame.iloc[LENGTH - LOOKBACK :])
    assert not any("divided by" in note for note in whole.notes)
    assert [note for note in short.notes if said in note]
    assert short.variances[0] == pytest.approx(np.var(short.forecast[0]), rel=1e-4)
