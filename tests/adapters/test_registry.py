"""From a name to a model: recognition by content, refusals, revisions, selection per setting, factories."""

import json
import shutil
import subprocess
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny
from helpers.tiny import series
from safetensors.torch import load_file, save_file

from hrx.adapters import Family, Forecaster, Identity, Limits, ModelError, load, locate, locate_each
from hrx.adapters import families as families_module
from hrx.adapters import registry as registry_module
from hrx.adapters.checkpoint import Checkpoint, CheckpointForecaster
from hrx.adapters.families import families
from hrx.audit.admission import admit

SETTINGS = [(512, 24), (512, 48), (512, 96), (512, 192)]


@pytest.fixture
def bolt(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the tiny Chronos-Bolt that a test may modify."""
    return Path(shutil.copytree(checkpoints["chronos-bolt"], tmp_path / "renamed-by-its-owner"))


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm"])
def test_a_directory_is_recognised_by_its_content_and_not_by_its_name(
    checkpoints: dict[str, Path], family: str, tmp_path: Path
) -> None:
    copy = shutil.copytree(checkpoints[family], tmp_path / "my-fine-tune")
    located = locate(str(copy))
    assert located.identity.family == family
    assert located.identity.model == located.identity.checkpoint == "my-fine-tune"
    assert located.identity.fingerprint == locate(str(checkpoints[family])).identity.fingerprint


def test_the_fingerprint_follows_the_weights(bolt: Path) -> None:
    before = locate(str(bolt)).identity.fingerprint
    weights = load_file(bolt / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 1
    save_file(weights, bolt / "model.safetensors", metadata={"format": "pt"})
    assert locate(str(bolt)).identity.fingerprint != before


def test_a_family_can_be_named_if_the_configuration_does_not_say(bolt: Path) -> None:
    config = json.loads((bolt / "config.json").read_text())
    del config["architectures"]
    (bolt / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="FAMILY:PATH"):
        locate(str(bolt))
    assert locate(f"chronos-bolt:{bolt}").identity.family == "chronos-bolt"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bolt-mni", "Did you mean 'bolt-mini'"),
        ("chronos2", "Did you mean 'chronos-2'"),
        ("nonsense", "Unknown model 'nonsense'"),
        ("./no/such/directory", "Unknown model"),
        ("module:missing.py:make", "is not a file"),
        ("module:make", "FILE.py:FACTORY"),
    ],
)
def test_an_unknown_name_is_answered_with_what_would_work(name: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        locate(name)


def test_a_hub_id_that_cannot_be_downloaded_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"someone/no-such-model .* give its directory"):
        locate("someone/no-such-model")


def test_damaged_weights_are_named_by_path(bolt: Path) -> None:
    file = bolt / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged"):
        load(str(bolt))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "not a JSON object"),
        ('{"architectures": ["Other"]}', "architecture Other"),
    ],
)
def test_a_broken_configuration_is_named_by_path(bolt: Path, text: str, sentence: str) -> None:
    (bolt / "config.json").write_text(text)
    with pytest.raises(ModelError, match=sentence):
        locate(str(bolt))


def test_a_directory_without_weights_or_configuration_is_refused(bolt: Path, tmp_path: Path) -> None:
    (bolt / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        locate(str(bolt)).identity  # noqa: B018 (the fingerprint is read here)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        locate(str(tmp_path / "empty"))


def test_a_lora_directory_says_to_merge_it(bolt: Path, tmp_path: Path) -> None:
    (bolt / "config.json").write_text(json.dumps({"peft_type": "LORA"}))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    for path in (bolt, adapter):
        with pytest.raises(ModelError, match="Merge it into its base model"):
            locate(str(path))


def test_a_hub_id_may_name_a_revision(bolt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    requested = []
    snapshot = tmp_path / "snapshots" / "0123abc"
    shutil.copytree(bolt, snapshot)

    def download(hub_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        requested.append((hub_id, revision))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    identity = locate("someone/theirs@1024-96").identity
    assert requested == [("someone/theirs", "1024-96")]
    assert (identity.model, identity.checkpoint) == ("someone/theirs@1024-96", "someone/theirs")
    assert identity.revision == "0123abc"


def test_a_family_is_recognised_by_configuration_keys_or_by_its_files(tmp_path: Path) -> None:
    by_keys = Family("keys", "x:load", "d", "e", config_keys=("patch_sizes", "d_model"))
    by_files = Family("files", "x:load", "d", "e", files="special_*.pth")
    (tmp_path / "config.json").write_text(json.dumps({"patch_sizes": [16], "d_model": 8, "more": 1}))
    checkpoint = Checkpoint(tmp_path, "n", "s")
    assert by_keys.claims(checkpoint)
    assert not by_files.claims(checkpoint)
    (tmp_path / "special_base.pth").touch()
    assert by_files.claims(checkpoint)
    (tmp_path / "config.json").write_text(json.dumps({"patch_sizes": [16]}))
    assert not by_keys.claims(Checkpoint(tmp_path, "n", "s"))


def test_without_a_configuration_a_family_is_recognised_by_the_names_of_its_tensors(bolt: Path) -> None:
    (bolt / "config.json").unlink()
    checkpoint = Checkpoint(bolt, "n", "s")
    names = sorted(checkpoint.tensor_names)
    assert Family("tensors", "x:load", "d", "e", tensors=(names[0], names[-1])).claims(checkpoint)
    assert not Family("tensors", "x:load", "d", "e", tensors=(names[0], "another")).claims(checkpoint)
    assert not Family("nothing", "x:load", "d", "e").claims(checkpoint)


def test_weights_that_do_not_fit_the_configuration_are_an_error_and_not_random(bolt: Path) -> None:
    config = json.loads((bolt / "config.json").read_text())
    config["chronos_config"]["prediction_length"] = 32
    (bolt / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="chronos-forecasting could not load"):
        load(str(bolt))


def test_a_missing_library_says_which_extra_to_install(bolt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Family("absent", "nowhere:load", "no-such-distribution", "absent", architectures=("Absent",))
    monkeypatch.setattr(registry_module, "families", lambda: {"absent": absent})
    with pytest.raises(ModelError, match=r"no-such-distribution.*pip install .*\[absent\]"):
        locate(f"absent:{bolt}")


def test_a_library_that_pins_an_older_torch_is_installed_without_its_pins() -> None:
    first, second = families()["moirai-2"].install_command.split(" && ")
    assert "[moirai-2]" in first
    assert second.endswith("pip install --no-deps uni2ts==2.0.0")


class TheirForecaster(CheckpointForecaster):
    """What a package of a third party implements."""

    def open_library(self) -> torch.nn.Module:
        layer = torch.nn.Linear(24, 6)
        layer.load_state_dict(dict(self.checkpoint.tensors()))
        return layer

    def read_limits(self) -> Limits:
        return Limits(lookbacks=(self.module.in_features,))

    def predict(self, x: torch.Tensor, horizon: int) -> torch.Tensor:
        return self.module(x)[:, :horizon]

    official = predict


def load_theirs(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    return TheirForecaster(checkpoint, identity)


@pytest.mark.parametrize("loader", ["TheirForecaster", "load_theirs"])
def test_third_parties_register_a_family_by_entry_point(
    loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family("theirs", f"their_package:{loader}", "torch", "theirs", architectures=("TheirModel",))
    entry = EntryPoint("theirs", "their_package:FAMILY", "hrx.adapters")
    package = types.ModuleType("their_package")
    vars(package).update(FAMILY=family, TheirForecaster=TheirForecaster, load_theirs=load_theirs)
    monkeypatch.setitem(sys.modules, "their_package", package)
    monkeypatch.setattr(families_module, "entry_points", lambda group: [entry] if group == "hrx.adapters" else [])
    layer = torch.nn.Linear(24, 6)
    save_file(layer.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["TheirModel"]}))
    families.cache_clear()
    model: Any = load(str(tmp_path))
    assert model.identity.family == "theirs"
    assert torch.equal(model.official(series(2, 24), 6), layer(series(2, 24)))
    assert model.unloaded() == model.reload().unloaded() == ()
    assert model.double().official(series(2, 24).double(), 6).dtype == torch.float64
    monkeypatch.setattr(families_module, "entry_points", lambda group: [entry, entry])
    families.cache_clear()
    assert families()["theirs"] is family
    with pytest.raises(ModelError, match=r"Unknown model 'nothing'.*'theirs' a second time"):
        locate("nothing")
    families.cache_clear()


@pytest.mark.parametrize(
    "problem", ["raise ImportError('libnumbers.so.3: cannot open')", "raise SystemExit(0)", "FAMILY = 3"]
)
def test_a_registered_package_that_fails_affects_its_own_family_only(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text(problem)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("broken", "broken_package:FAMILY", "hrx.adapters")
    monkeypatch.setattr(families_module, "entry_points", lambda group: [entry])
    families.cache_clear()
    assert set(families()) == {family.name for family in families_module.built_in() if not family.refusal}
    assert locate("bolt-mini").identity.family == "chronos-bolt"
    with pytest.raises(ModelError, match=r"The entry point 'broken_package:FAMILY' of hrx.adapters (cannot|is not)"):
        locate("broken-model")
    sys.modules.pop("broken_package", None)
    families.cache_clear()


@pytest.mark.parametrize("raised", [ImportError("libcudart.so.12: cannot open shared object file"), SystemExit(0)])
def test_a_library_that_fails_on_import_is_named_with_its_reason(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str) -> object:
        raise raised

    located = locate("bolt-mini")
    monkeypatch.setattr(registry_module, "resolve_name", resolve)
    with pytest.raises(ModelError, match=rf"chronos-forecasting .* cannot be imported: {type(raised).__name__}"):
        located.load()


def test_a_directory_is_one_checkpoint_at_every_setting(checkpoints: dict[str, Path]) -> None:
    (selection,) = locate_each(str(checkpoints["ttm"]), SETTINGS)
    assert selection.settings == SETTINGS
    assert selection.located.identity.family == "ttm"


def test_auto_uses_the_librarys_own_selection_and_names_the_weights_of_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []

    def download(hub_id: str, revision: str | None) -> Path:
        requested.append(f"{hub_id}@{revision}")
        seed = len(requested)
        return tiny.ttm(tmp_path / str(seed) / "snapshots" / f"commit{seed}", seed)

    monkeypatch.setattr(registry_module, "_download", download)
    selections = locate_each("ttm-r2@auto", SETTINGS)
    hub_id = "ibm-granite/granite-timeseries-ttm-r2"
    # The names of the library's releases end in the longest horizon of each.
    assert requested == [f"{hub_id}@512-48-ft-r2.1", f"{hub_id}@main", f"{hub_id}@512-192-r2"]
    assert [selection.settings for selection in selections] == [[(512, 24), (512, 48)], [(512, 96)], [(512, 192)]]
    identities = [selection.located.identity for selection in selections]
    assert [i.model for i in identities] == ["ttm-r2@512-48-ft-r2.1", "ttm-r2@main", "ttm-r2@512-192-r2"]
    assert {i.checkpoint for i in identities} == {hub_id}
    assert [i.revision for i in identities] == ["commit1", "commit2", "commit3"]
    assert len({i.fingerprint for i in identities}) == 3


@pytest.mark.parametrize("name", ["chronos-2@auto", "somewhere@auto", "owner/name@auto"])
def test_a_family_with_one_checkpoint_has_no_automatic_selection(name: str) -> None:
    with pytest.raises(ModelError, match=r"which only ttm-r2 and ttm-r3 offer. Drop @auto"):
        locate_each(name, SETTINGS)


def test_a_setting_without_a_release_is_named() -> None:
    with pytest.raises(ModelError, match="has no release for 30x8"):
        locate_each("ttm-r2@auto", [(30, 8)])


def test_a_short_name_may_name_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str | None] = []

    def download(_: str, revision: str | None) -> Path:
        requested.append(revision)
        return tiny.ttm(tmp_path / "ttm")

    monkeypatch.setattr(registry_module, "_download", download)
    assert locate("ttm-r2@512-192-r2").identity.model == "ttm-r2@512-192-r2"
    assert requested == ["512-192-r2"]


def test_a_release_tuned_by_frequency_gets_the_token_of_an_unknown_frequency(tmp_path: Path) -> None:
    from tsfm_public.toolkit.time_series_preprocessor import DEFAULT_FREQUENCY_MAPPING

    model = load(str(tiny.ttm(tmp_path / "tuned", resolution_prefix_tuning=True, frequency_token_vocab_size=10)))
    x = series(3, 512)
    token = torch.full((3,), DEFAULT_FREQUENCY_MAPPING["oov"])
    library = model.module  # type: ignore[attr-defined]
    expected = library(past_values=x[..., None], freq_token=token).prediction_outputs[..., 0]
    assert torch.equal(model.official(x, 96), expected)
    hourly = library(past_values=x[..., None], freq_token=token + DEFAULT_FREQUENCY_MAPPING["h"])
    assert not torch.equal(hourly.prediction_outputs[..., 0], expected)
    for horizon in (96, 120):
        assert all(check.passed for check in admit(model, x, horizon))


FACTORY = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Linear(24, 6)

not_callable = 3
"""


def test_a_factory_in_a_file_makes_a_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)
    model = load(f"module:{file}:make")
    assert model.identity.model == "mine:make"
    assert model.official(series(2, 24), 6).shape == (2, 6)
    assert torch.equal(model.reload().official(series(2, 24), 6), model.official(series(2, 24), 6))
    for factory in ("absent", "not_callable"):
        with pytest.raises(ModelError, match=f"has no function '{factory}'. It defines: torch, make, not_callable"):
            load(f"module:{file}:{factory}")
    for body in ("raise ValueError('no weights')", "return None", "import sys; sys.exit(0)"):
        file.write_text(f"def make():\n    {body}\n")
        with pytest.raises(ModelError, match="failed to create a model"):
            load(f"module:{file}:make")
    file.write_text("import nothing_of_that_name")
    with pytest.raises(ModelError, match="cannot be imported: ModuleNotFoundError"):
        load(f"module:{file}:make")


def test_importing_the_adapters_imports_no_model_library() -> None:
    code = "import sys, hrx.adapters; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"chronos", "tsfm_public", "transformers"} & set(done.stdout.split())
