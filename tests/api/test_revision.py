"""`hrx.revision` on the objects that people hold, and `hrx revision`: origins, adding up, figures, sentences."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import hrx
from hrx.cli import main
from hrx.errors import HrxError

LOOKBACK, HORIZON = 24, 8
DAYS = pd.date_range("2024-01-01", periods=90, freq="D")


@pytest.fixture(scope="module")
def model() -> hrx.adapters.Forecaster:
    torch.manual_seed(0)
    layers = torch.nn.Linear(LOOKBACK, 16), torch.nn.Tanh(), torch.nn.Linear(16, HORIZON)
    return hrx.from_module(
        torch.nn.Sequential(*layers), name="small", limits=hrx.adapters.Limits(lookbacks=(LOOKBACK,))
    )


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    values = np.sin(np.arange(90) / 4) + 0.3 * np.random.default_rng(0).normal(size=90)
    return pd.DataFrame({"ds": DAYS, "y": values})


@pytest.mark.parametrize("scale", ["raw", "standardised"])
def test_both_forecasts_are_those_of_explain_at_their_origins_and_the_parts_add_up(model, frame, scale) -> None:
    small, before = model, frame.copy()
    model = hrx.from_module(lambda x: small.forward(x, HORIZON), scale=scale, limits=small.limits)
    r = hrx.revision(model, frame, HORIZON, since="2024-03-20", until="2024-03-23")
    new = hrx.explain(model, frame[frame.ds <= "2024-03-23"], HORIZON, lookback=LOOKBACK)
    np.testing.assert_allclose(r.new, new.forecast[0, : HORIZON - 3], rtol=1e-5)
    if scale == "raw":
        old = hrx.explain(model, frame[frame.ds <= "2024-03-20"], HORIZON, lookback=LOOKBACK)
        np.testing.assert_allclose(r.old, old.forecast[0, 3:], rtol=1e-5)
        np.testing.assert_allclose(r.expected, old.forecast[0, :3], rtol=1e-5)
    assert list(r.dates) == list(pd.date_range("2024-03-24", "2024-03-28"))
    assert list(r.arrived) == list(pd.date_range("2024-03-21", "2024-03-23"))
    np.testing.assert_array_equal(r.values, frame.y[frame.ds.isin(r.arrived)])
    table = r.to_frame()
    sums = table.groupby("forecast_time").contribution.sum()
    np.testing.assert_allclose(sums, r.new - r.old, rtol=1e-9)
    small = table[table.part == "remainder"].contribution.abs().to_numpy()
    assert (small <= 0.01 * np.abs(r.new - r.old)).all()
    assert len(table) == 5 * (3 + 2)
    pd.testing.assert_frame_equal(frame, before)


def test_an_origin_may_be_a_day_a_month_a_timestamp_or_a_number_before_the_end(model, frame) -> None:
    def origins(since, until=None) -> list[str]:
        found = hrx.revision(model, frame, HORIZON, since=since, until=until).origins
        return [str(one)[:10] for one in found]

    assert origins("2024-03-28") == origins(pd.Timestamp("2024-03-28")) == origins(-2) == ["2024-03-28", "2024-03-30"]
    assert origins(pd.Timestamp("2024-03-28 17:00")) == ["2024-03-28", "2024-03-30"]
    assert origins("2024-02", "2024-03-02") == ["2024-02-29", "2024-03-02"]
    berlin = frame.assign(ds=frame.ds.dt.tz_localize("Europe/Berlin"))
    assert str(hrx.revision(model, berlin, HORIZON, since="2024-03-27").origins[0]) == "2024-03-27 00:00:00+01:00"
    plain = hrx.revision(model, frame.y.to_numpy(), HORIZON, since=87)
    assert (plain.origins, list(plain.arrived)) == ((87, 90), [88, 89, 90])
    hours = frame.assign(ds=pd.date_range("2024-01-01", periods=90, freq="h"))
    assert str(hrx.revision(model, hours, HORIZON, since="2024-01-04 12:00").origins[0]) == "2024-01-04 12:00:00"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"since": "2023-12-01"}, "since='2023-12-01' is outside the series, which has values from 2024-01-01 to"),
        ({"since": "2024-03-25", "until": "2024-06-01"}, "until='2024-06-01' is outside the series"),
        ({"since": "2024-03-25", "until": "2024-03-20"}, "2024-03-25 is not before the new one, 2024-03-20"),
        ({"since": "2024-03-30"}, "2024-03-30 is not before the new one, 2024-03-30: nothing arrived"),
        ({"since": "2024-03-01"}, "have no date in common: 29 values lie between the origins and the horizon is 8"),
        ({"since": "soon"}, "since='soon' is not a time of the series. Give a time of the series, 2024-01-01 to"),
        ({"since": 2.5}, "since=2.5 is not a time of the series"),
        ({"since": -90}, "since=-90 is not a number of values before the end of a series of 90"),
        ({"since": "2024-01-20", "until": "2024-01-22"}, "with 20 values up to 2024-01-20, takes a lookback of 24"),
        ({"since": -2, "lookback": 30}, "takes a lookback of 24 only, not 30"),
        ({"since": -2, "horizon": 1}, "horizon=1 is not a number of steps of which two forecasts share some"),
        ({"since": -2, "precision": 2}, "precision=2 is not a share of the revision"),
    ],
)
def test_origins_that_cannot_be_compared_get_a_sentence(model, frame, arguments, sentence) -> None:
    with pytest.raises(HrxError, match=sentence):
        hrx.revision(model, frame, **({"horizon": HORIZON} | arguments))


def test_several_series_are_refused_and_missing_new_values_are_marked(model, frame) -> None:
    wide = pd.DataFrame({"ds": DAYS, "a": frame.y, "b": frame.y})
    with pytest.raises(HrxError, match="The data hold 2 series: a, b"):
        hrx.revision(model, wide, HORIZON, since=-2)
    gap = frame.copy()
    gap.loc[88, "y"] = np.nan
    r = hrx.revision(model, gap, HORIZON, since=-3)
    assert r.observed.tolist() == [True, False, True]
    assert any("missing" in one for one in r.notes)


def test_figures_name_the_parts_and_a_notebook_shows_the_calendar(model, frame) -> None:
    r = hrx.revision(model, frame, HORIZON, since=-3)
    axes = r.plot_waterfall("2024-04-02").axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0].startswith("drift")
    assert labels[-1] == "remainder"
    assert any(label.startswith("2024-03-30: ") for label in labels)
    ends = sorted((patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches)
    at = r.place("2024-04-02")
    assert {round(float(r.old[at]), 5), round(float(r.new[at]), 5)} <= {
        round(side, 5) for pair in ends for side in pair
    }
    panel = r.plot_calendar().axes[1]
    np.testing.assert_allclose(panel.images[0].get_array()[1:4], r.news.T)
    assert "<img" in r._repr_html_()
    assert "drift" in repr(r)
    with pytest.raises(HrxError, match="2025-01-01 is not among the dates of this revision, 2024-03-31 to 2024-04-04"):
        r.plot_waterfall("2025-01-01")


MODEL = """
import torch

