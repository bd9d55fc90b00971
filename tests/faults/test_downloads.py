"""Two processes that download into one folder at the same moment."""

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.conftest import sample
from helpers.hub import Hub

from hrx.gift_eval.catalogue import DATA_FILE, INFO_FILE, STATE_FILE

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (pip install 'hrx[gift-eval]')")

NAMES = ("us_births/D", "us_births/W", "us_births/M", "m4_hourly")
SIZE = 200_000
FETCHER = """
import sys
from dataclasses import replace
from hrx.gift_eval import catalogue
from pathlib import Path
endpoint, size, *sums = sys.argv[1:]
known = {folder.name: folder for folder in catalogue.folders()}
chosen = [replace(known[name], bytes=int(size), sha256=sum) for name, sum in (one.split("=") for one in sums)]
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    root, *order = line.split()
    try:
        found = catalogue.fetch(Path(root), [chosen[int(place)] for place in order], endpoint)
        print(*(f"{each.state} {each.reason}".strip() for each in found), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\\n", " "), flush=True)
"""


def content(name: str) -> bytes:
    return hashlib.shake_256(name.encode()).digest(SIZE)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    server = Hub()
    for name in NAMES:
        server.files[f"{name}/{DATA_FILE}"] = content(name)
        server.files[f"{name}/{INFO_FILE}"] = b"{}"
        server.files[f"{name}/{STATE_FILE}"] = json.dumps({"_data_files": [{"filename": DATA_FILE}]}).encode()
    yield server
    server.close()


@pytest.fixture(scope="module")
def fetchers(hub: Hub) -> Iterator[list[subprocess.Popen[str]]]:
    sums = [f"{name}={hashlib.sha256(content(name)).hexdigest()}" for name in NAMES]
    command = [sys.executable, "-c", FETCHER, hub.endpoint, str(SIZE), *sums]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) for _ in range(2)]
    assert [one.stdout.readline().strip() for one in started if one.stdout] == ["ready", "ready"]
    yield started
    for one in started:
        one.communicate()


@pytest.mark.parametrize("case", sample(range(20), 3))
def test_two_fetches_into_one_folder_both_succeed(
    case: int, hub: Hub, fetchers: list[subprocess.Popen[str]], tmp_path: Path, figure: Callable[..., None]
) -> None:
    hub.requests.clear()
    orders = [list(range(len(NAMES))) for _ in fetchers]
    if case % 2:  # in the same order, or each in its own
        random.Random(case).shuffle(orders[1])
    for one, order in zip(fetchers, orders, strict=True):
        assert one.stdin
        one.stdin.write(f"{tmp_path} {' '.join(map(str, order))}\n")
    said = [one.stdout.readline().strip() for one in fetchers if one.stdout]
    assert said == [" ".join(["right"] * len(NAMES))] * 2
    held = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert held == {f"{name}/{file}" for name in NAMES for file in (DATA_FILE, INFO_FILE, STATE_FILE)}
    assert all((tmp_path / name / DATA_FILE).read_bytes() == content(name) for name in NAMES)
    assert all(len(hub.gets(f"{name}/{DATA_FILE}")) == 1 for name in NAMES)  # no file came twice
    figure("downloads", "two fetches into one folder at the same moment: both succeed", made=1, handled=1)
