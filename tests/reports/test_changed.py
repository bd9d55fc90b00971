"""What changed between two checkpoints: shift and overlap by definition, lags by name, gates, sentences, the page."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.compared import MARKS, side
from helpers.constructed import store

from hrx.cli.main import main
from hrx.errors import Exit, HrxError
from hrx.records.reading import Reading, lag_bins
from hrx.reports import compare
from hrx.reports.changed import pair_change
from hrx.reports.gates import parse
from hrx.reports.page.compare import render_comparison

L, H = 96, 24
STEPS, SCORED = range(1, H + 1), [1, 4, 8, 12, 16, 20, 24]


def linear(lags: dict[int, float]) -> np.ndarray:
    """`(H, L)`: the weights of a model that reads these lags, from the forecast step."""
    weights = np.zeros((H, L))
    for lag, weight in lags.items():
        for h in range(H):
            at = L - lag + h
            if 0 <= at < L:
                weights[h, at] = weight
    return weights


def reading(weights: np.ndarray, x: np.ndarray) -> Reading:
    return Reading.of(np.abs(np.broadcast_to(weights, (len(x), *weights.shape))), STEPS, SCORED, x @ weights.T)


def with_readings(frame: pd.DataFrame, weights: np.ndarray, only: int = 30) -> pd.DataFrame:
    """Runs with the readings and forecasts of a linear model on windows of their own, two a run."""
    rng = np.random.default_rng(7)
    texts = [reading(weights, rng.standard_normal((2, L))).to_text() for _ in MARKS]
    texts = [text if place < only else None for place, text in enumerate(texts)]
    return frame.assign(reading=texts, variance=1.0, lookback=L, horizon=H)


def test_shift_and_overlap_are_those_of_their_definitions() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.gamma(0.3, size=(2, 3, H, L))
    base, new = rng.standard_normal((2, 3, H))
    found = pair_change(
        Reading.of(ours, STEPS, SCORED, base), Reading.of(theirs, STEPS, SCORED, new), variance=4.0
    )  # fmt: skip
    shifts = [np.mean((n - b) ** 2) / 4 for b, n in zip(base, new, strict=True)]
    assert found.shifts == pytest.approx(shifts, rel=1e-6)
    assert found.shift == pytest.approx(np.mean(shifts))
    bins = lag_bins(L + H - 1)
    overlaps = []
    for own, other in zip(ours, theirs, strict=True):
        of_rows = []
        for step in SCORED:
            masses = []
            for matrix in (own, other):
                share = matrix[step - 1] / matrix[step - 1].sum()
                mass = dict.fromkeys(range(len(bins) - 1), 0.0)
                for t in range(L):
                    lag = L - t + step - 1
                    mass[max(b for b in mass if bins[b] <= lag)] += share[t]
                masses.append(mass)
            of_rows.append(1 - sum(abs(masses[1][b] - masses[0][b]) for b in masses[0]) / 2)
        overlaps.append(np.mean(of_rows))
    assert found.overlaps == pytest.approx(overlaps, abs=2e-3)  # rows are stored in half precision


def test_a_row_of_zeros_has_no_share_and_is_left_out() -> None:
    matrix = np.zeros((1, H, L))
    matrix[0, 0, 5] = 1.0
    one = Reading.of(matrix, STEPS, SCORED, np.zeros((1, H)))
    assert pair_change(one, one, 1.0).overlap == pytest.approx(1.0)
    nothing = Reading.of(np.zeros((1, H, L)), STEPS, SCORED, np.zeros((1, H)))
    assert math.isnan(pair_change(nothing, one, 1.0).overlap)


def test_a_checkpoint_compared_with_itself_has_shift_zero_and_overlap_one() -> None:
    one = with_readings(side("a"), linear({1: 1.0, 24: 0.5}))
    found = compare(one, one, ["forecast_shift <= 0%", "reading_overlap >= 1"])
    assert set(found.changed.shift.values) == {0.0}
    assert found.changed.overlap.values == pytest.approx([1.0] * 10)
    assert found.changed.headline == "Forecasts and readings are the same in 10 sources."
    assert found.exit == Exit.DONE
    assert found.to_text().startswith("Forecasts and readings are the same in 10 sources.\n")
    assert found.changed.windows == ()


def test_a_copy_that_lost_one_lag_is_described_by_that_lag() -> None:
    base = with_readings(side("a"), linear({1: 1.0, 24: 0.5, 48: 0.5}))
    new = with_readings(side("b"), linear({1: 1.0, 48: 0.5}))
    found = compare(base, new).changed
    name, was, now, moved = found.lags[0]
    assert name == "lag 24"
    assert now == 0
    assert was == pytest.approx(moved.interval.point * -1)
    assert "lag 24 holds 0 % of the importance instead of" in found.headline
    assert "over 10 sources." in found.headline
    # Lag 24 has weight 0.5 for all steps and the inputs have variance 1.
    assert found.shift.interval.point == pytest.approx(0.25, rel=0.25)


def test_one_changed_dataset_is_named_and_comes_first() -> None:
    base = with_readings(side("a"), linear({1: 1.0}))
    new = with_readings(side("b"), linear({1: 1.0}))
    moved = with_readings(side("b"), linear({1: 1.3}))
    chosen = new["dataset"] == "d3/H"
    new.loc[chosen, "reading"] = moved.loc[chosen, "reading"]
    found = compare(base, new).changed
    assert found.groups[0][0] == "d3/H"
    assert "most on d3/H (" in found.headline
    assert {one.dataset for one in found.windows} == {"d3/H"}
    assert len(found.windows) == 3


def test_gates_on_forecasts_and_readings_pass_fail_and_stay_open() -> None:
    base, new = (with_readings(side(mark), linear({24: weight})) for mark, weight in (("a", 1.0), ("b", 1.3)))
    found = compare(base, new, ["forecast_shift <= 5%", "forecast_shift <= 50%", "reading_overlap >= 0.9"])
    assert [one.outcome for one in found.gates] == ["failed", "passed", "passed"]
    assert found.exit == Exit.GATE_FAILED
    without = compare(side("a"), side("b"), ["forecast_shift <= 5%"])
    assert (without.gates[0].outcome, without.gates[0].reason) == ("undecided", "no value")
    assert without.exit == Exit.NOT_DECIDED
    assert "the records hold no readings" in without.changed.headline


def test_an_audit_cannot_be_gated_by_what_only_a_pair_has() -> None:
    with pytest.raises(HrxError, match=r"It compares two checkpoints: use `hrx compare`"):
        parse("forecast_shift <= 5%", absolute=True)


def test_records_without_a_reading_are_left_out_and_counted() -> None:
    base, new = (with_readings(side(mark), linear({1: 1.0}), only=12) for mark in "ab")
    found = compare(base, new)
    assert (found.pairs, found.changed.pairs) == (30, 12)


def test_few_sources_decide_nothing_for_other_data() -> None:
    frames = [
        with_readings(side(mark, dataset=["a/H" if i % 2 else "b/H" for i in range(30)]), linear({1: weight}))
        for mark, weight in (("a", 1.0), ("b", 1.3))
    ]
    found = compare(*frames)
    assert "not decided for other data: 2 sources" in found.changed.headline
    assert "of their variance (range [" in found.changed.headline
    assert "of the importance instead" not in found.changed.headline
    assert all("of fewer a range that is no interval" in table.note for table in found.changed.tables())


def test_every_format_begins_with_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = store(with_readings(side("a"), linear({24: 0.5, 48: 0.5})), tmp_path / "base.db")
    new = store(with_readings(side("b"), linear({48: 0.5})), tmp_path / "new.db")
    files = {name: tmp_path / f"c.{name}" for name in ("md", "xml", "html", "json")}
    options = ["--summary", "--junit", "--page", "--json"]
    given = [part for option, file in zip(options, files.values(), strict=True) for part in (option, str(file))]
    assert main(["compare", str(base), str(new), *given]) == Exit.DONE
    text = capsys.readouterr().out
    assert text.startswith("Forecasts moved by")
    about = json.loads(files["json"].read_text())["changed"]
    assert about["lags"][0]["lag"] == "lag 24"
    assert about["forecast_shift"]["clusters"] == 10
    assert about["headline"] in files["md"].read_text().splitlines()[0].replace("\\", "")
    assert about["headline"] in " ".join(files["xml"].read_text().split())
    page = files["html"].read_text()
    assert about["headline"] in page
    assert page.count("<figure>") == 6


def test_the_page_has_no_picture_where_nothing_moved() -> None:
    one = with_readings(side("a"), linear({1: 1.0}))
    assert "<figure>" not in render_comparison(compare(one, one))
