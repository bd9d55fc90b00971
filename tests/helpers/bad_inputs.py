"""The table of bad inputs: what is wrong, and the command lines that meet it.

A case builds its files in an empty folder and returns the arguments of one command. Every one of them is a wrong
request: exit code 2, one sentence, nothing written.
"""

import atexit
import json
import os
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pandas as pd

from helpers.bad_contents import (
    CONFIG_JSON,
    CSV_CONTENTS,
    ESCAPE,
    PARQUET_CONTENTS,
    SAFETENSORS,
    SOURCES,
    STATES,
    TOML,
    rows,
)
from helpers.records import record
from hrx.records.ledger import Ledger

Build = Callable[[Path], Sequence[str | Path]]


@dataclass(frozen=True)
class Case:
    """One bad input."""

    kind: str
    """The row of docs/reliability.md that it counts in."""
    name: str
    build: Build

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}".encode("ascii", "backslashreplace").decode()


SETTING = ("--lookback", "24", "--horizon", "8")
CSV_READERS: dict[str, Callable[[str], list[str]]] = {
    "datasets": lambda file: ["datasets", "--data", f"csv:{file}"],
    "audit": lambda file: ["audit", "--data", f"csv:{file}", "--settings", "24x8"],
    "explain": lambda file: ["explain", "bolt-mini", "--series", file, *SETTING],
    "verify": lambda file: ["verify", "bolt-mini", "--data", f"csv:{file}", "--settings", "24x8"],
}
# `explain` needs neither dates nor an unambiguous column of dates.
NOT_FOR_EXPLAIN = ("a number where a date is",)


def _file(
    name: str, content: str | bytes | pd.DataFrame, command: Callable[[str], list[str]], folder: Path
) -> list[str]:
    path = folder / name
    if isinstance(content, pd.DataFrame):
        content.to_parquet(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return command(name)


def tables() -> Iterator[Case]:
    """Files whose content is wrong, and sources that are."""
    for what, content in CSV_CONTENTS.items():
        for verb, command in CSV_READERS.items():
            if verb != "explain" or what not in NOT_FOR_EXPLAIN:
                yield Case("content of a CSV file", f"{what}, {verb}", partial(_file, "a.csv", content, command))
    for what, content in PARQUET_CONTENTS.items():
        for verb in ("datasets", "audit"):
            command = partial(_with_data, verb, "parquet:")
            yield Case("content of a Parquet file", f"{what}, {verb}", partial(_file, "a.parquet", content, command))
    for source in SOURCES:
        build = partial(_file, "a.csv", rows(), lambda _, source=source: ["datasets", "--data", source])
        yield Case("name of a source", repr(source[:40]), build)


def _with_data(verb: str, kind: str, file: str) -> list[str]:
    return [verb, "--data", kind + file]


# What may stand where a file is expected.
def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))  # the absolute path may be too long for a socket


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**37)


