import numpy as np
import pytest

from hrx.adapters import Identity
from hrx.audit import Protocol
from hrx.audit.plan import QUICK, STAR, Run, Setting, parse_settings, plan
from hrx.errors import HrxError
from hrx.gift_eval import Dataset
from hrx.gift_eval.series import Row

IDENTITY = Identity("model", "family", "checkpoint", "f" * 64, "library 1.0")


def dataset(name: str, lengths: list[int]) -> Dataset:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=length) if length else np.array([np.nan]) for length in lengths]
    return Dataset(name, "H", 24, "Test", len(lengths), lambda index: Row(f"T{index}", values[index]))


def planned(datasets: list[Dataset], settings: tuple[Setting, ...] = QUICK, **changes: object) -> list[Run]:
    options = {"series": 3, "seeds": 2, "windows": 4, "protocol": Protocol()} | changes
    return plan([IDENTITY], datasets, settings, **options)  # type: ignore[arg-type]


def test_the_star_has_the_seven_settings_of_the_paper() -> None:
    assert len(set(STAR)) == 7
    assert {s.lookback for s in STAR if s.horizon == 96} == {96, 192, 320, 512}
    assert {s.horizon for s in STAR if s.lookback == 512} == {24, 48, 96, 192}


def test_a_full_dataset_has_42_runs_and_one_of_a_single_series_14() -> None:
    assert len(planned([dataset("many/H", [2000] * 9)], STAR)) == 42
    assert len(planned([dataset("single/H", [2000])], STAR)) == 14


@pytest.mark.parametrize("text", ["", "96", "96x", "x24", "96x24,", "star,quick", "96 x 24", "-96x24"])
def test_settings_that_make_no_sense_are_refused_in_words(text: str) -> None:
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
        planned([one], seeds=2)[1],
        planned([one], seeds=1)[1],
        planned([dataset("two/H", [700])], seeds=1)[0],
        planned([dataset("one/H", [701])], seeds=1)[0],
    ]
    keys = {run.key for run in changed}
    assert len(keys) == len(changed)
    assert reference.key not in keys
    assert planned([dataset("one/H", [700])], seeds=1)[0].key == reference.key


def test_draws_are_shared_by_checkpoints_and_separate_for_runs() -> None:
    other = Identity("other", "family", "checkpoint", "0" * 64, "library 1.0")
    runs = plan([IDENTITY, other], [dataset("d/H", [700])], QUICK, series=1, seeds=2, windows=4, protocol=Protocol())
    ours, theirs = runs[: len(runs) // 2], runs[len(runs) // 2 :]
    assert [run.stream for run in ours] == [run.stream for run in theirs]
    assert len({run.stream for run in ours}) == len(ours)


def test_unreadable_series_and_damaged_datasets_stay_in_the_plan_with_their_trouble() -> None:
    runs = planned([dataset("gaps/H", [700, 0, 700]), Dataset.damaged("broken/H", "broken.arrow is cut short")])
    troubled = [run for run in runs if run.trouble]
    assert {str(run.trouble).split(":")[0] for run in troubled} == {"gaps/H series T1", "broken.arrow is cut short"}
    assert len(troubled) == 2 * 2 * 2
    assert len({run.key for run in runs}) == len(runs)


def test_one_run_of_each_dataset_is_pictured_at_the_largest_setting_it_admits() -> None:
    runs = planned([dataset("long/H", [700, 700]), dataset("short/H", [150]), dataset("tiny/H", [20])])
    pictured = [(run.dataset.name, run.index, str(run.setting), run.seed) for run in runs if run.pictured]
    assert sorted(pictured) == [("long/H", 0, "512x96", 0), ("short/H", 0, "96x24", 0)]
