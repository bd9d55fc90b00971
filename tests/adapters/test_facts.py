"""What is declared about released checkpoints, and the leakage flag that follows from it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hrx.adapters import Identity, facts, locate, short_names
from hrx.adapters.facts import FACTS, Leakage, declared
from hrx.cli.main import main


def identity(checkpoint: str, model: str = "", fingerprint: str = "0" * 64) -> Identity:
    return Identity(model or checkpoint, "family", checkpoint, fingerprint, "library 1.0")


def test_every_short_name_has_facts_with_a_source() -> None:
    for released in short_names().values():
        known = declared(released.hub_id)
        assert known.licence
        assert known.sources or known.benchmark is known.seen is known.parameters is None


def test_no_checkpoint_is_described_twice() -> None:
    assert len({known.hub_id for known in FACTS}) == len(FACTS)


@pytest.mark.parametrize(
    ("checkpoint", "dataset", "expected"),
    [
        ("amazon/chronos-bolt-base", "m4_hourly", "declared"),
        ("amazon/chronos-bolt-base", "electricity/15T", "declared"),
        ("amazon/chronos-bolt-base", "us_births/D", "none declared"),
        ("ibm-granite/granite-timeseries-ttm-r2", "us_births/D", "declared"),
        ("ibm-granite/granite-timeseries-ttm-r2", "covid_deaths", "none declared"),
        ("amazon/chronos-2", "us_births/D", "possible"),
        ("google/timesfm-2.5-200m-pytorch", "us_births/D", "none declared"),
        ("Salesforce/moirai-2.0-R-small", "us_births/D", "declared"),
        ("thuml/timer-base-84m", "us_births/D", "unknown"),
        ("somebody/fine-tuned", "us_births/D", "unknown"),
    ],
)
def test_a_run_is_flagged_by_what_its_model_is_declared_to_have_seen(
    checkpoint: str, dataset: str, expected: Leakage
) -> None:
    assert facts(identity(checkpoint)).leakage(dataset, in_gift_eval=True) == expected


def test_of_series_outside_the_benchmark_nothing_is_known() -> None:
    known = facts(identity("amazon/chronos-bolt-base"))
    assert known.leakage("electricity", in_gift_eval=False) == "unknown"


def test_a_model_of_generated_series_has_seen_no_dataset_at_all() -> None:
    known = facts(locate("bolt-mini").identity)
    assert known.leakage("temperature", in_gift_eval=False) == "none declared"
    assert known.leakage("us_births/D", in_gift_eval=True) == "none declared"


def test_a_directory_is_known_by_its_content_whatever_it_is_called() -> None:
    known = declared("ibm-granite/granite-timeseries-ttm-r2")
    assert facts(identity("copy", fingerprint=known.fingerprints[0])) == known
    assert facts(identity("ttm-r2")).licence == "unknown"


def test_the_real_checkpoint_is_known_by_its_content(real_data: Path) -> None:
    known = facts(locate(str(real_data / "checkpoints" / "ttm-r2")).identity)
    assert known.hub_id == "ibm-granite/granite-timeseries-ttm-r2"
    assert known.parameters == 805_280


def test_branches_of_ttm_have_lengths_and_training_data_of_their_own() -> None:
    hub_id = "ibm-granite/granite-timeseries-ttm-r2"
    long = facts(identity(hub_id, "ttm-r2@512-192-r2"))
    assert (long.native_lookback, long.native_horizon) == (512, 192)
    assert long.leakage("covid_deaths", in_gift_eval=True) == "none declared"
    daily = facts(identity(hub_id, "ttm-r2@90-30-ft-r2.1"))
    assert (daily.native_lookback, daily.native_horizon) == (90, 30)
    assert daily.leakage("covid_deaths", in_gift_eval=True) == "declared"
    assert facts(identity(hub_id, "ttm-r2@main")) == declared(hub_id)
    assert replace(long, seen=None, benchmark=None).leakage("us_births/D", in_gift_eval=True) == "unknown"


def test_the_list_of_models_tells_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    told = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert told["ttm-r2"]["parameters"] == 805_280
    assert told["ttm-r2"]["seen"] == ["kdd_cup_2018_with_missing", "saugeenday", "solar", "us_births"]
    assert told["bolt-mini"]["gift_eval"] == "nothing real"
    assert main(["models"]) == 0
    assert "timesfm-non-commercial-" in capsys.readouterr().out