class Bent(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x[:, -7:-1] + x.mean(dim=1, keepdim=True))

def make():
    return Bent()
"""


def test_the_command_prints_the_parts_and_writes_what_was_asked(tmp_path, frame, capsys) -> None:
    frame.to_csv(tmp_path / "sales.csv", index=False)
    (tmp_path / "mean.py").write_text(MODEL)
    words = [
        "revision",
        f"module:{tmp_path}/mean.py:make",
        "--series",
        f"{tmp_path}/sales.csv",
        "--horizon",
        "6",
        "--from",
        "2024-03-27",
    ]
    assert main([*words, "--csv", f"{tmp_path}/r.csv", "--png", f"{tmp_path}/r.png", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for date in found["dates"]:
        parts = date["drift"] + (date["dropped"] or 0) + sum(date["news"]) + date["remainder"]
        assert parts == pytest.approx(date["new"] - date["old"], rel=1e-6)
    table = pd.read_csv(tmp_path / "r.csv")
    assert sorted(table.part.unique()) == ["drift", "dropped history", "news", "remainder"]
    assert (tmp_path / "r.png").stat().st_size > 10000
    assert (tmp_path / "r-largest.png").stat().st_size > 10000
    assert main([*words, "--to", "2024-03-20"]) == 2
    assert "is not before the new one" in capsys.readouterr().err
    assert main([*words[:-1], "-3", "--lookback", "32"]) == 0
    shown = capsys.readouterr().out
    assert "3 values later" in shown
    assert "dropped" in shown
    assert main([*words, "--png", f"{tmp_path}/r.txt"]) == 2
