"""Model cards of released checkpoints, and the leakage flag that follows from them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hrx.adapters import Identity, ModelError, locate, model_card, short_names
from hrx.adapters.families import Leakage, model_cards, published_card
from hrx.cli.main import main


def identity(checkpoint: str, model: str = "", fingerprint: str = "0" * 64) -> Identity:
    return Identity(model or checkpoint, "family", checkpoint, fingerprint, "library 1.0")


def test_every_card_has_a_licence_and_a_source_of_what_it_declares() -> None:
    for card in short_names().values():
        assert card.licence
        assert card.sources or card.benchmark is card.seen is card.parameters is None


def test_no_checkpoint_has_two_cards() -> None:
    cards = model_cards()
    assert len({card.hub_id for card in cards}) == len({card.name for card in cards}) == len(cards)


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
def test_a_run_is_flagged_by_the_declared_training_data_of_its_model(
    checkpoint: str, dataset: str, expected: Leakage
) -> None:
    assert model_card(identity(checkpoint)).leakage(dataset, in_gift_eval=True) == expected


def test_leakage_of_series_outside_the_benchmark_is_unknown() -> None:
    card = model_card(identity("amazon/chronos-bolt-base"))
    assert card.leakage("electricity", in_gift_eval=False) == "unknown"


def test_a_model_trained_on_generated_series_has_seen_no_dataset() -> None:
    card = model_card(locate("bolt-mini").identity)
    assert card.leakage("temperature", in_gift_eval=False) == "none declared"
    assert card.leakage("us_births/D", in_gift_eval=True) == "none declared"


def test_a_directory_is_recognised_by_its_content_and_not_by_its_name() -> None:
    card = published_card("ibm-granite/granite-timeseries-ttm-r2")
    assert model_card(identity("copy", fingerprint=card.fingerprints[0])) == card
    assert model_card(identity("ttm-r2")).licence == "unknown"


def test_the_real_checkpoint_is_recognised_by_its_content(real_data: Path) -> None:
    card = model_card(locate(str(real_data / "checkpoints" / "ttm-r2")).identity)
    assert card.hub_id == "ibm-granite/granite-timeseries-ttm-r2"
    assert card.parameters == 805_280


def test_branches_of_ttm_have_lengths_and_training_data_of_their_own() -> None:
    hub_id = "ibm-granite/granite-timeseries-ttm-r2"
    long = model_card(identity(hub_id, "ttm-r2@512-192-r2"))
    assert (long.native_lookback, long.native_horizon) == (512, 192)
    assert long.leakage("covid_deaths", in_gift_eval=True) == "none declared"
    daily = model_card(identity(hub_id, "ttm-r2@90-30-ft-r2.1"))
    assert (daily.native_lookback, daily.native_horizon) == (90, 30)
    assert daily.leakage("covid_deaths", in_gift_eval=True) == "declared"
    assert model_card(identity(hub_id, "ttm-r2@main")) == published_card(hub_id)
    assert replace(long, seen=None, benchmark=None).leakage("us_births/D", in_gift_eval=True) == "unknown"


def test_the_list_of_models_shows_the_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert listed["ttm-r2"]["parameters"] == 805_280
    assert listed["ttm-r2"]["seen"] == ["kdd_cup_2018_with_missing", "saugeenday", "solar", "us_births"]
    assert listed["bolt-mini"]["gift_eval"] == "nothing real"
    assert {"chronos-2-small", "timesfm-2.5-hf", "visionts-base"} <= set(listed)
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "timesfm-non-commercial-" in shown
    assert "timestral: The licence of the released weights (Modified MIT) gives no rights to" in " ".join(shown.split())
    assert "20 million dollars" in listed["timestral-5m"]["licence_note"]
    assert "visionts-base: Download https://dl.fbaipublicfiles.com/mae/visualize/mae_visualize_vit_base.pth" in shown


def test_a_model_that_is_not_on_the_hub_says_where_its_weights_are() -> None:
    with pytest.raises(ModelError, match=r"visionts-base is not on the model hub. Download https://.*\.pth into a"):
        locate("visionts-base")


def test_terms_of_a_library_that_the_licence_of_the_weights_does_not_show_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models"]) == 0
    assert "tirex-2: Its library needs mlstm_kernels, under the NXAI Community License" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["models", "--json"]) == 0
    listed = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert "100 million euros" in listed["tirex-2"]["licence_note"]
    assert "licence_note" not in listed["toto-2-22m"]
