"""Relative changes on each dataset: what is listed, what fails, and what stays undecided."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs

from hrx.errors import Exit
from hrx.reports import compare
from hrx.reports.compare import CheckpointComparison
from hrx.reports.gates import DatasetChange


def two_sides(changes: dict[str, list[float]], **columns: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Base with errors of 1, and new with these relative changes on each dataset."""
    names = [name for name, values in changes.items() for _ in values]
    marks = [f"s{i}" for i in range(len(names))]
    moved = [1 + value for values in changes.values() for value in values]
    shared = {"dataset": names, "series_fingerprint": marks}
    base = runs(len(names), fingerprint="a" * 64, mse=1.0, **shared)
    return base, runs(len(names), fingerprint="b" * 64, **({"mse": moved} | shared | columns))


def judged(changes: dict[str, list[float]], gate: str = "mse <= +5%", **options: object) -> CheckpointComparison:
    return compare(*two_sides(changes), [gate], **options)


GOOD = {f"good{i}/H": [0.0] * 10 for i in range(9)}


def test_a_dataset_that_broke_fails_a_gate_that_the_median_passes() -> None:
    found = judged(GOOD | {"broken/H": [1.6] * 10})
    (gate,) = found.gates
    assert gate.estimate == (0.0, 0.0, 0.0)
    (broken,) = gate.datasets
    assert (broken.dataset, broken.outcome, broken.median, broken.beyond, broken.n) == (
        "broken/H",
        "failed",
        1.6,
        10,
        10,
    )
    # Ten of ten, times the ten datasets of Holm's correction.
    assert broken.p == pytest.approx(10 / 2**10)
    assert (gate.outcome, found.exit) == ("failed", Exit.GATE_FAILED)
    assert found.verdict == "failed: mse <= +5% (on broken/H); over 100 pairs of runs."


def test_a_dataset_with_too_few_pairs_for_its_test_leaves_the_gate_undecided() -> None:
    found = judged(GOOD | {"broken/H": [1.6, 1.3]})
    (gate,) = found.gates
    (broken,) = gate.datasets
    assert (gate.outcome, broken.outcome, broken.p) == ("undecided", "undecided", 1.0)
    assert broken.power is not None
    assert broken.power.now == 0
    assert found.exit == Exit.NOT_DECIDED
    assert "undecided: mse <= +5% (on broken/H)" in found.verdict
    shown = found.to_text(100)
    assert "beyond the bound on single datasets: 1 undecided of 10" in shown
    assert f"broken/H  undecided  +145.00%  +145.00%  2 of 2     1.000     0%{broken.power.needed:>12}" in shown
    assert "broken/H" in found.to_markdown().split("Datasets beyond")[1]


def test_the_correction_over_datasets_is_holms() -> None:
    """Of seven datasets, eight of eight times seven is 0.027, and seven of eight times six is 0.21."""
    found = judged({f"good{i}/H": [0.0] * 8 for i in range(5)} | {"a/H": [0.2] * 8, "b/H": [0.2] * 7 + [0.0]})
    (gate,) = found.gates
    assert [(one.dataset, one.outcome) for one in gate.datasets] == [("a/H", "failed"), ("b/H", "undecided")]
    assert [one.p for one in gate.datasets] == pytest.approx([7 / 2**8, 6 * 9 / 2**8])


def test_one_series_that_broke_is_seen_in_the_mean_where_the_median_hides_it() -> None:
    found = judged(GOOD | {"mixed/H": [0.0, 0.0, 0.0, 0.0, 9.0]})
    (gate,) = found.gates
    (mixed,) = gate.datasets
    assert (mixed.outcome, mixed.median, mixed.mean) == ("undecided", 0.0, pytest.approx(1.8))
    assert gate.outcome == "undecided"


def test_a_strict_gate_fails_by_the_estimate_of_a_dataset() -> None:
    found = judged(GOOD | {"broken/H": [1.6]}, strict=True)
    assert [one.outcome for one in found.gates[0].datasets] == ["failed"]
    assert found.exit == Exit.GATE_FAILED


def test_a_gate_from_below_is_judged_on_each_dataset_too() -> None:
    names = {f"good{i}/H": [0.0] * 10 for i in range(3)} | {"fell/H": [-0.5] * 10}
    base, new = two_sides(names)
    base, new = base.assign(rank=base["mse"]), new.assign(rank=new["mse"])
    (gate,) = compare(base, new, ["rank >= -10%"]).gates
    assert [(one.dataset, one.outcome) for one in gate.datasets] == [("fell/H", "failed")]


def test_a_difference_is_not_judged_on_each_dataset() -> None:
    assert judged(GOOD | {"broken/H": [1.6] * 10}, "mse <= 0.05").gates[0].datasets == ()


def test_seeds_of_a_configuration_are_one_pair_of_the_test() -> None:
    sides = [[], []]
    for seed in range(5):
        for frames, one in zip(sides, two_sides(GOOD | {"broken/H": [1.6]}), strict=True):
            frames.append(one.assign(seed=seed, starts=f"[{seed}]"))
    base, new = (pd.concat(frames, ignore_index=True) for frames in sides)
    (broken,) = compare(base, new, ["mse <= +5%"]).gates[0].datasets
    assert (broken.beyond, broken.n, broken.outcome) == (1, 1, "undecided")


def test_a_dataset_that_new_could_not_be_scored_on_leaves_the_gate_undecided() -> None:
    changes = GOOD | {"lost/H": [0.0] * 4}
    status = ["done"] * 90 + ["excluded"] * 4
    reason = [None] * 90 + ["constant forecast"] * 4
    found = compare(*two_sides(changes, status=status, reason=reason), ["mse <= +5%", "g_own >= 0"])
    gate = found.gates[0]
    (lost,) = gate.datasets
    assert (lost.dataset, lost.outcome) == ("lost/H", "undecided")
    assert lost.reason == "no pair: 4 runs of new excluded, such as: constant forecast"
    assert gate.outcome == "undecided"
    assert "constant forecast" in found.to_text(120)
    # A dataset that new was never tried on is another plan, not a loss.
    base, new = two_sides(changes)
    assert compare(base, new[:90], ["mse <= +5%"]).gates[0].outcome == "passed"


def test_an_error_of_zero_that_became_positive_lies_beyond_any_bound() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        change = DatasetChange.of(np.array([0.0, 0.0, 5e-324]), np.array([0.5, 0.0, 0.5]))
    assert change.changes.tolist() == [math.inf, 0.0, math.inf]
    assert change.mean == math.inf
    assert math.isnan(DatasetChange.of(np.empty(0), np.empty(0)).median)
