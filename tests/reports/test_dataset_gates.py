"""Datasets beyond a bound: which are listed, which fail a gate alone, and which leave it undecided."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs

from hrx.errors import Exit
from hrx.reports import compare
from hrx.reports.compare import CheckpointComparison
from hrx.reports.gates import Judged, judge, parse


def two_sides(changes: dict[str, list[float]], **columns: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Base with errors of 1, and new with these relative changes on each dataset, one series each."""
    names = [name for name, values in changes.items() for _ in values]
    marks = [f"s{i}" for i in range(len(names))]
    moved = [1 + value for values in changes.values() for value in values]
    shared = {"dataset": names, "series_fingerprint": marks}
    base = runs(len(names), fingerprint="a" * 64, mse=1.0, **shared)
    return base, runs(len(names), fingerprint="b" * 64, **({"mse": moved} | shared | columns))


def judged(changes: dict[str, list[float]], gate: str = "mse <= +5%", **options: object) -> CheckpointComparison:
    return compare(*two_sides(changes), [gate], **options)


GOOD = {f"good{i}/H": [0.0] * 3 for i in range(9)}


def test_a_dataset_that_broke_fails_a_gate_that_the_median_passes_and_is_the_first_reason() -> None:
    found = judged(GOOD | {"broken/H": [1.6, 1.7, 1.2]})
    (gate,) = found.gates
    assert gate.estimate == (0.0, 0.0, 0.0)
    (broken,) = gate.datasets
    assert broken[:6] == ("broken/H", "failed", pytest.approx(1.6), 3, 3, 3)
    assert (gate.outcome, found.exit) == ("failed", Exit.GATE_FAILED)
    assert gate.reason == (
        "broken/H fails it alone: all its 3 configurations lie beyond the bound, and its change (+160.00%) exceeds "
        "+50.00%, 10 times the bound"
    )
    assert found.verdict == "failed: mse <= +5%; over 30 pairs of runs in 10 sources."
    first = found.to_text(200).split("FAILED     mse <= +5%: ")[1]
    assert first.startswith(gate.reason)
    assert "1 of 10 datasets beyond the bound (of their configurations): broken/H +160.00% (3 of 3)" in first
    assert f"| **FAILED** | {gate.reason}<br>" in found.to_markdown().replace("\\", "")
    assert f"mse &lt;= +5%: failed: {gate.reason};" in found.to_junit()


def test_with_one_series_the_sentence_says_this_series() -> None:
    found = judged(GOOD | {"broken/H": [1.6]})
    assert found.gates[0].reason.startswith("this series of broken/H fails it alone: its configuration lies beyond")


@pytest.mark.parametrize("changes", [[0.4, 0.4, 0.4], [1.6, 1.6, 0.0]], ids=["too small", "not all of it"])
def test_a_dataset_that_is_merely_beyond_the_bound_is_listed_and_changes_nothing(changes: list[float]) -> None:
    found = judged(GOOD | {"worse/H": changes})
    (gate,) = found.gates
    assert (gate.outcome, found.exit) == ("passed", Exit.DONE)
    assert [(one.dataset, one.outcome, one.reason) for one in gate.datasets] == [("worse/H", "beyond", "")]
    assert "1 of 10 datasets beyond the bound" in found.to_text(100)


def test_more_datasets_beyond_the_bound_leave_a_gate_undecided_by_its_interval() -> None:
    found = judged(GOOD | {f"worse{i}/H": [0.1] * 3 for i in range(4)})
    (gate,) = found.gates
    assert (gate.outcome, len(gate.datasets), gate.tested) == ("undecided", 4, 13)
    assert gate.reason.startswith("the interval contains the bound")


def alone(gate: str, values: list[float], **options: object) -> Judged:
    """A gate on ten unchanged sources of three series, and on one with these values, all of one series."""
    names = [f"d{i}/H" for i in range(10) for _ in range(3)] + ["last/H"] * len(values)
    series = [f"s{i}" for i in range(30)] + ["one"] * len(values)
    unchanged = [0.0 if gate.startswith(("mse", "beats")) else 0.1] * 30
    return judge(parse(gate), [*unchanged, *values], names, series, **options)


@pytest.mark.parametrize(
    ("gate", "safe", "alarming"),
    [
        ("mse <= +2%", 0.2, 0.21),
        ("mse <= +0%", 0.2, 0.21),  # a bound of zero counts as 2 %
        ("mse <= -5%", 0.5, 0.51),
        ("rank >= -10%", -0.5, -0.51),  # half is as far from 1 as double
        ("g_own >= -0.05", -0.5, -0.51),
        ("g_own >= 0", -0.2, -0.21),
        ("g_shuffled <= 0.05", 0.5, 0.51),
        ("beats_naive >= -5%", -0.5, -0.51),
        ("beats_naive >= -20%", -0.5, -0.51),  # ten times -20 % is more than everything
    ],
)
def test_the_guard_takes_ten_times_the_bound(gate: str, safe: float, alarming: float) -> None:
    assert [one.outcome for one in alone(gate, [safe] * 3).datasets if one.dataset == "last/H"] == ["beyond"]
    found = alone(gate, [alarming] * 3)
    assert (found.outcome, found.datasets[0].dataset, found.datasets[0].outcome) == ("failed", "last/H", "failed")


