"""Which of a family's releases is audited at which setting."""

from pathlib import Path

import pytest
import torch
from helpers import tiny

from hrx.adapters import ModelError, locate_each, registry
from hrx.audit.admission.checks import admit

SETTINGS = [(512, 24), (512, 48), (512, 96), (512, 192)]


def test_a_directory_is_the_one_checkpoint_that_it_is_at_every_setting(checkpoints: dict[str, Path]) -> None:
    (choice,) = locate_each(str(checkpoints["ttm"]), SETTINGS)
    assert choice.settings == SETTINGS
    assert choice.located.identity.family == "ttm"


def test_auto_takes_the_librarys_own_choice_and_names_the_weights_of_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(hub_id: str, revision: str | None) -> Path:
        asked.append(f"{hub_id}@{revision}")
        seed = len(asked)
        return tiny.ttm(tmp_path / str(seed) / "snapshots" / f"commit{seed}", seed)

    monkeypatch.setattr(registry, "_download", download)
    choices = locate_each("ttm-r2@auto", SETTINGS)
    hub_id = "ibm-granite/granite-timeseries-ttm-r2"
    # The names of the library's releases say the longest horizon that each reaches.
    assert asked == [f"{hub_id}@512-48-ft-r2.1", f"{hub_id}@main", f"{hub_id}@512-192-r2"]
    assert [choice.settings for choice in choices] == [[(512, 24), (512, 48)], [(512, 96)], [(512, 192)]]
    identities = [choice.located.identity for choice in choices]
    assert [i.model for i in identities] == ["ttm-r2@512-48-ft-r2.1", "ttm-r2@main", "ttm-r2@512-192-r2"]
    assert {i.checkpoint for i in identities} == {hub_id}
    assert [i.revision for i in identities] == ["commit1", "commit2", "commit3"]
    assert len({i.fingerprint for i in identities}) == 3


@pytest.mark.parametrize("name", ["chronos-2@auto", "somewhere@auto", "owner/name@auto"])
def test_a_family_with_one_checkpoint_offers_no_choice(name: str) -> None:
    with pytest.raises(ModelError, match=r"which only ttm-r2 offers. Leave @auto away"):
        locate_each(name, SETTINGS)


def test_a_setting_without_a_release_is_named() -> None:
    with pytest.raises(ModelError, match="has no release for 30x8"):
        locate_each("ttm-r2@auto", [(30, 8)])


def test_a_short_name_may_name_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def download(_: str, revision: str | None) -> Path:
        asked.append(revision)
        return tiny.ttm(tmp_path / "ttm")

    monkeypatch.setattr(registry, "_download", download)
    assert registry.locate("ttm-r2@512-192-r2").identity.model == "ttm-r2@512-192-r2"
    assert asked == ["512-192-r2"]


def test_a_release_that_is_tuned_by_frequency_is_told_that_it_is_unknown(tmp_path: Path) -> None:
    from tsfm_public.toolkit.time_series_preprocessor import DEFAULT_FREQUENCY_MAPPING

    model = registry.load(
        str(tiny.ttm(tmp_path / "tuned", resolution_prefix_tuning=True, frequency_token_vocab_size=10))
    )
    x = tiny.series(3, 512)
    token = torch.full((3,), DEFAULT_FREQUENCY_MAPPING["oov"])
    library = model._model  # type: ignore[attr-defined]
    expected = library(past_values=x[..., None], freq_token=token).prediction_outputs[..., 0]
    assert torch.equal(model.official(x, 96), expected)
    hourly = library(past_values=x[..., None], freq_token=token + DEFAULT_FREQUENCY_MAPPING["h"])
    assert not torch.equal(hourly.prediction_outputs[..., 0], expected)
    for horizon in (96, 120):
        assert all(check.passed for check in admit(model, x, horizon))
