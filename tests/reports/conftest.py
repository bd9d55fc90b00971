"""Fixtures around the records, frames and ledgers of `helpers.constructed`."""

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pandas as pd
import pytest
from helpers import constructed

from hrx.records.ledger import StoredCheck, StoredExample
from hrx.records.record import Record
from hrx.reports import read

BOLT = {"model": "bolt-mini", "checkpoint": "amazon/bolt-mini", "dataset": "us_births/D", "frequency": "D", "season": 7}


@pytest.fixture
def record() -> Callable[..., Record]:
    """record(column=value, …): a scored run of bolt-mini that beats naive, with these changes."""
    return lambda **changes: constructed.record(**(BOLT | changes))


@pytest.fixture
def many(record: Callable[..., Record]) -> Callable[..., list[Record]]:
    """many(own, margin, **changes): one run per pair of gains, each of a series of its own."""

    def make(own: Iterable[float], margin: Iterable[float], **changes: object) -> list[Record]:
        return [
            record(g_own=o, g_margin=m, g_shuffled=o - m, series=f"T{i}", series_fingerprint=f"s{i}", **changes)
            for i, (o, m) in enumerate(zip(own, margin, strict=True))
        ]

    return make


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., Path]:
    """ledger(records, checks, examples): the path of a new ledger that holds them."""
    number = count()
    return lambda *content, **named: constructed.write_ledger(tmp_path / f"ledger{next(number)}.db", *content, **named)


@pytest.fixture
def frame(ledger: Callable[..., Path]) -> Callable[[Iterable[Record]], pd.DataFrame]:
    """frame(records): a ledger with these runs as `read` returns it."""
    return lambda records: read(ledger(records))


@pytest.fixture
def check() -> Callable[..., StoredCheck]:
    """check(name, passed, figure, limit, setting): an admission check of the default model."""

    def make(name: str, passed: bool, figure: float, limit: float, setting: str = "96x24") -> StoredCheck:
        about = (constructed.DEFAULTS[c] for c in ("fingerprint", "library", "adapter_version", "torch_version"))
        return StoredCheck(*map(str, about), "bolt-mini", setting, name, passed, figure, limit, "note")

    return make


@pytest.fixture
def example() -> Callable[..., StoredExample]:
    """example(record, rows): a window with a season, and a matrix with rows that move with the step."""
    return constructed.example