def test_a_bound_that_is_no_percentage_is_guarded_in_the_unit_of_base() -> None:
    """`effective_lookback <= 0`, at a base of 100 positions: the guard begins with 20 positions, not with 0.2."""
    assert alone("effective_lookback <= 0.1", [19.0] * 2, level=100.0).outcome == "passed"
    assert alone("effective_lookback <= 0.1", [21.0] * 2, level=100.0).outcome == "failed"


def test_a_single_run_that_stops_beating_naive_fails_no_share_alone() -> None:
    assert alone("beats_naive >= -5%", [-1.0]).outcome == "passed"
    assert alone("beats_naive >= -5%", [-1.0, -1.0]).outcome == "failed"


def test_a_dataset_where_new_stops_beating_naive_is_beyond_and_fails_alone_by_its_measured_change_only() -> None:
    stopped = [False] * 30 + [True] * 3
    near = alone("g_own >= -0.02", [0.1] * 3, stopped=stopped)
    assert (near.outcome, near.datasets[0].beyond) == ("passed", 3)
    far = alone("g_own >= -0.02", [-0.3] * 3, stopped=stopped)
    assert far.outcome == "failed"


def test_an_audits_own_figure_fails_by_no_dataset_alone() -> None:
    values = [0.1] * 10 + [9.0]
    found = judge(parse("mse <= 0.5", absolute=True), values, [f"d{i}/H" for i in range(11)], ["T1"] * 11)
    assert (found.outcome, [one.outcome for one in found.datasets]) == ("passed", ["beyond"])


def test_a_gate_from_below_is_judged_on_each_dataset_too() -> None:
    base, new = two_sides({f"good{i}/H": [0.0] * 3 for i in range(6)} | {"fell/H": [-0.6] * 3})
    base, new = base.assign(rank=base["mse"]), new.assign(rank=new["mse"])
    (gate,) = compare(base, new, ["rank >= -10%"]).gates
    assert [(one.dataset, one.outcome) for one in gate.datasets] == [("fell/H", "failed")]


def test_seeds_of_a_configuration_are_one_value() -> None:
    sides = [[], []]
    for seed in range(5):
        for frames, one in zip(sides, two_sides(GOOD | {"broken/H": [1.6]}), strict=True):
            frames.append(one.assign(seed=seed, starts=f"[{seed}]"))
    base, new = (pd.concat(frames, ignore_index=True) for frames in sides)
    (broken,) = compare(base, new, ["mse <= +5%"]).gates[0].datasets
    assert (broken.beyond, broken.n, broken.series) == (1, 1, 1)


@pytest.mark.parametrize("gate", ["mse <= +5%", "g_own >= 0", "mse <= 0.1", "beats_naive >= -5%"])
def test_a_dataset_that_new_could_not_be_scored_on_leaves_a_gate_undecided(gate: str) -> None:
    changes = GOOD | {"lost/H": [0.0] * 4}
    status = ["done"] * 27 + ["excluded"] * 4
    reason = [None] * 27 + ["constant forecast"] * 4
    found = compare(*two_sides(changes, status=status, reason=reason, g_own=0.5), [gate, "mse <= -50%"])
    open_one, failed = found.gates
    (lost,) = open_one.datasets
    assert (lost.dataset, lost.outcome) == ("lost/H", "undecided")
    why = "lost/H has no pair: 4 runs of new excluded, such as: constant forecast"
    assert (open_one.outcome, open_one.reason) == ("undecided", why)
    assert failed.outcome == "failed"
    # A dataset that new was never tried on is another plan, not a loss.
    base, new = two_sides(changes)
    assert compare(base, new[:27], ["mse <= +5%"]).gates[0].outcome == "passed"


def test_an_error_of_zero_that_became_positive_lies_beyond_any_bound() -> None:
    base, new = two_sides(GOOD | {"zero/H": [0.0, 0.0]})
    base["mse"], new["mse"] = base["mse"].where(base["dataset"] != "zero/H", 0.0), new["mse"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare(base, new, ["mse <= +500%"])
    (gate,) = found.gates
    assert (gate.outcome, gate.datasets[0].change) == ("failed", math.inf)
    assert "its change (from 0) exceeds +5000.00%" in gate.reason
    assert np.isinf(found.datasets.loc["zero/H", "mse"])
