"""The official download from a local server that answers like the hub, and the check against the manifest."""

import hashlib
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.hub import Hub

from hrx.errors import HrxError
from hrx.gift_eval import catalogue
from hrx.gift_eval.catalogue import (
    DATA_FILE,
    INFO_FILE,
    PARTS,
    STATE_FILE,
    Folder,
    State,
    check,
    check_sizes,
    extra_files,
    fetch,
)

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (pip install 'hrx[gift-eval]')")

ARROW = "us_births/D/" + DATA_FILE
NAMES = ("us_births/D", "us_births/W", "m4_hourly")


def content(name: str) -> bytes:
    return hashlib.shake_256(name.encode()).digest(5000)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with three folders, a stray cache file and a page about the dataset."""
    server = Hub()
    for name in NAMES:
        server.files[f"{name}/{DATA_FILE}"] = content(name)
        server.files[f"{name}/{INFO_FILE}"] = b"{}"
        server.files[f"{name}/{STATE_FILE}"] = json.dumps({"_data_files": [{"filename": DATA_FILE}]}).encode()
    server.files["us_births/D/cache-0f1e.arrow"] = b"stray"
    server.files["README.md"] = b"# GIFT-Eval"
    yield server
    server.close()


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> tuple[Folder, ...]:
    """The catalogue's entries of the three folders, with the sizes and sums of what the hub here serves."""
    known = {folder.name: folder for folder in catalogue.folders()}
    made = tuple(
        replace(known[name], bytes=len(content(name)), sha256=hashlib.sha256(content(name)).hexdigest())
        for name in NAMES
    )
    monkeypatch.setattr(catalogue, "folders", lambda: made)
    return made


