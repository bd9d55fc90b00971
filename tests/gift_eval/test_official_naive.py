"""The real datasets at hand, against the leaderboard's published Naive scores."""

import csv
import math
import os
from pathlib import Path

import pytest

from hrx.gift_eval import Dataset
from hrx.gift_eval.store import open_directory

DATA = os.environ.get("HRX_TEST_DATA")
pytestmark = pytest.mark.skipif(
    not DATA, reason="HRX_TEST_DATA is not set: it names the folder that holds gift_eval/ and reference/"
)


@pytest.fixture(scope="module")
def opened() -> dict[str, Dataset]:
    return {dataset.name: dataset for dataset in open_directory(Path(str(DATA)) / "gift_eval")}


@pytest.fixture(scope="module")
def published() -> list[dict[str, str]]:
    with (Path(str(DATA)) / "reference" / "gift_eval_naive.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_every_folder_is_read_without_damage(opened: dict[str, Dataset], published: list[dict[str, str]]) -> None:
    assert set(opened) == {row["path"] for row in published}
    for dataset in opened.values():
        assert not dataset.damage
        for index in range(dataset.count):
            assert dataset.read(index).values.size > 0


def test_repeating_the_last_value_over_the_official_windows_gives_the_published_naive_scores(
    opened: dict[str, Dataset], published: list[dict[str, str]]
) -> None:
    for row in published:
        dataset, horizon = opened[row["path"]], int(row["prediction_length"])
        every = [dataset.read(index).values.tolist() for index in range(dataset.count)]
        shortest = min(map(len, every))
        windows = 1 if "m4" in row["path"] else min(max(1, math.ceil(0.1 * shortest / horizon)), 20)
        assert windows == int(row["windows"]), row["config"]
        assert windows * len(every) == int(row["instances"]), row["config"]
        squared, absolute, count = 0.0, 0.0, 0
        for values in every:
            for window in range(windows):
                start = len(values) - (windows - window) * horizon
                for value in values[start : start + horizon]:
                    error = value - values[start - 1]
                    squared += error * error
                    absolute += abs(error)
                    count += 1
        assert squared / count == pytest.approx(float(row["naive_mse"]), rel=1e-6), row["config"]
        assert absolute / count == pytest.approx(float(row["naive_mae"]), rel=1e-6), row["config"]
