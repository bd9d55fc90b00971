"""The official view: the leaderboard's windows and scores, against gluonts' own evaluator and the published figures."""

import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hrx.gift_eval import Dataset
from hrx.gift_eval.arrow_folders import open_directory
from hrx.gift_eval.catalogue import Configuration, configurations, folders
from hrx.gift_eval.evaluation import measure, official_test
from hrx.gift_eval.frequency import leaderboard_season, season
from hrx.gift_eval.leaderboard import NaiveScores, count_windows, score, starts
from hrx.gift_eval.series import StoredSeries

# MSE, MAE and MASE of the leaderboard's model Seasonal_Naive.
LEADERBOARD_SEASONAL = {
    "bizitobs_l2c/5T/short": (174.30969122, 9.685235305, 0.98602108059),
    "bizitobs_l2c/5T/medium": (294.66615646, 12.864580676, 1.2435997989),
    "bizitobs_l2c/5T/long": (416.33936508, 15.353609871, 1.4542830443),
    "bizitobs_l2c/H/short": (281.84306796, 12.531653026, 1.2140641268),
    "bizitobs_l2c/H/medium": (456.37328869, 15.667392113, 1.5102861226),
    "bizitobs_l2c/H/long": (309.27222222, 13.635487971, 1.4260541526),
    "covid_deaths/D/short": (4435194.4822, 353.7093985, 46.912398255),
    "hospital/M/short": (3464.0771404, 20.005975663, 0.92052782664),
    "jena_weather/10T/short": (1986.203373, 10.556470114, 0.74288746758),
    "jena_weather/10T/medium": (2572.8219336, 12.447531115, 0.71601003917),
    "jena_weather/10T/long": (2044.5376984, 11.441627397, 0.76149237032),
    "jena_weather/D/short": (633.58640873, 13.136656746, 1.5734140297),
    "jena_weather/H/short": (1941.9557226, 11.03569389, 0.72291021856),
    "jena_weather/H/medium": (1951.8111111, 12.670400081, 0.88861334105),
    "jena_weather/H/long": (2714.1007937, 15.67983631, 1.2677178474),
    "m4_hourly/H/short": (3614355.9936, 353.85622987, 1.1932101877),
    "m4_weekly/W/short": (453525.14592, 347.99148275, 2.7772950474),
    "saugeen/D/short": (994.77770833, 15.3725, 3.4130493058),
    "saugeen/M/short": (713.73256138, 16.66289266, 0.97637417307),
    "saugeen/W/short": (1800.4892578, 24.552409363, 1.9906580048),
    "us_births/D/short": (2855120.2133, 1266.88, 1.8648391912),
    "us_births/M/short": (74172117.333, 6704.75, 0.76053107929),
    "us_births/W/short": (5288246.8571, 1720.3214286, 1.5634204338),
}
# MASE of the leaderboard's model Naive, for the configurations of which its repository has one.
LEADERBOARD_NAIVE_MASE = {
    "m4_weekly/W/short": 2.777295047362158,
    "bizitobs_l2c/H/short": 1.0860940042784581,
    "bizitobs_l2c/H/medium": 1.4850898274863054,
    "bizitobs_l2c/H/long": 1.4278952141944932,
}


def dataset(name: str, *targets: Any) -> Dataset:
    """A dataset of the benchmark's name and frequency that holds these targets."""
    frequency = next(folder.frequency for folder in folders() if folder.name == name)
    values = [np.asarray(target, dtype=np.float32).astype(np.float64) for target in targets]
    rows = [StoredSeries(f"T{index}", each) for index, each in enumerate(values)]
    return Dataset(name, frequency, season(frequency), "", len(rows), rows.__getitem__)


def asked(name: str) -> list[Configuration]:
    return [configuration for configuration in configurations() if configuration.folder == name]


def walk(seed: int, length: int) -> Any:
    return np.random.default_rng(seed).normal(size=length).cumsum() + 100