def on_disk(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library write every thousand bytes, so that small files can break midway, and retry without waiting."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def test_only_the_named_folders_come_and_no_stray_file(hub: Hub, folders: tuple[Folder, ...], tmp_path: Path) -> None:
    chosen = catalogue.choose(["us_births"])
    found = fetch(tmp_path, chosen, hub.endpoint)
    assert [(each.folder, each.state) for each in found] == [("us_births/D", State.RIGHT), ("us_births/W", State.RIGHT)]
    assert on_disk(tmp_path) == {
        f"{folder.name}/{file}" for folder in chosen for file in (DATA_FILE, INFO_FILE, STATE_FILE)
    }
    assert (tmp_path / ARROW).read_bytes() == content("us_births/D")
    assert all("m4_hourly" not in request.path and "cache-" not in request.path for request in hub.requests)


def test_what_is_right_is_not_fetched_again(hub: Hub, folders: tuple[Folder, ...], tmp_path: Path) -> None:
    fetch(tmp_path, folders, hub.endpoint)
    hub.requests.clear()
    assert all(each.state is State.RIGHT and each.bytes == 0 for each in fetch(tmp_path, folders, hub.endpoint))
    assert hub.requests == []


@pytest.mark.usefixtures("small_chunks")
def test_a_connection_that_breaks_is_resumed_where_it_broke(
    hub: Hub, folders: tuple[Folder, ...], tmp_path: Path
) -> None:
    hub.breaks[ARROW] = [2500]
    (result,) = fetch(tmp_path, folders[:1], hub.endpoint)
    assert result.state is State.RIGHT
    assert hub.gets(ARROW) == [0, 2000]
    assert (tmp_path / ARROW).read_bytes() == content("us_births/D")


@pytest.mark.usefixtures("small_chunks")
def test_a_later_command_fetches_only_what_an_earlier_one_did_not(
    hub: Hub, folders: tuple[Folder, ...], tmp_path: Path
) -> None:
    broken = f"us_births/W/{DATA_FILE}"
    hub.breaks[broken] = [3000, *[0] * 20]
    first, second, third = fetch(tmp_path, folders, hub.endpoint)
    assert [first.state, second.state, third.state] == [State.RIGHT, State.MISSING, State.MISSING]
    assert "broke off" in second.reason
    assert "Repeat the command" in third.reason
    assert not (tmp_path / broken).exists()
    hub.breaks.clear()
    hub.requests.clear()
    assert {each.state for each in fetch(tmp_path, folders, hub.endpoint)} == {State.RIGHT}
    assert hub.gets(ARROW) == []
    assert (tmp_path / broken).read_bytes() == content("us_births/W")
    assert not (tmp_path / PARTS).exists()


def test_a_damaged_file_is_noticed_and_fetched_again(hub: Hub, folders: tuple[Folder, ...], tmp_path: Path) -> None:
    fetch(tmp_path, folders, hub.endpoint)
    damaged = bytearray(content("us_births/D"))
    damaged[17] ^= 1
    (tmp_path / ARROW).write_bytes(damaged)
    (tmp_path / "us_births/W" / STATE_FILE).write_text('{"_data_files": []}')
    (tmp_path / "m4_hourly" / INFO_FILE).unlink()
    (tmp_path / "us_births/D/cache-0f1e.arrow").write_bytes(b"stray")
    (tmp_path / "mine.csv").write_text("1")
    found = check(tmp_path, folders)
    assert [each.state for each in found] == [State.DAMAGED, State.DAMAGED, State.MISSING]
    assert [problem.path for each in found for problem in each.problems] == [
        ARROW, f"us_births/W/{STATE_FILE}", f"m4_hourly/{INFO_FILE}",
    ]  # fmt: skip
    assert "official size but sha256" in found[0].problems[0].reason
    assert extra_files(tmp_path, folders) == ["mine.csv", "us_births/D/cache-0f1e.arrow"]
    assert extra_files(tmp_path, folders[1:]) == []
    hub.requests.clear()
    fetch(tmp_path, folders, hub.endpoint)
    assert len([request for request in hub.requests if request.method == "GET"]) == 3
    assert [each.state for each in check(tmp_path, folders)] == [State.RIGHT] * 3


def test_a_file_of_another_size_is_named_with_both_sizes(folders: tuple[Folder, ...], tmp_path: Path) -> None:
    assert check_sizes(tmp_path, folders[0]) is State.MISSING
    folder = tmp_path / "us_births" / "D"
    folder.mkdir(parents=True)
    (folder / DATA_FILE).write_bytes(b"short")
    (folder / INFO_FILE).write_text("{}")
    (folder / STATE_FILE).write_text("no json")
    (found,) = check(tmp_path, folders[:1])
    assert [problem.reason for problem in found.problems] == [
        "it has 5 bytes, the official file 5000.", "it is not valid JSON.",
    ]  # fmt: skip
    assert check_sizes(tmp_path, folders[0]) is State.DAMAGED


def test_another_version_on_the_hub_never_replaces_a_file(
    hub: Hub, folders: tuple[Folder, ...], tmp_path: Path
) -> None:
    (tmp_path / ARROW).parent.mkdir(parents=True)
    (tmp_path / ARROW).write_bytes(b"mine")
    hub.files[ARROW] = bytes(5000)
    same_size, other = fetch(tmp_path, folders[:2], hub.endpoint)
    assert "is not the official file: it has the official size but sha256" in same_size.reason
    assert other.state is State.RIGHT
    hub.files[ARROW] = bytes(4000)
    (other_size,) = fetch(tmp_path, folders[:1], hub.endpoint)
    assert "is not the official file: it has 4000 bytes, the official file 5000" in other_size.reason
    assert (tmp_path / ARROW).read_bytes() == b"mine"


def test_a_file_the_hub_does_not_have_fails_its_folder_alone(
    hub: Hub, folders: tuple[Folder, ...], tmp_path: Path
) -> None:
    del hub.files[ARROW]
    first, *others = fetch(tmp_path, folders, hub.endpoint)
    assert f"has no file {ARROW} in Salesforce/GiftEval" in first.reason
    assert [each.state for each in others] == [State.RIGHT, State.RIGHT]


def test_an_unreachable_hub_says_so_and_what_to_do(hub: Hub, folders: tuple[Folder, ...], tmp_path: Path) -> None:
    fetch(tmp_path, folders[:1], hub.endpoint)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    here, *others = fetch(tmp_path, folders, endpoint)
    assert here.state is State.RIGHT
    for each in others:
        assert each.state is State.MISSING
        assert f"The hub at {endpoint} could not be reached" in each.reason
        assert "HF_ENDPOINT" in each.reason
        assert "hrx data check" in each.reason


def test_a_server_that_is_not_a_hub_is_recognised(folders: tuple[Folder, ...], tmp_path: Path) -> None:
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Anything(SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Anything)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    (found,) = fetch(tmp_path, folders[:1], f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()
    assert "could not be reached" in found.reason
    assert found.state is State.MISSING


def test_a_root_that_is_a_file_or_cannot_be_written_is_refused(
    hub: Hub, folders: tuple[Folder, ...], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(HrxError, match="is not a directory"):
        check(file, folders)
    with pytest.raises(HrxError, match="cannot be written"):
        fetch(file, folders, hub.endpoint)
