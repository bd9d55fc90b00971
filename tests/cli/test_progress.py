"""Progress: the numbers of the line, and what a person sees in a real terminal."""

import io
import json
import re
from pathlib import Path

import pytest
from helpers.records import record
from helpers.screen import Session
from rich.console import Console

from hrx.api import progress as module
from hrx.api.audit import verdict_so_far
from hrx.api.progress import Progress, duration
from hrx.cli import main
from hrx.cli.terminal import progress
from hrx.records.ledger import Ledger
from hrx.reports import read, summarise

SLOW = """
import time
import torch

def make():
    def forecast(x):
        time.sleep(0.02)
        return x[:, -24:] * torch.linspace(0.5, 1, 24)
    return forecast
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def drawn(shown: Progress, width: int = 100) -> list[str]:
    """The line as a terminal of that width shows it."""
    stream = io.StringIO()
    Console(file=stream, width=width).print(shown)
    return stream.getvalue().splitlines()


def test_time_to_go_weighs_items_by_what_they_are_expected_to_take(clock: list[float]) -> None:
    shown = Progress(io.StringIO())
    shown.expect(12, {"a": 1.0, "b": 1.0, "large": 50.0})
    clock[0] += 30
    shown.say("loading")
    assert drawn(shown)[0].endswith(" 9/12 runs in 30 s: loading")
    shown.time_from_here()
    clock[0] += 2  # twice as long as expected
    shown.step("a", "a done")
    assert duration((1 + 50) * 2) == "2 min"
    assert drawn(shown)[0].endswith(" 10/12 runs in 32 s, 2 min to go: a done")


def test_part_of_an_item_counts_for_the_bar_and_for_the_time_to_go(clock: list[float]) -> None:
    shown = Progress(io.StringIO())
    shown.expect(1, {"folder": 80.0}, "folders")
    arrived = 0.0
    shown.say("fetching", lambda: arrived)
    assert drawn(shown)[0].endswith(" 0/1 folders in 0 s: fetching")
    clock[0] += 10
    arrived = 20.0
    assert drawn(shown)[0].endswith(" 0/1 folders in 10 s, 30 s to go: fetching")


def test_a_line_that_is_too_long_is_cut_at_the_width_of_the_terminal(clock: list[float]) -> None:
    shown = Progress(io.StringIO())
    shown.expect(2, {"a": 1.0, "b": 1.0})
    shown.say("model " * 30)
    shown.so_far("gain " * 30)
    lines = drawn(shown, 60)
    assert len(lines) == 2
    assert all(len(line) <= 60 and line.endswith("…") for line in lines)


def test_where_nobody_watches_a_line_comes_now_and_then_and_at_the_end(clock: list[float]) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    shown.expect(100, {str(i): 1.0 for i in range(100)})
    shown.so_far("So far, m: g_margin +0.1")
    for number in range(100):
        clock[0] += 1
        shown.step(str(number), "done")
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert len(lines) == 7
    assert lines[0] == "15/100 runs, 85 s to go: done (So far, m: g_margin +0.1)"
    assert lines[-1].startswith("100/100 runs, none to go: done")


def test_the_announcement_of_a_stop_is_written_at_once(clock: list[float]) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    shown.expect(3, {"a": 1.0, "b": 1.0})
    shown.say("a")
    shown.announce("stopping")
    assert stream.getvalue() == "1/3 runs: stopping\n"


def test_durations_have_one_unit() -> None:
    assert [duration(s) for s in (0, 89, 91, 3600, 7200, 86400 * 4)] == [
        "0 s", "89 s", "2 min", "60 min", "2.0 h", "4 days",
    ]  # fmt: skip


def test_the_verdict_so_far_is_the_figure_of_the_summary_over_the_same_runs(
    tmp_path: Path,
) -> None:
    gains = [0.3, 0.1, -0.2, 0.5, 0.4, 0.25, float("nan"), 1e200]
    runs = [
        record(
            f"{series}-{seed}", series=f"s{series}", series_fingerprint=f"{series}", seed=seed,
            g_margin=gain + 0.01 * seed, beats_naive=series != 1,
        )
        for series, gain in enumerate(gains)
        for seed in (0, 1)
    ]  # fmt: skip
    runs.append(record("short", series="s8", g_margin=9.0, beats_naive=1, variance_span=1.0))
    runs.append(record("broken", series="s9", status="failed", g_margin=None))
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        for run in runs:
            ledger.write(run)
        (summary,) = summarise(read(path), ledger.checks())
    margin = summary.beating_naive.evidence["g_margin"]
    assert margin.n == 5
    assert margin.interval.low < margin.interval.point < margin.interval.high
    figure = f"g_margin {margin}, positive in 4 of 5 series that beat naive"
    assert verdict_so_far(runs, str(summary.model)) == f"So far, {summary.model}: {figure}; 1 failed; not final"


def test_one_run_has_no_interval_and_none_that_beats_naive_is_said() -> None:
    assert verdict_so_far([], "bolt-mini") == ""
    lost = [record("a", model="m", beats_naive=0)]
    assert verdict_so_far(lost, "m") == "So far, m: no run beats both naive forecasts; not final"
    one = [record("a", model="m", g_margin=0.25, beats_naive=1)]
    figure = "g_margin +0.250, positive in 1 of 1 series that beat naive"
    assert verdict_so_far(one, "m") == f"So far, m: {figure}; not final"


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        (["verify", "MODEL", "--settings", "96x24"], ["finding", "loading", "checking"]),
        (
            ["explain", "MODEL", "--series", "sample:co2", "--lookback", "96", "--horizon", "24"],
            ["reading", "loading", "explaining", "scoring", "checking", "writing"],
        ),
        (["data", "check", "us_births", "--data", "none"], ["checking us_births/D", "checking us_births/M"]),
    ],
    ids=lambda value: value[0] if value[0] in ("verify", "explain", "audit", "data") else "",
)
def test_a_verb_says_what_it_does_stage_by_stage(
    arguments: list[str], stages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_model.py").write_text(SLOW.replace("0.02", "0"))
    said: list[str] = []
    monkeypatch.setattr(progress, "say", lambda what, part=None: said.append(what))
    main([word.replace("MODEL", "module:my_model.py:make") for word in arguments])
    found = [next((what for what in said if what.startswith(stage)), None) for stage in stages]
    assert None not in found, said
    assert [said.index(str(what)) for what in found] == sorted(said.index(str(what)) for what in found)


AUDIT = ["audit", "module:my_model.py:make", "--settings", "96x24", "--data", "sample:co2,elnino", "--seeds", "6"]


@pytest.mark.slow
def test_a_terminal_shows_every_stage_and_the_json_on_standard_output_stays_clean(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(SLOW.replace("0.02", "0.001"))
    with (tmp_path / "out.json").open("w") as out:
        session = Session([*AUDIT, "--json"], tmp_path, stdout=out.fileno())
        assert session.end() == 0, session.screen.text
    frames = "\n".join(session.frames)
    places = [frames.find(text) for text in ("importing libraries", "finding models", "loading my_model:make")]
    assert -1 < places[0] < places[1] < places[2], frames
    assert re.search(r"━+ \d+/12 runs in \d+ s, \d+ s to go: my_model:make \w+/\w 96x24\n", frames)
    assert "So far, my_model:make: " in frames
    assert session.screen.text.strip() == ""
    assert session.screen.cursor
    assert json.loads((tmp_path / "out.json").read_text())["models"][0]["runs"] == 12


@pytest.mark.slow
def test_ctrl_c_leaves_the_verdict_so_far_one_sentence_no_bar_and_a_cursor(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(SLOW)
    session = Session(AUDIT, tmp_path)
    session.until(lambda text: re.search(r"\b[1-9]\d?/12 runs", text) is not None)
    session.type("\x03")
    assert session.end() == 130
    headline, *report, sentence = session.screen.text.strip().splitlines()
    assert headline == "12 runs (1 model, 2 datasets): hrx-audit/ledger.db"
    assert re.fullmatch(
        r"hrx audit: stopped\. \d+ of 12 runs are in hrx-audit/ledger\.db\. Repeat the command to continue\.", sentence
    )
    assert re.search(r"TRUST .*\d+ of 12 planned runs stored", " ".join(" ".join(report).split()))
    assert session.screen.cursor
