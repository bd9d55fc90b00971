"""What the fault suites share: how much of a suite runs, and the figures that go into docs/reliability.md.

`make test` runs a sample of each suite; `make faults` sets HRX_FAULTS=all, runs everything, and writes the figures.
"""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

FIGURES = Path(__file__).parents[2] / "build" / "faults"
ALL = os.environ.get("HRX_FAULTS") == "all"
Case = TypeVar("Case")


def sample(cases: Sequence[Case], count: int) -> list[Case]:
    """All cases under `make faults`, otherwise `count` of them, evenly spaced."""
    if ALL or len(cases) <= count:
        return list(cases)
    return [cases[index * len(cases) // count] for index in range(count)]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Records how many faults of a kind were made, and how many of them were handled as stated.

    `figure("torn ledgers", "a byte of a stored number flipped", made=100, handled=100)`; rows of one suite and fault
    are added up, so that a parametrised test may record one case at a time.
    """

    def record(suite: str, fault: str, *, made: int, handled: int) -> None:
        _write(request.node, suite, fault, made, handled)

    return record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails is a fault that was not handled: the table must not show its suite as if it had not run."""
    report = yield
    if report.failed and "figure" in getattr(item, "fixturenames", ()):
        suite = item.path.stem.removeprefix("test_").replace("_", " ")
        name = item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
        _write(item, suite, f"FAILED: {name}", 1, 0)
    return report


def _write(item: pytest.Item, suite: str, fault: str, made: int, handled: int) -> None:
    if not ALL:
        return
    FIGURES.mkdir(parents=True, exist_ok=True)
    row = {"suite": suite, "fault": fault, "made": made, "handled": handled}
    name = hashlib.sha256(f"{item.nodeid} {suite} {fault}".encode()).hexdigest()[:24]
    (FIGURES / f"{name}.json").write_text(json.dumps(row))
