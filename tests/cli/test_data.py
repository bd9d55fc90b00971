"""`hrx data` and `hrx datasets`: their tables, their JSON and their exit codes."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.hub import Hub

from hrx.cli import main
from hrx.gift_eval import catalogue
from hrx.gift_eval.catalogue import DATA_FILE, INFO_FILE, STATE_FILE, Folder

CONTENT = bytes(range(256)) * 20


def save(folder: Path, values: list[float], freq: str) -> Path:
    """A dataset of one series in the benchmark's format."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'hrx[gift-eval]')")
    columns = {"item_id": ["a"], "start": pa.array([0], pa.timestamp("s")), "freq": [freq], "target": [values]}
    batch = pa.RecordBatch.from_pydict(columns)
    folder.mkdir(parents=True)
    path = folder / DATA_FILE
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    (folder / INFO_FILE).write_text("{}")
    (folder / STATE_FILE).write_text(json.dumps({"_data_files": [{"filename": DATA_FILE}]}))
    return path


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> tuple[Folder, ...]:
    """A catalogue of two folders that hold the same bytes."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    made = tuple(replace(folder, bytes=len(CONTENT), sha256=digest) for folder in catalogue.choose(["us_births"])[:2])
    monkeypatch.setattr(catalogue, "folders", lambda: made)
    return made


@pytest.fixture
def hub(folders: tuple[Folder, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (pip install 'hrx[gift-eval]')")
    server = Hub()
    for folder in folders:
        server.files[f"{folder.name}/{DATA_FILE}"] = CONTENT
        server.files[f"{folder.name}/{INFO_FILE}"] = b"{}"
        server.files[f"{folder.name}/{STATE_FILE}"] = json.dumps({"_data_files": [{"filename": DATA_FILE}]}).encode()
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    yield server
    server.close()


def test_fetch_brings_what_is_missing_and_check_agrees(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(tmp_path / "new" / "root")
    assert main(["data", "check", "--data", root]) == 3
    assert "Not here: us_births/D, us_births/M." in capsys.readouterr().out
    assert main(["data", "fetch", "us_births/D", "--data", root]) == 0
    assert "us_births/D: 5.2 kB fetched\n1 of 1 folders" in capsys.readouterr().out
    assert main(["data", "check", "us_births/D", "--data", root]) == 0
    assert "1 of 1 folders" in capsys.readouterr().out
    assert main(["data", "check", "--data", root]) == 3


def test_fetch_and_check_print_json(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path))
    del hub.files[f"us_births/M/{DATA_FILE}"]
    assert main(["data", "fetch", "--json"]) == 3
    fetched = json.loads(capsys.readouterr().out)
    assert fetched["root"] == str(tmp_path)
    day, month = fetched["folders"]
    assert (day["name"], day["state"], day["reason"]) == ("us_births/D", "right", "")
    assert (month["name"], month["state"]) == ("us_births/M", "missing")
    assert "has no file" in month["reason"]
    (tmp_path / "us_births/D" / DATA_FILE).write_bytes(CONTENT[:-1])
    (tmp_path / "us_births/D" / "cache-1.arrow").write_bytes(b"")
    assert main(["data", "check", "us_births/D", "--json"]) == 3
    checked = json.loads(capsys.readouterr().out)
    assert checked["extra"] == ["us_births/D/cache-1.arrow"]
    (found,) = checked["folders"]
    assert found["state"] == "damaged"
    assert found["problems"] == [
        {
            "path": f"us_births/D/{DATA_FILE}",
            "state": "damaged",
            "reason": "it has 5119 bytes, the official file 5120.",
        }
    ]


def test_another_mirror_is_named_by_its_variable_and_an_unreachable_one_is_reported(hub: Hub, tmp_path: Path) -> None:
    code = (
        "import sys; from hrx.gift_eval import catalogue; from hrx.cli import main; from dataclasses import replace\n"
        f"made = tuple(replace(f, bytes={len(CONTENT)}, sha256={hashlib.sha256(CONTENT).hexdigest()!r}) "
        "for f in catalogue.choose(['us_births'])[:2])\n"
        "catalogue.folders = lambda: made\n"
        "sys.exit(main(['data', 'fetch', *sys.argv[1:]]))"
    )

    def fetch(endpoint: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "--data", str(tmp_path)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "HF_ENDPOINT": endpoint}
        )

    nowhere = fetch("http://127.0.0.1:9")
    assert nowhere.returncode == 3
    assert "The hub at http://127.0.0.1:9 could not be reached" in nowhere.stderr
    assert "Traceback" not in nowhere.stderr
    assert fetch(hub.endpoint).returncode == 0
    assert (tmp_path / "us_births" / "M" / DATA_FILE).read_bytes() == CONTENT


def test_an_unknown_name_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "us_birth"]) == 2
    assert "Did you mean 'us_births'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["data", "datasets"])
def test_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert f"Example: hrx {verb}" in capsys.readouterr().out


def test_datasets_lists_everything_that_is_known_with_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path))
    save(tmp_path / "us_births" / "D", [1.0], "D")
    assert main(["datasets", "--json"]) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert len(listed) == 9 + 56 + 15
    assert listed["us_births/D"]["on_disk"] == "damaged"
    assert listed["us_births/M"]["on_disk"] == "no"
    assert listed["elnino/M"]["on_disk"] == "yes"
    solar = listed["solar/H"]
    assert [each["prediction_length"] for each in solar["configurations"]] == [48, 480, 720]
    assert (solar["paper_name"], solar["paper_runs"], solar["season"], solar["series"]) == ("Solar_H", 336, 24, 137)
    assert listed["PEMS03"]["bring"]
    assert main(["datasets"]) == 0
    shown = capsys.readouterr().out
    assert f"0 of 56 folders are in {tmp_path}" in shown
    assert "LOOP_SEATTLE/5T" in shown
    assert "PEMS/PEMS03.npz" in shown


def test_a_named_source_lists_its_own_datasets_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--data", "sample:co2/W", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["co2/W"]


def test_scores_are_printed_and_a_damaged_dataset_makes_the_answer_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [float(value) for value in range(100)]
    save(tmp_path / "us_births" / "D", values, "D")
    assert main(["datasets", "--scores", "--data", str(tmp_path), "--json"]) == 0
    (scored,) = json.loads(capsys.readouterr().out)
    # A straight line of slope one, thirty steps beyond its last value.
    exact = {"mse": sum(k * k for k in range(1, 31)) / 30, "mae": 15.5, "mase": 15.5}
    assert scored == pytest.approx(
        {"config": "us_births/D/short"}
        | {f"{kind}_{name}": exact[name] for kind in ("naive", "seasonal") for name in exact}
    )
    path = save(tmp_path / "us_births" / "W", values, "W")
    path.write_bytes(path.read_bytes()[:-20])
    monkeypatch.setenv("GIFT_EVAL", str(tmp_path))
    assert main(["datasets", "--scores"]) == 3
    printed = capsys.readouterr()
    assert "us_births/D/short" in printed.out
    assert "not scored: us_births/W" in printed.err
    assert main(["datasets", "--scores", "--json"]) == 3
    broken = json.loads(capsys.readouterr().out)[1]
    assert broken["naive_mse"] is None
    assert "us_births/W" in broken["damage"]


def test_only_the_benchmarks_datasets_have_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--scores", "--data", "sample"]) == 2
    assert "holds no dataset of GIFT-Eval" in capsys.readouterr().err
