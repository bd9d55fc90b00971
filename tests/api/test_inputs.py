"""`hrx.explain` on the objects of a notebook: the matrix of the tensor they stand for, the right times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import hrx
from hrx.errors import HrxError
from hrx.gift_eval import read_series
from hrx.gift_eval.tables import Options

LOOKBACK, HORIZON, SERIES = 40, 6, ("north", "south")


class Mixing(torch.nn.Module):
    """A smooth model in which every step reads every input differently."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(
            torch.randn(LOOKBACK, HORIZON, generator=torch.Generator().manual_seed(0)) / 8
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weights) * x[:, -1:]


@pytest.fixture(scope="module")
def model() -> Any:
    return hrx.from_module(Mixing(), name="mixing")


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    """`(2, 60)`."""
    return np.random.default_rng(0).normal(size=(2, 60)).cumsum(axis=1) / 4


DATES = pd.date_range("2023-01-31", periods=60, freq="ME")


def test_settings_are_a_dict_or_text(model: Any, values: np.ndarray) -> None:
    given = {"horizon": HORIZON, "lookback": LOOKBACK, "estimator": "smoothgrad"}
    as_dict = hrx.explain(model, values, settings={"samples": 2}, **given)
    as_text = hrx.explain(model, values, settings='{"samples": 2}', **given)
    assert as_dict.method == as_text.method != hrx.explain(model, values, **given).method
    np.testing.assert_array_equal(as_dict.matrix, as_text.matrix)


def test_the_estimators_are_listed() -> None:
    assert {"input_gradient", "occlusion", "smoothgrad"} <= set(hrx.estimators())


def _long(values: np.ndarray, *names: str) -> pd.DataFrame:
    frames = [
        pd.DataFrame(dict(zip(names, (item, DATES, row), strict=True)))
        for item, row in zip(SERIES, values, strict=True)
    ]
    return pd.concat(frames).sample(frac=1, random_state=0)


def _darts(values: np.ndarray) -> Any:
    darts = pytest.importorskip("darts", reason="darts is not installed")
    return [darts.TimeSeries.from_times_and_values(DATES, row) for row in values]


def _gluonts(values: np.ndarray) -> Any:
    pandas = pytest.importorskip("gluonts.dataset.pandas", reason="gluonts is not installed")
    index = pd.date_range("2023-01-01", periods=60, freq="h")
    frames = {item: pd.DataFrame({"target": row}, index=index) for item, row in zip(SERIES, values, strict=True)}
    return pandas.PandasDataset(frames, target="target", freq="h")