def holes(seed: int, length: int) -> Any:
    """A walk with a missing start, a missing stretch and single missing values, also in the tested part."""
    rng = np.random.default_rng(seed)
    values = walk(seed, length)
    values[rng.random(length) < 0.2] = np.nan
    values[: length // 10] = np.nan
    values[length // 2 : length // 2 + 40] = np.nan
    return values


GluonTS = Callable[[Dataset, Configuration, int], tuple[tuple[float, ...], tuple[float, ...]]]


@pytest.fixture(scope="module")
def gluonts() -> GluonTS:
    """MSE, MAE, MASE of the last value and of the last season by gluonts' own split, predictor and evaluator."""
    pytest.importorskip("gluonts", reason="gluonts is not installed")
    return _gluonts


@pytest.mark.filterwarnings("ignore")
def _gluonts(data: Dataset, configuration: Configuration, windows: int) -> Any:
    import pandas as pd
    from gluonts.dataset.split import split
    from gluonts.ev.metrics import MAE, MASE, MSE
    from gluonts.model import evaluate_forecasts
    from gluonts.model.seasonal_naive import SeasonalNaivePredictor

    start = pd.Period("2000-01-01", freq="D")
    entries = [
        {"item_id": row.item, "start": start, "target": row.values.astype(np.float32)}
        for row in map(data.row, range(data.count))
    ]
    horizon = configuration.prediction_length
    _, template = split(entries, offset=-horizon * windows)
    test = template.generate_instances(prediction_length=horizon, windows=windows, distance=horizon)

    def scores(period: int) -> tuple[float, ...]:
        predictor = SeasonalNaivePredictor(prediction_length=horizon, season_length=period)
        forecasts: Iterator[Any] = predictor.predict(test.input)
        frame = evaluate_forecasts(
            forecasts,
            test_data=test,
            metrics=[MSE(), MAE(), MASE()],
            mask_invalid_label=True,
            seasonality=leaderboard_season(data.frequency),
        )
        return tuple(float(frame[column].iloc[0]) for column in ("MSE[mean]", "MAE[0.5]", "MASE[0.5]"))

    return scores(1), scores(leaderboard_season(data.frequency))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(dataset("solar/H", walk(1, 1500), walk(2, 1600)), id="whole series of two lengths, three terms"),
        pytest.param(dataset("solar/H", holes(3, 1500), walk(4, 1900), holes(5, 1700)), id="missing values"),
        pytest.param(dataset("hospital", np.full(84, 7.0), walk(6, 84)), id="a constant series has no scale"),
        pytest.param(
            dataset("hospital", np.r_[np.full(72, np.nan), walk(7, 12)], walk(8, 90)), id="a past without observations"
        ),
        pytest.param(dataset("saugeenday/D", walk(9, 20000)), id="at most twenty windows"),
        pytest.param(dataset("m4_quarterly", walk(10, 60), walk(11, 16)), id="one window of M4"),
    ],
)
def test_scores_are_those_of_the_leaderboards_evaluator(data: Dataset, gluonts: GluonTS) -> None:
    found = list(score([data]))
    assert [scored.configuration for scored in found] == [configuration.name for configuration in asked(data.name)]
    for scored, configuration in zip(found, asked(data.name), strict=True):
        naive, seasonal = gluonts(data, configuration, scored.windows)
        # gluonts works in the data's own float32.
        assert scored.naive == pytest.approx(naive, rel=1e-5), configuration.name
        assert scored.seasonal == pytest.approx(seasonal, rel=1e-5), configuration.name


def test_a_season_longer_than_the_past_gives_way_to_the_last_value() -> None:
    (scored,) = score([dataset("hospital", [5.0, 6.0, 8.0, *[10.0] * 12])])
    assert scored.seasonal == scored.naive
    assert scored.naive == pytest.approx((4.0, 2.0, 2.0 / 1.5))


def test_windows_are_counted_by_the_shortest_series_and_never_more_than_twenty() -> None:
    for configuration in configurations():
        folder = next(folder for folder in folders() if folder.name == configuration.folder)
        if folder.shortest is not None:
            counted = count_windows(folder.name, folder.shortest, configuration.prediction_length)
            assert counted == configuration.windows, configuration.name
    assert count_windows("solar/H", 10**6, 48) == 20
    assert count_windows("restaurant", 1, 30) == 1


def test_windows_lie_side_by_side_and_end_with_the_series() -> None:
    assert starts(100, 12, 3).tolist() == [64, 76, 88]


def test_every_window_is_forecast_from_what_lies_before_it() -> None:
    values = np.float32(walk(12, 400)).astype(float)
    (scored,) = score([dataset("us_births/W", values)])
    by_window = [np.square(values[start : start + 8] - values[start - 1]).mean() for start in (360, 368, 376, 384, 392)]
    assert scored.windows == len(by_window)
    assert scored.naive.mse == pytest.approx(np.mean(by_window))


def test_a_dataset_that_cannot_be_scored_gives_a_reason_and_the_others_are_scored() -> None:
    broken = Dataset.damaged("us_births/D", "data-00000-of-00001.arrow is cut short.")
    short = dataset("us_births/M", [1.0] * 12)
    empty = dataset("us_births/W", [], [1.0] * 40)
    other = Dataset("solar/H", "D", 1, "", 1, [StoredSeries("a", np.ones(5000))].__getitem__)
    own = Dataset("mine/D", "D", 1, "", 1, [StoredSeries("a", np.ones(50))].__getitem__)
    found = {
        scored.configuration: scored
        for scored in score([broken, short, empty, other, own, dataset("hospital", walk(1, 84))])
    }
    assert len(found) == 7
    assert set(found) >= {"us_births/D/short", "us_births/M/short", "us_births/W/short", "hospital/M/short"}
    assert "cut short" in found["us_births/D/short"].damage
    assert "the shortest series of us_births/M has 12" in found["us_births/M/short"].damage
    assert "the shortest series of us_births/W has 0" in found["us_births/W/short"].damage
    assert "solar/H has frequency D, the benchmark's H" in found["solar/H/long"].damage
    assert math.isnan(found["us_births/M/short"].naive.mase)
    assert not found["hospital/M/short"].damage
    assert found["hospital/M/short"].naive.mse > 0


