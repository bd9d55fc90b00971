import io

import pytest

from hrx.cli import terminal as module
from hrx.cli.terminal import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_time_to_go_weighs_runs_by_what_they_are_expected_to_take(clock: list[float]) -> None:
    stream = Terminal()
    progress = Progress(12, {"a": 1.0, "b": 1.0, "c": 1.0, "large": 50.0}, stream)
    clock[0] += 30  # loading, and the first run
    progress.step("a", "a done")
    clock[0] += 2  # twice as long as expected
    progress.step("b", "b done")
    assert duration((1 + 50) / 1 * 2) == "2 min"
    assert "10/12 runs, 2 min to go: b done" in stream.getvalue()


def test_where_nobody_watches_a_line_comes_now_and_then_and_at_the_end(clock: list[float]) -> None:
    stream = io.StringIO()
    progress = Progress(100, {str(i): 1.0 for i in range(100)}, stream)
    for number in range(100):
        clock[0] += 1
        progress.step(str(number), "done")
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert len(lines) == 7
    assert lines[0] == "15/100 runs, 85 s to go: done"
    assert lines[-1] == "100/100 runs, none to go: done"


def test_durations_have_one_unit() -> None:
    assert [duration(s) for s in (0, 89, 91, 3600, 7200, 86400 * 4)] == [
        "0 s", "89 s", "2 min", "60 min", "2.0 h", "4 days",
    ]  # fmt: skip