def _datasets(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("datasets", reason="datasets is not installed").Dataset.from_dict(columns)


def _gift_eval(values: np.ndarray) -> Any:
    start = [pd.Timestamp("2020-01-06")] * 2
    return _datasets({"item_id": SERIES, "start": start, "freq": ["W-MON"] * 2, "target": values.tolist()})


def _fev(values: np.ndarray) -> Any:
    """A window of fev; its past ends where the horizon before the end begins."""
    fev = pytest.importorskip("fev", reason="fev is not installed")
    longer = pd.date_range("2023-01-31", periods=60 + HORIZON, freq="ME")
    targets = [[*row, *[0.0] * HORIZON] for row in values]
    full = _datasets({"name": SERIES, "when": [list(longer)] * 2, "load": targets})
    return fev.EvaluationWindow(full, -HORIZON, HORIZON, 1, None, "name", "when", ["load"], [], [], [])


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "unique_id/ds/y": lambda v: _long(v, "unique_id", "ds", "y"),
    "item_id/timestamp/target": lambda v: _long(v, "item_id", "timestamp", "target"),
    "frame of autogluon": lambda v: _long(v, "item_id", "timestamp", "target").set_index(["item_id", "timestamp"]),
    "wide, dates in the index": lambda v: pd.DataFrame(v.T, index=DATES, columns=SERIES),
    "wide, periods": lambda v: pd.DataFrame(v.T, index=DATES.to_period("M"), columns=SERIES),
    "wide, dates as text": lambda v: pd.DataFrame({"day": DATES.strftime("%d/%m/%Y"), "north": v[0], "south": v[1]}),
    "wide, no dates": lambda v: pd.DataFrame(v.T, columns=SERIES),
    "whole numbers as times": lambda v: _long(v, "unique_id", "ds", "y").assign(
        ds=lambda f: f["ds"].rank().astype(int)
    ),
    "nullable dtypes": lambda v: _long(v, "unique_id", "ds", "y").astype({"y": "Float64", "unique_id": "string"}),
    "array": lambda v: v,
    "list of lists": lambda v: v.tolist(),
    "list of Series": lambda v: [pd.Series(row, index=DATES, name=n) for n, row in zip(SERIES, v, strict=True)],
    "dict": lambda v: dict(zip(SERIES, v, strict=True)),
    "tensor": lambda v: torch.as_tensor(v),
    "gluonts": _gluonts,
    "darts": _darts,
    "GIFT-Eval rows": _gift_eval,
    "datasets, sequences": lambda v: _datasets({"id": SERIES, "timestamp": [list(DATES)] * 2, "target": v.tolist()}),
    "datasets, long": lambda v: _datasets(_long(v, "item_id", "timestamp", "target").to_dict("list")),
    "fev": _fev,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_matrix_of_the_tensor_that_it_stands_for(kind, model, values):
    expected = hrx.audit.explain(model, torch.as_tensor(values[:, -LOOKBACK:]).float(), HORIZON).numpy()
    x = hrx.explain(model, KINDS[kind](values), HORIZON, lookback=LOOKBACK)
    order = [0, 1] if x.items[0] not in SERIES else [x.items.index(name) for name in SERIES]
    np.testing.assert_array_equal(x.matrix[order], expected)
    np.testing.assert_array_equal(np.abs(x.signed), x.matrix)
    np.testing.assert_array_equal(x.x[order], values[:, -LOOKBACK:])
    if x.times[0] is not None and isinstance(x.times[0].inputs, pd.DatetimeIndex):
        starts = {
            "gluonts": ("2023-01-01", "h"),
            "GIFT-Eval rows": ("2020-01-06", "W-MON"),
            "wide, periods": ("2023-01-01", "MS"),
        }
        start, step = starts.get(kind, ("2023-01-31", "ME"))
        dates = pd.date_range(start, periods=60 + HORIZON, freq=step)
        pd.testing.assert_index_equal(x.times[0].inputs, dates[60 - LOOKBACK : 60], check_names=False, exact="equiv")
        pd.testing.assert_index_equal(x.times[0].forecasts, dates[60:], check_names=False, exact="equiv")
    else:
        assert kind in ("array", "tensor", "list of lists", "dict", "wide, no dates", "whole numbers as times")


def test_columns_of_other_names_are_given_by_keywords(model, values):
    frame = _long(values, "shop", "day", "units").assign(price=1.0)
    x = hrx.explain(model, frame, HORIZON, lookback=LOOKBACK, id="shop", date="day", value="units")
    np.testing.assert_array_equal(x["north"].x[0], values[0, -LOOKBACK:])
    with pytest.raises(HrxError, match=r"several columns of numbers: 'units', 'price'"):
        hrx.explain(model, frame, HORIZON, id="shop", date="day")


def _frame_of(index: pd.DatetimeIndex) -> pd.DataFrame:
    return pd.DataFrame({"y": np.sin(np.arange(len(index)))}, index=index)


@pytest.mark.parametrize(
    ("every", "missing"),
    [
        (pd.date_range("2024-02-29", periods=30, freq="ME"), (3, 7)),
        (pd.date_range("2023-11-30", periods=30, freq="QE"), (4,)),
        (pd.date_range("2024-02-28 06:00", periods=80, freq="D"), (10, 11)),
        (pd.date_range("2024-02-28", periods=80, freq="B"), (20,)),
        (pd.date_range("2024-02-28", periods=80, freq="15min"), (5,)),
        (pd.date_range("2024-03-29", periods=80, freq="h", tz="Europe/Berlin"), (50,)),
        (pd.date_range("2024-10-25", periods=80, freq="h", tz="Europe/Berlin"), (50,)),
        (pd.date_range("2024-03-01", periods=60, freq="D", tz="America/New_York"), (9,)),
        (pd.date_range("2024-01-31", periods=30, freq="ME", tz="Asia/Kolkata"), (9,)),
        (pd.date_range("2024-10-25", periods=80, freq="30min", tz="UTC"), (9,)),
    ],
    ids=lambda index: f"{index.freqstr} {index.tz}" if isinstance(index, pd.DatetimeIndex) else "gaps",
)
def test_times_are_right_over_gaps_month_ends_and_time_zones(every, missing):
    seen, after = every[:-HORIZON], every[-HORIZON:]
    reader = hrx.from_module(lambda x, horizon: x[:, :horizon] * 2.0, name="reader")
    x = hrx.explain(reader, _frame_of(seen.delete(list(missing))), HORIZON)
    frame = x.to_frame()
    assert len(frame) == HORIZON * len(seen)
    inputs = pd.Index(frame.loc[frame["step"] == 2, "input_time"])
    pd.testing.assert_index_equal(inputs, seen, check_names=False, exact="equiv")
    forecasts = pd.Index(frame.drop_duplicates("step")["forecast_time"])
    pd.testing.assert_index_equal(forecasts, after, check_names=False, exact="equiv")
    assert np.flatnonzero(~x.observed[0]).tolist() == list(missing)
    assert f"{len(missing)} of {len(seen)} values were missing" in x.notes[0]
    # The model reads input h for step h and nothing else.
    read = frame[frame["importance"] > 0]
    assert (read["step"].to_numpy() - 1 == read["position"].to_numpy() + len(seen)).all()
    assert (read["lag"] == len(seen)).all()


def test_a_month_that_is_dated_on_any_day_keeps_its_date():
    days = ["2024-01-17", "2024-02-03", "2024-03-29", "2024-04-01", "2024-05-20"]
    (one,) = read_series(pd.Series(range(5), index=pd.to_datetime(days)), Options(frequency="M")).series
    assert list(one.times.strftime("%Y-%m-%d")) == days
    assert list(one.after(2).strftime("%Y-%m-%d")) == ["2024-06-29", "2024-07-29"]


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (lambda v: v, {"horizon": 5000}, r"horizon=5000 is beyond 1024 steps.*steps=\[1, 2500, 5000\]"),
        (lambda v: v, {"horizon": 0}, "horizon=0 is not a number of steps"),
        (lambda v: v, {"lookback": 61}, "Series 0 has 60 values.*fewer than lookback=61"),
        (lambda v: v, {"lookback": 0}, "lookback=0 is not a number of values"),
        (lambda v: v, {"steps": [0, 1]}, "Steps count from 1 to 6"),
        (lambda v: v, {}, r"failed on 2 windows of 60 values.*give lookback="),
        (lambda v: v[:, :, None], {}, r"shape \(2, 60, 1\).*hrx.audit.explain"),
        (lambda v: v[:1].T, {}, r"shape \(60, 1\) would be 60 series of one value. Transpose it"),
        (lambda v: np.where(np.arange(60) % 59 > 15, np.nan, v), {"lookback": LOOKBACK}, "98% of its last 40 values"),
        (lambda v: np.full(60, np.nan), {}, "series series: all 60 values are missing"),
        (lambda v: np.full(60, 1e60), {"lookback": LOOKBACK}, "beyond the range of a 32-bit float"),
        (lambda v: [*v[0], np.inf], {}, "value 61 is inf"),
        (lambda v: [], {}, "hold no series"),
        (lambda v: 3, {}, "A int cannot be read as series"),
        (lambda v: {"a": set(v[0])}, {}, "A set has no order, so it cannot be read as a series. Give a list."),
        (lambda v: _frame_of(DATES.where(DATES[9] != DATES)), {}, "The frame, row 9, column 'date': there is no date"),
        (lambda v: pd.concat([_frame_of(DATES)] * 2), {}, "rows 0 and 60, column 'date': two rows have the date"),
        (lambda v: _frame_of(DATES).set_index(DATES + pd.Timedelta("1ms")), {}, "times below a second"),
        (lambda v: pd.DataFrame({"word": ["a", "b"]}), {}, "no column of numbers"),
        (lambda v: pd.DataFrame({"unique_id": ["a"] * 60, "y": v[0]}), {}, "no column of dates"),
        (lambda v: pd.DataFrame({"unique_id": "a", "ds": [1, 1, 2], "y": [1.0, 2, 3]}), {}, "two rows of 'a' have"),
        (lambda v: [{"target": v[0], "start": "2024-01-01"}], {}, "a start and no frequency"),
        (lambda v: "sample:co2,elnino", {}, "several datasets"),
    ],
)  # fmt: skip
def test_what_cannot_be_explained_is_a_sentence_at_once(data, options, sentence, model, values):
    with pytest.raises(HrxError, match=sentence):
        hrx.explain(model, data(values), **{"horizon": HORIZON, **options})