def test_a_term_that_does_not_fit_does_not_keep_the_others_from_being_scored() -> None:
    short, medium, long = score([dataset("solar/H", walk(1, 600))])
    assert not short.damage
    assert not medium.damage
    assert "solar/H/long tests the last 720 values" in long.damage


def test_rows_in_one_go_are_those_read_one_by_one(tmp_path: Path, save: Any) -> None:
    import pyarrow as pa

    nested = pa.list_(pa.list_(pa.float32()))
    save(tmp_path / "one", [[[1.0, 2.0]], [[3.0, None], []]], [[[4.0]]])
    save(tmp_path / "two", [[[[1.0, 2.0], [3.0, 4.0]]], [[[5.0], [6.0]]]], target=nested)
    for data in open_directory(tmp_path):
        streamed = list(data.rows())
        assert len(streamed) == data.count == 4
        for index, row in enumerate(streamed):
            alone = data.row(index)
            assert row.name == alone.name
            np.testing.assert_array_equal(row.values, alone.values)


@pytest.fixture(scope="module")
def real(real_data: Path) -> dict[str, NaiveScores]:
    return {scored.configuration: scored for scored in score(open_directory(real_data / "gift_eval"))}


def test_on_real_data_the_last_value_has_the_leaderboards_naive_scores(
    real: dict[str, NaiveScores], real_data: Path
) -> None:
    with (real_data / "reference" / "gift_eval_naive.csv").open(newline="") as lines:
        published = list(csv.DictReader(lines))
    assert {line["config"] for line in published} == set(real)
    assert len(published) == 23
    for line in published:
        scored = real[line["config"]]
        assert (scored.windows, scored.instances) == (int(line["windows"]), int(line["instances"])), line["config"]
        assert scored.naive.mse == pytest.approx(float(line["naive_mse"]), rel=1e-6), line["config"]
        assert scored.naive.mae == pytest.approx(float(line["naive_mae"]), rel=1e-6), line["config"]
    for name, mase in LEADERBOARD_NAIVE_MASE.items():
        assert real[name].naive.mase == pytest.approx(mase, rel=1e-6), name


def test_on_real_data_the_last_season_has_the_leaderboards_seasonal_naive_scores(real: dict[str, NaiveScores]) -> None:
    assert set(real) == set(LEADERBOARD_SEASONAL)
    for name, published in LEADERBOARD_SEASONAL.items():
        assert real[name].seasonal == pytest.approx(published, rel=1e-6), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_real_data_gluonts_seasonal_naive_has_the_official_scores_by_the_official_evaluation(
    real_data: Path,
) -> None:
    pytest.importorskip("gluonts", reason="gluonts is not installed")
    from gluonts.model.seasonal_naive import SeasonalNaivePredictor

    datasets, checked = {one.name: one for one in open_directory(real_data / "gift_eval")}, 0
    for one in configurations():
        if one.name not in LEADERBOARD_SEASONAL:
            continue
        test = official_test(datasets[one.folder], one)
        predictor = SeasonalNaivePredictor(prediction_length=one.prediction_length, season_length=test.season)
        found = measure(test, predictor.predict(test.data.input), quantiles=False)
        figures = found["MSE[mean]"], found["MAE[0.5]"], found["MASE[0.5]"]
        assert figures == pytest.approx(LEADERBOARD_SEASONAL[one.name], rel=1e-6), one.name
        checked += 1
    assert checked == 23


def test_series_scored_together_are_scored_as_each_by_itself() -> None:
    targets = [walk(1, 90), holes(2, 140), walk(3, 60), np.full(130, np.nan), holes(4, 61), walk(5, 200)]
    parts = [next(iter(score([dataset("m4_quarterly", each)]))) for each in targets]
    (found,) = score([dataset("m4_quarterly", *targets)])
    observed = [int(np.isfinite(np.float32(each[-8:])).sum()) for each in targets]
    assert found.instances == len(targets)
    for name in ("naive", "seasonal"):
        for place, metric in enumerate(("mse", "mae")):
            each = [getattr(part, name)[place] * count for part, count in zip(parts, observed, strict=True) if count]
            assert getattr(getattr(found, name), metric) == pytest.approx(sum(each) / sum(observed), rel=1e-12)
