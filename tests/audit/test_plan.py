import hashlib
import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small import StoredSeries
from hypothesis import given
from hypothesis import strategies as st

from hrx.adapters import Identity
from hrx.adapters.contract import ADAPTER_VERSION
from hrx.audit import Protocol, attribution
from hrx.audit.runner.plan import (
    QUICK,
    STAR,
    ModelKey,
    Run,
    Setting,
    admission_windows,
    in_random_order,
    parse_settings,
    plan,
)
from hrx.errors import HrxError, ProtocolError
from hrx.gift_eval import Dataset, UnusableSeries
from hrx.records.record import DONE

IDENTITY = Identity("model", "family", "checkpoint", "f" * 64, "library 1.0")


def dataset(name: str, lengths: list[int]) -> Dataset:
    """Series of the given lengths; those of a negative length hold no observed value."""
    rng = np.random.default_rng(0)
    values = [rng.normal(size=length) if length > 0 else np.full(-length, np.nan) for length in lengths]
    return Dataset(name, "H", 24, "Test", len(lengths), lambda index: StoredSeries(f"T{index}", values[index]))


def planned(datasets: list[Dataset], settings: tuple[Setting, ...] = QUICK, **changes: object) -> list[Run]:
    options = {"series": 3, "seeds": 2, "windows": 4, "protocol": Protocol()} | changes
    return plan([IDENTITY], datasets, settings, **options)  # type: ignore[arg-type]


def fields(run: Run) -> dict[str, Any]:
    """The record of a run before it is measured, without the time of writing."""
    return asdict(run.record(DONE).updated(created=None))


def test_the_star_has_the_seven_settings_of_the_paper() -> None:
    assert len(set(STAR)) == 7
    assert {s.lookback for s in STAR if s.horizon == 96} == {96, 192, 320, 512}
    assert {s.horizon for s in STAR if s.lookback == 512} == {24, 48, 96, 192}


def test_a_full_dataset_has_42_runs_and_one_of_a_single_series_14() -> None:
    assert len(planned([dataset("many/H", [2000] * 9)], STAR)) == 42
    assert len(planned([dataset("single/H", [2000])], STAR)) == 14


@pytest.mark.parametrize("text", ["", "96", "96x", "x24", "96x24,", "star,quick", "96 x 24", "-96x24"])
def test_settings_that_cannot_be_parsed_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(HrxError, match="Unknown settings"):
        parse_settings(text)
    with pytest.raises(HrxError, match="has a zero"):
        parse_settings("0x24")


def test_settings_are_named_or_paired_and_repeated_pairs_count_once() -> None:
    assert parse_settings("star") == STAR
    assert parse_settings("96x24,512x96,96x24") == (Setting(96, 24), Setting(512, 96))


def test_keys_differ_in_everything_that_decides_a_number_and_in_nothing_else() -> None:
    one = dataset("one/H", [700])
    reference = planned([one], seeds=1)[0]
    changed = [
        planned([one], seeds=1, windows=5)[0],
        planned([one], seeds=1, protocol=Protocol(draws=6))[0],
        planned([one], seeds=1, protocol=Protocol(area="morf"))[0],
        planned([one], seeds=2)[len(QUICK)],
        planned([one], seeds=1)[1],
        planned([dataset("two/H", [700])], seeds=1)[0],
        planned([dataset("one/H", [701])], seeds=1)[0],
    ]
    keys = {run.key for run in changed}
    assert len(keys) == len(changed)
    assert reference.key not in keys
    assert planned([dataset("one/H", [700])], seeds=1)[0].key == reference.key