def test_a_column_of_dates_that_cannot_be_read_is_named_in_a_note(model, values, tmp_path, capsys):
    frame = pd.DataFrame({"Date": [f"day {number}" for number in range(60)], "v": values[0]})
    sentence = "The frame, column 'Date': 'day 0' is not a date, so the rows are taken in their order, without times"
    explained = hrx.explain(model, frame, HORIZON, lookback=LOOKBACK)
    assert explained.times == (None,)
    assert explained.notes == (f"{sentence}. Write dates like 2024-01-31",)
    with pytest.raises(HrxError, match="No series of the given DataFrame can be audited"):
        hrx.run_audit(model, data=frame, settings="512x96", out=tmp_path)
    assert sentence in capsys.readouterr().err


def test_targets_that_are_forecast_together_are_no_audit_of_each(model, tmp_path):
    with pytest.raises(HrxError, match="seattle/D are forecast together, which hrx explain measures"):
        hrx.run_audit(model, data="sample:seattle/D?target=temp_max,temp_min&unused=ignore", out=tmp_path)


def test_series_of_unequal_length_share_the_lookback_of_the_shortest(values):
    reader = hrx.from_module(lambda x, horizon: x[:, :horizon] * 2.0, name="reader")
    x = hrx.explain(reader, {"a": values[0], "b": values[1, :25]}, HORIZON)
    assert x.lookback == 25
    np.testing.assert_array_equal(x["a"].x[0], values[0, -25:])


@pytest.mark.parametrize(
    ("limits", "longest", "expected"),
    [
        ({}, 100, 100), ({}, 9000, 4096), ({"longest_lookback": 64}, 100, 64), ({"lookback_multiple": 16}, 100, 96),
        ({"lookbacks": (32, 512)}, 100, 32), ({"lookbacks": (8192,)}, 9000, 8192),
        ({"longest_lookback": 8192}, 9000, 8192),
    ],
)  # fmt: skip
def test_the_default_lookback_is_the_longest_that_model_and_series_allow(limits, longest, expected):
    from hrx.adapters import Limits
    from hrx.api.explain import default_lookback

    assert default_lookback(Limits(**limits), longest, 24) == expected


@pytest.mark.parametrize("lookback", [None, LOOKBACK])
def test_a_horizon_that_the_model_does_not_have_is_named_before_any_lookback(values, lookback):
    from hrx.adapters import Limits

    limited = hrx.from_module(Mixing(), name="mixing", limits=Limits(lookbacks=(LOOKBACK,), longest_horizon=HORIZON))
    with pytest.raises(HrxError, match=r"^mixing forecasts at most 6 steps, not 12\.$"):
        hrx.explain(limited, values, 2 * HORIZON, lookback=lookback)
