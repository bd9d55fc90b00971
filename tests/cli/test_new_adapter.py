"""`hrx new-adapter`: two files or none, never over another file, and code that the repository's own checks accept."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hrx.adapters import families
from hrx.cli.main import main
from hrx.cli.new_adapter import skeleton

ROOT = Path(__file__).parents[2]


def imported(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_written_to_the_working_directory_and_say_what_is_left_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["new-adapter", "my-model.2"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"my_model_2_adapter.py", "test_my_model_2_adapter.py"}
    shown = capsys.readouterr().out
    assert "Wrote my_model_2_adapter.py and test_my_model_2_adapter.py." in shown
    assert "the entry point `my-model.2` of the group hrx.adapters: my_model_2_adapter:FAMILY" in shown
    module = imported(tmp_path / "my_model_2_adapter.py")
    assert (module.FAMILY.name, module.FAMILY.loader) == ("my-model.2", "my_model_2_adapter:MyModel2")
    adapter = module.MyModel2
    for method in ("open_library", "read_limits"):
        with pytest.raises(NotImplementedError, match=f"^{method}: "):
            getattr(adapter, method)(None)
    with pytest.raises(NotImplementedError, match=r"^build: construct a tiny model"):
        imported(tmp_path / "test_my_model_2_adapter.py").build(tmp_path)


def test_in_a_clone_the_files_go_to_the_folders_of_hrx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "adapters" / "families").mkdir(parents=True)
    (tmp_path / "adapters" / "families" / "__init__.py").touch()
    (tmp_path / "tests" / "adapters").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["new-adapter", "my-model"]) == 0
    written = tmp_path / "adapters" / "families" / "my_model.py"
    assert "class MyModel(CheckpointForecaster)" in written.read_text()
    monkeypatch.setattr(families, "_FOLDERS", (written.parent,))
    families.built_in.cache_clear()
    (family,) = families.built_in()
    families.built_in.cache_clear()
    assert (family.name, family.loader) == ("my-model", "hrx.adapters.families.my_model:MyModel")
    test = (tmp_path / "tests" / "adapters" / "test_my_model.py").read_text()
    assert "from hrx.adapters.families.my_model import MyModel\n" in test
    assert "give pyproject.toml an extra my-model with its library" in capsys.readouterr().out


@pytest.mark.parametrize("existing", ["my_model_adapter.py", "test_my_model_adapter.py"])
def test_a_file_that_exists_is_not_overwritten_and_nothing_is_written(
    existing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / existing).write_text("mine")
    assert main(["new-adapter", "my-model"]) == 2
    assert f"{existing} exists and would be overwritten. Choose another name" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"


def test_a_file_that_cannot_be_written_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = Path.open

    def full(path: Path, *arguments: Any, **named: Any) -> Any:
        if path.name.startswith("test_"):
            raise OSError(28, "No space left on device", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", full)
    assert main(["new-adapter", "my-model"]) == 2
    assert "test_my_model_adapter.py cannot be written: No space left on device." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["My Model", "../up", "2fast", "a--b", "a-", "", "é", "m" * 25, "a_b"])
def test_a_bad_name_gets_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-adapter", name]) == 2
    assert "is not a name for a family. Use lower-case letters and digits" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["class", "none", "tensor", "limits", "checkpoint"])
def test_a_name_that_the_files_use_already_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-adapter", name]) == 2
    assert f"{name} has a meaning in Python or in the file of an adapter." in capsys.readouterr().err


def test_the_name_of_a_family_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-adapter", "t0"]) == 2
    assert "t0 is a family of hrx already, run by tfc-t0. Choose another name." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a", "timesfm-4", "m" * 24])
def test_the_skeleton_passes_the_lint_of_the_repository(name: str, tmp_path: Path) -> None:
    files = skeleton(name, in_clone=True)
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    for command in (["check"], ["format", "--check"]):
        config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path)]
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *config], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