ODD: dict[str, Callable[[Path], object]] = {
    "a FIFO": _fifo,
    "a socket": _socket,
    "a directory": Path.mkdir,
    "a link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a FIFO": lambda path: (_fifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "nothing": lambda path: None,
    "a file of 128 GiB": _sparse,
    "an empty file": Path.touch,
    "bytes that are not text": lambda path: path.write_bytes(b"\xff\xfe\xfd" * 50),
}
PLACES: dict[str, tuple[str, list[str]]] = {
    "csv:": ("x.csv", ["datasets", "--data", "csv:x.csv"]),
    "parquet:": ("x.parquet", ["audit", "--data", "parquet:x.parquet"]),
    "--series": ("x.csv", ["explain", "bolt-mini", "--series", "x.csv", *SETTING]),
    "--config": ("x.toml", ["audit", "no-such-model", "--config", "x.toml"]),
    "the ledger of tables": ("x.db", ["tables", "x.db"]),
    "the ledger of report": ("x.db", ["report", "x.db"]),
    "the ledger of compare": ("x.db", ["compare", "x.db", "x.db"]),
    "the ledger of export": ("x.db", ["export", "x.db"]),
    "the ledger of merge": ("x.db", ["merge", "x.db", "--into", "y.db"]),
    "the ledger of check": ("x.db", ["check", "x.db"]),
    "the ledger of --recheck": ("x.db", ["audit", "--ledger", "x.db", "--recheck", "1", "--settings", "24x8"]),
    "a module": ("x.py", ["verify", "module:x.py:make", "--settings", "24x8"]),
    "config.json": ("c/config.json", ["verify", "c"]),
    "weights": ("w/model.safetensors", ["verify", "chronos-bolt:w", "--settings", "24x8", "--data", "sample:elnino"]),
    "state.json": ("d/state.json", ["audit", "--data", "d", "--settings", "24x8"]),
    "an Arrow file": ("a/data.arrow", ["audit", "--data", "a", "--settings", "24x8"]),
    "--python": ("x", ["audit", "--python", "timer=x"]),
}


def places() -> Iterator[Case]:
    """FIFOs, devices, loops and absurd sizes wherever hrx opens a file."""
    for place, (name, arguments) in PLACES.items():
        for what, make in ODD.items():
            if place == "--python" and what in ("an empty file", "bytes that are not text", "a file of 128 GiB"):
                continue  # a file, as far as its kind goes
            yield Case("kind of a file", f"{what}, {place}", partial(_place, name, make, arguments))


def _place(name: str, make: Callable[[Path], object], arguments: list[str], folder: Path) -> list[str]:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if name.endswith(".arrow"):
        state = {"_data_files": [{"filename": path.name}]}
        path.with_name("state.json").write_text(json.dumps(state))
    if name == "w/model.safetensors":
        path.with_name("config.json").write_text("{}")
    make(path)
    return arguments


def settings_and_checkpoints() -> Iterator[Case]:
    """Settings files and checkpoints whose content is wrong."""
    for what, content in TOML.items():
        build = partial(_file, "a.toml", content, lambda name: ["audit", "--config", name, "--settings", "24x8"])
        yield Case("settings file", what, build)
    for what, content in CONFIG_JSON.items():
        for verb in ("verify", "explain"):
            yield Case("checkpoint", f"config.json: {what}, {verb}", partial(_checkpoint, "config.json", content, verb))
    for what, content in SAFETENSORS.items():
        for verb in ("verify", "explain"):
            build = partial(_checkpoint, "model.safetensors", content, verb)
            yield Case("checkpoint", f"model.safetensors: {what}, {verb}", build)


def _checkpoint(name: str, content: str | bytes, verb: str, folder: Path) -> list[str]:
    (folder / "c").mkdir()
    if name != "config.json":
        (folder / "c" / "config.json").write_text('{"architectures": ["ChronosBoltModelForForecasting"]}')
    _file(f"c/{name}", content, lambda _: [], folder)
    if verb == "verify":
        return ["verify", "c", "--settings", "24x8", "--data", "sample:elnino/M"]
    return ["explain", "c", "--series", "sample:elnino/M", *SETTING]


def official_folders() -> Iterator[Case]:
    """Folders in GIFT-Eval's format that are wrong."""
    for what, state in STATES.items():
        for verb in ("audit", "verify"):
            yield Case("official folder", f"state.json: {what}, {verb}", partial(_folder, state, verb))
    yield Case("official folder", "no dataset", lambda folder: ["datasets", "--data", str(folder)])


def _folder(state: str, verb: str, folder: Path) -> list[str]:
    (folder / "d").mkdir()
    (folder / "d" / "state.json").write_text(state)
    (folder / "d" / "text.arrow").write_text("not Arrow\n" * 10)
    (folder / "secret.arrow").write_text("secret")
    (folder / "d" / "link.arrow").symlink_to("../secret.arrow")
    model = ["bolt-mini"] if verb == "verify" else []
    return [verb, *model, "--data", "d", "--settings", "24x8"]


LEDGERS: dict[str, Callable[[Path, Path], object]] = {
    "text": lambda path, _: path.write_text("not a ledger\n" * 100),
    "empty": lambda path, _: path.touch(),
    "a header alone": lambda path, _: path.write_bytes(b"SQLite format 3\0"),
    "a header and zeros": lambda path, _: path.write_bytes(b"SQLite format 3\0" + bytes(4096)),
    "another database": lambda path, _: _database(path, "CREATE TABLE other (x)"),
    "a newer schema": lambda path, good: (shutil.copy(good, path), _database(path, "PRAGMA user_version = 99")),
    "without its tables": lambda path, good: (shutil.copy(good, path), _database(path, "DROP TABLE runs")),
    "half of one": lambda path, good: path.write_bytes(good.read_bytes()[: good.stat().st_size // 2]),
}
LEDGER_READERS: dict[str, list[str]] = {
    "tables": ["tables", "x.db"],
    "report": ["report", "x.db", "--out", "out"],
    "compare": ["compare", "x.db", "x.db"],
    "export": ["export", "x.db", "--format", "csv"],
    "check": ["check", "x.db"],
    "merge": ["merge", "x.db", "--into", "new.db"],
    "audit": ["audit", "--ledger", "x.db", "--settings", "24x8", "--data", "sample:elnino/M"],
}


@cache
def _good() -> Path:
    """A ledger that can be read."""
    path = Path(tempfile.mkdtemp(prefix="hrx-test-")) / "good.db"
    with Ledger.open(path) as ledger:
        for number in range(12):
            ledger.write(record(f"key {number}", g_own=0.1, g_margin=0.2, mse=1.0, series=f"T{number}"))
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    return path


def _database(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()


def ledgers() -> Iterator[Case]:
    """Files that are not ledgers."""
    for what, make in LEDGERS.items():
        for verb, arguments in LEDGER_READERS.items():
            if (what, verb) not in NOT_REFUSED:
                yield Case("ledger", f"{what}, {verb}", partial(_ledger, make, arguments))
    dangling = partial(_ledger, lambda path, _: path.symlink_to("nothing"))
    for verb, arguments in LEDGER_READERS.items():
        yield Case("ledger", f"a link to nothing, {verb}", partial(dangling, arguments))
    into = ["merge", "good.db", "--into", "x.db"]
    yield Case("ledger", "a link to nothing, merge --into", lambda folder: _target(dangling(into, folder), "", folder))
    for end in ("-journal", "-wal"):
        yield Case("ledger", f"a FIFO for its {end[1:]}", partial(_log, end))


# An empty file becomes a ledger, and what can be read of half a ledger is saved.
NOT_REFUSED = {("empty", "audit"), ("half of one", "merge")}


def _log(end: str, folder: Path) -> list[str]:
    shutil.copy(_good(), folder / "x.db")
    _fifo(folder / f"x.db{end}")
    return ["tables", "x.db"]


def _ledger(make: Callable[[Path, Path], object], arguments: list[str], folder: Path) -> list[str]:
    make(folder / "x.db", _good())
    return arguments


def options() -> Iterator[Case]:
    """Values of options that are wrong, by verb."""
    audit = ["audit", "--settings", "24x8", "--data", "sample:elnino/M"]
    explain = ["explain", "bolt-mini", "--series", "sample:elnino/M", *SETTING]
    wrong: list[list[str]] = [[], ["adit"], ["audit", "--nothing"], ["audit", ESCAPE], ["audit", f"--{ESCAPE}"]]
    for number in ("0", "-1", "1.5", "x", "", "9" * 7, "9" * 400, "nan", "١"):
        names = ("series", "windows") if number == "0" else ("series", "windows", "workers")
        wrong += [[*audit, f"--{name}={number}"] for name in names]
    for number in ("nan", "inf", "-1", "x", "1e400"):
        wrong += [[*audit, f"--memory={number}"], [*audit, f"--gpus={number}"]]
    wrong += [[*audit, f"--precision={number}"] for number in ("0", "-1", "nan", "x")]
    wrong += [[*audit, "--draws", "3"], [*audit, "--device", "tpu"], [*audit, "--device", ESCAPE]]
    wrong += [[*audit, "--sweeps", "x"], [*audit, "--gate", "x"], [*audit, "--gate", "g_own >"]]
    wrong += [[*audit, "--gate", f"{ESCAPE} > 1"], [*audit, "--estimator", "x"], [*audit, "--estimator", ESCAPE]]
    wrong += [[*audit, "--estimator-setting", text] for text in ("x", "x=1", "points=", "=", ESCAPE)]
    wrong += [[*audit, "--python", text] for text in ("x", "timer", "timer=", "none=/bin/true", "timer=" + "n" * 300)]
    wrong += [[*audit, "--engine", "x"], [*audit, "--axis", "x"], [*audit, "--json", "x", "y"]]
    for text in ("", "x", "24", "24x", "x8", "0x8", "24x0", "24x8,", "1e3x8", "9" * 8 + "x8", "-1x8", ESCAPE):
        wrong += [["audit", "--settings", text], ["verify", "bolt-mini", "--settings", text]]
    for model in ("bolt-mni", "", ".", "module:", "module:x", "module:x.py:f", "timer:", "n" * 300, "a\0b", ESCAPE):
        wrong += [["audit", model], ["verify", model], ["explain", model, *explain[2:]]]
    wrong += [["explain", "bolt-mini"], ["explain", "bolt-mini", "--series", "sample:none", *SETTING]]
    wrong += [["explain", "bolt-mini", "--series", "sample", *SETTING], [*explain, "--estimator", "x"]]
    wrong += [["explain", "bolt-mini", "--series", "n" * 300, *SETTING], [*explain[:-1], "0"]]
    wrong += [["datasets", "--data", "sample:x"], ["data", "fly"], ["data", "check", "no_such_data"]]
    wrong += [["calibrate", "--backbones", "x"], ["calibrate", "--estimator", "x"], ["calibrate", "--seeds", "0"]]
    ledger = "good.db"
    wrong += [["tables", ledger, "--table", "x"], ["tables", ledger, "--format", "docx"], ["tables"], ["report"]]
    wrong += [["compare", ledger], ["compare", ledger, ledger, "--gate", "x"], ["merge", ledger], ["export"]]
    wrong += [["compare", ledger, ledger, "--base-model", ESCAPE], ["tables", ledger, "--against", "x"]]
    for arguments in wrong:
        yield Case("option", " ".join(arguments)[:90], partial(_target, arguments, ""))


OUTPUTS: dict[str, list[str]] = {
    "explain --out": ["explain", "bolt-mini", "--series", "in.csv", *SETTING, "--out", "T"],
    "tables --out": ["tables", "good.db", "--format", "md", "--out", "T"],
    "export --out": ["export", "good.db", "--format", "csv", "--out", "T"],
    "compare --json": ["compare", "good.db", "good.db", "--json", "T"],
    "compare --summary": ["compare", "good.db", "good.db", "--summary", "T"],
    "compare --junit": ["compare", "good.db", "good.db", "--junit", "T"],
}
FOLDERS: dict[str, list[str]] = {
    "audit --out": ["audit", "--settings", "24x8", "--data", "sample:elnino/M", "--out", "T"],
    "report --out": ["report", "good.db", "--out", "T"],
    "calibrate --out": ["calibrate", "--backbones", "linear", "--out", "T"],
}
TARGETS: dict[str, str] = {
    "below a file": "in.csv/x.md",
    "a name of 300 characters": "n" * 300 + ".md",
    "below a name of 300 characters": "n" * 300 + "/x.md",
    "a NUL": "a\0b.md",
    "in /proc": "/proc/none/x.md",
    "a FIFO": "pipe.md",
    "a socket": "socket.md",
    "a link to a device": "device.md",
    "a link to itself": "loop.md",
}


def outputs() -> Iterator[Case]:
    """Targets that cannot or must not be written."""
    for option, arguments in OUTPUTS.items():
        for what, target in (TARGETS | {"a ledger": "good.db", "a directory": "folder.md"}).items():
            yield Case("target", f"{what}, {option}", partial(_target, arguments, target))
    for option, arguments in FOLDERS.items():
        for what, target in (TARGETS | {"a file": "in.csv"}).items():
            yield Case("target", f"{what}, {option}", partial(_target, arguments, target))
    for what, target in {
        "itself": "in.csv",
        "another spelling": "./folder.md/../in.csv",
        "a hard link": "hard.csv",
    }.items():
        yield Case("target", f"the input, {what}", partial(_target, OUTPUTS["explain --out"], target))
    yield Case("target", "the input, a link", partial(_target, OUTPUTS["explain --out"], "soft.csv"))


def _target(arguments: list[str], target: str, folder: Path) -> list[str]:
    shutil.copy(_good(), folder / "good.db")
    (folder / "in.csv").write_text(rows())
    (folder / "folder.md").mkdir()
    (folder / "hard.csv").hardlink_to(folder / "in.csv")
    (folder / "soft.csv").symlink_to("in.csv")
    _fifo(folder / "pipe.md")
    _socket(folder / "socket.md")
    (folder / "device.md").symlink_to("/dev/null")
    (folder / "loop.md").symlink_to("loop.md")
    return [target if word == "T" else word for word in arguments]


def every_case() -> list[Case]:
    """All cases."""
    return [
        *tables(),
        *places(),
        *settings_and_checkpoints(),
        *official_folders(),
        *ledgers(),
        *options(),
        *outputs(),
    ]