def test_the_key_of_a_default_run_is_the_hash_of_everything_that_decides_its_numbers() -> None:
    run = planned([dataset("one/H", [700])], seeds=1)[0]
    protocol = {
        "estimator": "input_gradient", "estimator_settings": "{}", "axis": "step", "truncation": False,
        "distance": False, "fine": False, "draws": 4, "draws_kind": "antithetic", "precision": None, "max_draws": 64,
        "scored": 8,
        "fractions": 9, "area": "gap", "permutations": 3, "seed": 0, "variance_windows": "64",
    }  # fmt: skip
    decisive = {
        "family": "family", "fingerprint": "f" * 64, "library": "library 1.0",
        "torch": torch.__version__.split("+")[0], "adapter_version": ADAPTER_VERSION, "dataset": "one/H",
        "series": run.series.fingerprint, "season": 24, "setting": "96x24", "seed": 0, "windows": 4,
        "protocol": protocol, "protocol_version": "5",
    }  # fmt: skip
    assert run.key == hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def test_the_limit_on_draws_decides_a_key_only_where_a_precision_is_requested() -> None:
    one = dataset("one/H", [700])

    def run(**settings: float) -> Run:
        return planned([one], seeds=1, protocol=Protocol(**settings))[0]  # type: ignore[arg-type]

    assert run(max_draws=32).key == run().key
    assert fields(run(max_draws=32)) == fields(run())
    assert run(precision=0.1, max_draws=32).key != run(precision=0.1).key
    assert run(precision=0.1, max_draws=32).record(DONE).max_draws == 32


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """release(version): installs that version of a package that registers the estimator `by_plugin`."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plugin_of_this_test.py").write_text(
        "from hrx.audit.attribution import Estimator\n"
        'BY_PLUGIN = Estimator("by_plugin", "hrx.audit.attribution.gradients:saliency")\n'
    )
    about = tmp_path / "plugin_of_this_test.dist-info"
    about.mkdir()
    (about / "entry_points.txt").write_text("[hrx.estimators]\nby_plugin = plugin_of_this_test:BY_PLUGIN\n")

    def install(version: str) -> None:
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: a-plugin\nVersion: {version}\n")
        attribution._registered.cache_clear()

    yield install
    attribution._registered.cache_clear()


def test_a_new_release_of_the_package_of_an_estimator_changes_the_keys_of_its_runs_only(
    release: Callable[[str], None],
) -> None:
    one = dataset("one/H", [700])
    own = planned([one], seeds=1)[0].key
    keys = {}
    for version in ("1.0", "1.1"):
        release(version)
        assert attribution.find_estimator("by_plugin").package == f"a-plugin {version}"
        keys[version] = planned([one], seeds=1, protocol=Protocol(estimator="by_plugin"))[0].key
        assert planned([one], seeds=1)[0].key == own
    assert keys["1.0"] != keys["1.1"]
    release("1.0")
    assert planned([one], seeds=1, protocol=Protocol(estimator="by_plugin"))[0].key == keys["1.0"]
    assert {estimator.package for estimator in attribution.BUILT_IN.values()} == {""}


def test_draws_are_shared_by_checkpoints_and_separate_for_runs() -> None:
    other = Identity("other", "family", "checkpoint", "0" * 64, "library 1.0")
    runs = plan([IDENTITY, other], [dataset("d/H", [700])], QUICK, series=1, seeds=2, windows=4, protocol=Protocol())
    ours, theirs = runs[: len(runs) // 2], runs[len(runs) // 2 :]
    assert [run.stream for run in ours] == [run.stream for run in theirs]
    assert len({run.stream for run in ours}) == len(ours)


def test_unreadable_series_and_damaged_datasets_stay_in_the_plan_with_their_error() -> None:
    runs = planned([dataset("gaps/H", [700, -700, 700]), Dataset.damaged("broken/H", "broken.arrow is cut short")])
    unreadable = [run for run in runs if run.series_error]
    errors = {str(run.series_error).split(":")[0] for run in unreadable}
    assert errors == {"gaps/H series T1", "broken.arrow is cut short"}
    assert len(unreadable) == 2 * 2 * 2
    assert len({run.key for run in runs}) == len(runs)
    for run in unreadable:
        with pytest.raises(HrxError, match=re.escape(str(run.series_error))):
            run.cut_windows()


def test_series_are_spaced_among_those_that_are_long_enough_for_the_setting() -> None:
    lengths = [100, 700, 150, 700, 150, 700, 150, 700, 150, 700, 90]
    chosen: dict[str, list[int]] = {}
    for run in planned([dataset("mixed/H", lengths)], seeds=1):
        chosen.setdefault(str(run.setting), []).append(run.index)
    # 96x24 needs 120 values: nine of the eleven have them, and the middle one of these is the fifth, number 5.
    assert chosen == {"96x24": [1, 5, 9], "512x96": [1, 5, 9]}
    only_two = planned([dataset("two/H", [100, 700, 150, 700])], (Setting(512, 96),), seeds=1)
    assert [run.index for run in only_two] == [1, 3]


def test_where_no_series_is_long_enough_the_plan_keeps_some_with_the_reason() -> None:
    runs = planned([dataset("short/H", [100, 90, 80, 70])], (Setting(512, 96),), seeds=1)
    assert [run.index for run in runs] == [0, 2, 3]
    assert all("too few for 512x96" in run.refusal for run in runs)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_every_prefix_of_a_plan_is_a_fair_sample(counts: list[int], settings: int, seeds: int, series: int) -> None:
    datasets = [dataset(f"d{number}/H", [700] * count) for number, count in enumerate(counts)]
    grid = tuple(Setting(96 + number, 24) for number in range(settings))
    runs = planned(datasets, grid, series=series, seeds=seeds)
    assert len({run.key for run in runs}) == len(runs) == sum(min(c, series) for c in counts) * settings * seeds
    for end in range(1, len(runs) + 1):
        some = runs[:end]
        for name in {run.dataset.name for run in some}:
            of_dataset = [run for run in some if run.dataset.name == name]
            at_settings = Counter(run.setting for run in of_dataset)
            assert max(at_settings.values()) - min(at_settings[setting] for setting in grid) <= 1
        first_pass = [sum(run.dataset.name == d.name for run in some) for d in datasets]
        if end <= len(datasets):  # each dataset once, before any of them twice
            assert max(first_pass) == 1


def test_the_best_example_of_a_dataset_is_the_first_series_at_the_largest_setting() -> None:
    runs = planned([dataset("long/H", [700, 700])], seeds=1)
    ordered = sorted(runs, key=lambda run: run.example_rank, reverse=True)
    assert [(str(run.setting), run.index) for run in ordered] == [
        ("512x96", 0), ("512x96", 1), ("96x24", 0), ("96x24", 1),
    ]  # fmt: skip


def test_the_same_weights_under_another_family_are_another_model() -> None:
    assert ModelKey.of(IDENTITY) == ModelKey.of(replace(IDENTITY, model="alias", library="library 2.0"))
    assert ModelKey.of(IDENTITY) != ModelKey.of(replace(IDENTITY, family="other"))
    assert planned([dataset("d/H", [700])])[0].model_key == ModelKey("family", "f" * 64)


def test_a_model_is_admitted_on_up_to_four_windows_of_different_series_none_of_them_flat() -> None:
    values = np.r_[np.sin(np.arange(400)), np.zeros(300)]
    flat = Dataset("flat/H", "H", 24, "", 1, lambda index: StoredSeries("T0", values))
    runs = planned([flat, dataset("many/H", [700, 0, 700, 20, 700, 700, 700])], (Setting(96, 24),), series=7)
    windows = admission_windows(runs)
    assert windows is not None
    assert windows.shape == (4, 96)
    assert windows.dtype == torch.float32
    own = [run.cut_windows().x for run in runs if run.dataset.name == "many/H" and not run.refusal and run.seed == 0]
    np.testing.assert_array_equal(windows, np.stack([x[0] for x in own[:4]]).astype(np.float32))
    assert admission_windows(planned([flat], (Setting(96, 24),))) is None


def test_a_window_that_starts_flat_admits_a_model_only_where_there_are_too_few_others() -> None:
    values = np.sin(np.arange(700))
    values[400:600] = 0.0  # every window of the test region starts in here
    dry = Dataset("dry/H", "H", 24, "", 1, lambda index: StoredSeries("T0", values))
    for others, starting_flat in ((4, 0), (3, 1)):
        runs = planned([dry, dataset("many/H", [700] * others)], (Setting(96, 24),), series=4)
        windows = admission_windows(runs)
        assert windows is not None
        assert len(windows) == 4
        assert sum(not np.ptp(x[:8]) for x in windows.numpy()) == starting_flat
        assert all(np.ptp(x) for x in windows.numpy())


def test_a_run_has_a_reason_why_its_series_does_not_admit_its_setting() -> None:
    runs = planned([dataset("short/H", [150, -150])], seeds=1)
    refusals = {(str(run.setting), run.index): run.refusal for run in runs}
    assert refusals["96x24", 0] == ""
    assert refusals["512x96", 0] == "short/H series T0 has 150 values, too few for 512x96"
    assert "all 150 values are missing" in refusals["96x24", 1]


def test_a_run_for_another_process_keeps_its_key_and_its_series_and_can_be_pickled() -> None:
    run = planned([dataset("d/H", [700])])[0]
    sent = pickle.loads(pickle.dumps(run))
    assert sent.key == run.key
    assert fields(sent) == fields(run)
    np.testing.assert_array_equal(sent.series.values, run.series.values)  # type: ignore[union-attr]
    with pytest.raises(IndexError):
        sent.dataset.row(0)


def test_every_run_of_a_plan_of_the_published_size_has_its_own_key() -> None:
    datasets = [dataset(f"d{i}/H", [900] * 4) for i in range(66)]
    identities = [Identity(f"m{i}", "family", "c", f"{i}" * 64, "library 1.0") for i in range(6)]
    runs = plan(identities, datasets, STAR, series=3, seeds=2, windows=4, protocol=Protocol())
    assert len(runs) == 6 * 66 * 42 == len({run.key for run in runs})


def test_a_record_holds_whether_its_model_was_trained_on_the_dataset() -> None:
    def leakage(checkpoint: str, catalogued: bool) -> object:
        seen = replace(dataset("us_births/D", [700]), catalogued=catalogued)
        identity = replace(IDENTITY, checkpoint=checkpoint)
        return (
            plan([identity], [seen], QUICK, series=1, seeds=1, windows=1, protocol=Protocol())[0].record(DONE).leakage
        )

    assert leakage("ibm-granite/granite-timeseries-ttm-r2", True) == "declared"
    assert leakage("google/timesfm-2.5-200m-pytorch", True) == "none declared"
    assert leakage("ibm-granite/granite-timeseries-ttm-r2", False) == "unknown"
    assert leakage("my-own", True) == "unknown"


def test_with_channels_the_items_of_several_variates_are_planned_and_no_others() -> None:
    single, pairs = dataset("single/H", [700]), replace(dataset("pairs/H", [700] * 8), variates=2)
    runs = planned([single, pairs], (Setting(96, 24),), channels=True)
    assert {run.dataset.name for run in runs} == {"pairs/H"}
    assert sorted({run.index for run in runs}) == [0, 2, 3]
    assert {run.channels for run in runs} == {2}
    alone = planned([pairs], (Setting(96, 24),))
    assert {run.channels for run in alone} == {0}
    assert not {run.key for run in runs} & {run.key for run in alone}


def test_a_run_on_mostly_missing_values_is_refused_under_the_protocols_limit_and_has_a_key_of_its_own() -> None:
    values = np.random.default_rng(0).normal(size=700)
    gaps = values.copy()
    gaps[600:690] = np.nan

    def one(stored: np.ndarray, **settings: float) -> Run:
        rows = [StoredSeries("T0", stored)]
        source = Dataset("one/H", "H", 24, "Test", 1, rows.__getitem__)
        return planned([source], (Setting(96, 24),), seeds=1, protocol=Protocol(**settings))[0]  # type: ignore[arg-type]

    with pytest.raises(UnusableSeries, match="64% of the test region are missing"):
        one(gaps).cut_windows()
    assert len(one(gaps, max_missing=1.0).cut_windows().x) == 4
    filled = one(gaps).series
    assert filled is not None
    pre_filled = one(np.array(filled.values))
    assert pre_filled.stream == one(gaps).stream
    assert pre_filled.key != one(gaps).key
    assert pre_filled.key == one(gaps, max_missing=1.0).key
    assert one(values).record(DONE).max_missing == 0.5
    with pytest.raises(ProtocolError, match="max_missing"):
        Protocol(max_missing=1.5)


def test_the_random_order_holds_every_run_once_and_is_the_same_for_two_models_and_each_time() -> None:
    two = [IDENTITY, replace(IDENTITY, fingerprint="e" * 64)]
    datasets = [dataset("a/H", [900] * 3), dataset("b/H", [900] * 3)]
    runs = plan(two, datasets, QUICK, series=3, seeds=2, windows=1, protocol=Protocol())
    mixed = in_random_order([*runs, runs[0]])
    half = len(runs) // 2
    assert Counter(run.key for run in mixed) == Counter(run.key for run in runs)
    assert mixed == in_random_order(runs) != runs
    assert {run.identity for run in mixed[:half]} == {IDENTITY}
    assert [run.stream for run in mixed[:half]] == [run.stream for run in mixed[half:]]
    # The seed is a hash of the plan: equally large parts of it do not all have one order.
    parts = (runs[start : start + 6] for start in range(0, half - 5, 6))
    assert len({tuple(part.index(run) for run in in_random_order(part)) for part in parts}) > 1
