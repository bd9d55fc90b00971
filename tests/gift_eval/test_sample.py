import csv
from importlib.resources import files

import numpy as np
import pytest

from hrx.gift_eval import admits, cut
from hrx.gift_eval.sample import open_sample

SAMPLE = {dataset.name: dataset for dataset in open_sample()}


@pytest.mark.parametrize(
    ("name", "season", "items", "length", "missing"),
    [
        ("sf_temps/H", 24, ["temp"], 8760, 1),
        ("seattle/H", 24, ["temp"], 8760, 1),
        ("seattle/D", 7, ["precipitation", "temp_max", "temp_min", "wind"], 1461, 0),
        ("co2/W", 1, ["co2"], 2284, 59),
        ("elnino/M", 12, ["temperature"], 732, 0),
        ("sunspots/M", 12, ["sunspots"], 3120, 0),
        ("irradiance/H", 24, ["ghi"], 8760, 0),
        ("core_cpi/M", 12, ["index"], 743, 0),
        ("wti/B", 5, ["price"], 8611, 290),
    ],
)
def test_the_sample_has_the_stated_series(name: str, season: int, items: list[str], length: int, missing: int) -> None:
    dataset = SAMPLE[name]
    found = [dataset.read(index) for index in range(dataset.count)]
    assert (dataset.season, dataset.frequency, bool(dataset.domain)) == (season, name.split("/")[1], True)
    assert [(s.item, s.values.size, s.missing) for s in found] == [(item, length, missing) for item in items]


@pytest.mark.parametrize(("lookback", "horizon"), [(96, 24), (512, 96), (512, 192)])
def test_every_series_of_the_sample_is_cut_at_every_setting_it_admits(lookback: int, horizon: int) -> None:
    for dataset in SAMPLE.values():
        for index in range(dataset.count):
            series = dataset.read(index)
            assert admits(series.values.size, lookback, horizon)
            windows = cut(series, lookback, horizon, 4, 1)
            assert np.isfinite(windows.x).all()
            assert np.isfinite(windows.y).all()


def test_the_missing_hour_of_san_francisco_repeats_the_hour_before() -> None:
    lines = files("hrx.gift_eval.sample").joinpath("sf_temps.csv").read_text(encoding="utf-8").splitlines()
    cells = [record["temp"] for record in csv.DictReader(lines)]
    gap = cells.index("")
    values = SAMPLE["sf_temps/H"].read(0).values
    assert values[gap] == values[gap - 1] == float(cells[gap - 1])


def test_the_sample_has_enough_sources_for_a_verdict_with_one_to_spare() -> None:
    assert len({name.partition("/")[0] for name in SAMPLE}) >= 8


def test_the_sample_is_small_and_says_where_it_comes_from() -> None:
    folder = files("hrx.gift_eval.sample")
    tables = [entry for entry in folder.iterdir() if entry.name.endswith(".csv")]
    assert len(tables) == len(SAMPLE)
    assert sum(len(entry.read_bytes()) for entry in tables) < 600_000
    assert "public domain" in folder.joinpath("README.md").read_text(encoding="utf-8")
