"""The first screen of an audit: twelve ledgers whose numbers are known, and the sentences that follow from them."""

import shlex
from pathlib import Path

import numpy as np
import pytest
from helpers import constructed

from hrx.audit.request import AuditRequest
from hrx.errors import Exit
from hrx.options import as_settings
from hrx.records.ledger import Ledger, StoredPlan
from hrx.records.reading import Reading
from hrx.reports import read, summarise
from hrx.reports.audit_summary import AuditSummary, summarise_backbones
from hrx.reports.commands import USUAL
from hrx.reports.page.report import render_report
from hrx.reports.screen import LINES

SOURCES = [f"source{i}/D" for i in range(8)]
SPREAD = (-0.03, -0.02, -0.01, 0.0, 0.0, 0.01, 0.02, 0.03)
"""Around each median: the second and the seventh of eight values are the ends of the interval, nearly."""


def around(own, margin, sources=SOURCES, **changes):
    """A run on each source: `g_own` and `g_margin` of the middle source, the others by their place."""
    return [
        constructed.record(
            dataset=name, season=7, series="T", series_fingerprint=name,
            g_own=own + away, g_margin=margin + away, mase=0.8, seasonal_mase=1.0, mse_seasonal=0.9, **changes,
        )
        for name, away in zip(sources, SPREAD, strict=False)
    ]  # fmt: skip


@pytest.fixture
def audited(tmp_path):
    """audited(records, checks, planned keys): an audit of these runs, by a request of `hrx audit made-up`."""

    def make(records, checks=(), planned=(), **asked):
        path = constructed.write_ledger(tmp_path / "ledger.db", records, checks)
        frame = read(path)
        plans = [StoredPlan.of("made-up", "f" * 64, "", planned, "2026-01-01")] if planned else []
        with Ledger.open(path) as ledger:
            ledger.write_all(plans)
        models, backbones = summarise(frame, list(checks), plans), summarise_backbones(frame, list(checks), plans)
        request = AuditRequest(models=("made-up",), **asked)
        return AuditSummary(tuple(models), Path("l.db"), Exit.DONE, tuple(backbones), as_settings(request))

    return make


def said(audit):
    """Finding and trust of the screen, each line once."""
    shown = audit.screen
    return [*(f"{says} {decided}".strip() for says, decided in shown.finding), shown.trust]


def test_a_clear_gain(audited):
    assert said(audited(around(0.2, 0.3))) == [
        "Different steps read different inputs. decided: g_margin +0.30 [+0.28, +0.32], 8 sources",
        "Own row beats a shared vector. decided: g_own +0.20 [+0.18, +0.22], 8 sources",
        "high: nothing in the records weakens it",
    ]


def test_no_gain(audited):
    assert said(audited(around(0.0, 0.0)))[:2] == [
        "Every step reads the same inputs. decided: g_margin 0.00 [-0.02, +0.02], 8 sources, within ±0.05",
        "Own row and a shared vector are equal. decided: g_own 0.00 [-0.02, +0.02], 8 sources, within ±0.05",
    ]


def test_a_negative_gain(audited):
    assert said(audited(around(-0.2, -0.3)))[:2] == [
        "Another step's row explains a step better than its own. decided: g_margin -0.30 [-0.32, -0.28], 8 sources",
        "A shared vector beats the own row. decided: g_own -0.20 [-0.22, -0.18], 8 sources",
    ]


def test_a_mixture_is_not_decided(audited):
    mixed = [one.updated(g_margin=sign * 0.3) for one, sign in zip(around(0.2, 0.3), [1, -1] * 4, strict=True)]
    found = audited(mixed)
    assert said(found)[0] == (
        "Different steps read different inputs. not decided: g_margin 0.00 [-0.30, +0.30], 8 sources"
    )
    assert found.screen.following[1].line == "hrx audit made-up --data gift-eval"


def test_all_runs_lose_to_naive(audited):
    found = audited(around(0.2, 0.3, beats_naive=0))
    assert said(found) == [
        "No gain is meaningful.",
        "no run beats both naive forecasts (n<10: few runs).",
        "low: 8 of 8 runs lose to a naive forecast",
    ]
    assert {row[-1] for row in found.screen.rows} == {"loses to naive"}


def test_runs_that_lose_to_the_season_are_the_worst_weakness(audited):
    runs = [one.updated(mse=0.95 if i < 5 else 0.5) for i, one in enumerate(around(0.2, 0.3))]
    assert said(audited(runs))[2] == "low: 5 of 8 usable runs lose to seasonal naive"


def test_leaked_data(audited):
    runs = [one.updated(leakage="declared" if i < 3 else "possible") for i, one in enumerate(around(0.2, 0.3))]
    assert said(audited(runs))[2] == (
        "medium: 3 of 8 runs on data seen in training; 5 of 8 runs on data that training may have seen"
    )


def test_padded_runs_suggest_the_settings_without_them(audited):
    short = around(0.2, 0.3, padded=416)
    long = around(0.2, 0.3, lookback=512, horizon=96, padded=0)
    found = audited([*short, *long], settings="96x24,512x96")
    assert said(found)[2] == "medium: 8 of 16 runs padded with zeros that the model reads"
    assert found.screen.following[1].line == "hrx audit made-up --settings 512x96"
    assert found.screen.following[1].purpose == "without padded runs"


def test_one_dataset_speaks_for_itself_only(audited):
    runs = [one.updated(dataset="us_births/D", series=f"T{i}") for i, one in enumerate(around(0.2, 0.3))]
    found = audited(runs)
    assert found.screen.title == "made-up · 8 runs · 1 dataset · admitted"
    assert said(found) == [
        "Different steps read different inputs. decided: g_margin +0.30 [+0.28, +0.32], 8 series",
        "Own row beats a shared vector. decided: g_own +0.20 [+0.18, +0.22], 8 series",
        "medium: all from us_births, so nothing is said about other data",
    ]


def test_two_series_are_too_few(audited):
    runs = [one.updated(dataset="us_births/D", series=f"T{i}") for i, one in enumerate(around(0.2, 0.3)[:2])]
    found = audited(runs, data="sample:co2/W")
    assert said(found)[:2] == [
        "Different steps read different inputs. not decided: 2 series of 6 needed",
        "Own row beats a shared vector. not decided: 2 series of 6 needed",
    ]
    assert [one.line for one in found.screen.following] == [
        "hrx report l.db --out page", "hrx audit made-up",
    ]  # fmt: skip


def test_a_failed_admission(audited, check):
    failed = check("equivalence", False, 0.0123, 1e-5)
    runs = [one.updated(model="bolt-mini") for one in around(0.2, 0.3, status="excluded", check_failed="equivalence")]
    found = audited(runs, [failed])
    assert found.screen.title == "bolt-mini · 8 runs (8 excluded) · 8 datasets · NOT admitted"
    assert said(found) == [
        "Not audited.",
        "equivalence failed (0.0123, limit 1e-05) at 96x24.",
        "none: nothing was scored",
    ]
    assert found.screen.following[1].line == "hrx verify made-up"


def test_an_audit_that_was_stopped(audited):
    runs = around(0.2, 0.3)
    keys = [one.key for one in runs] + [f"{i:064x}" for i in range(24)]
    found = audited(runs, planned=keys)
    assert said(found)[2] == "low: 8 of 32 planned runs stored"
    assert (found.screen.following[1].line, found.screen.following[1].purpose) == (
        "hrx audit made-up", "the missing runs",
    )  # fmt: skip


def test_several_models_have_a_row_each(audited):
    other = around(-0.2, -0.3, model="worse", fingerprint="e" * 64)
    lost = around(0.2, 0.3, model="lost", fingerprint="d" * 64, beats_naive=0)
    found = audited([*around(0.2, 0.3), *other, *lost]).screen
    assert found.title == "3 models · 24 runs · 8 datasets"
    assert found.rows == (
        ("made-up", "8", "yes", "yes", "+0.300 [+0.279, +0.321]", "high"),
        ("worse", "8", "reverse", "reverse", "-0.300 [-0.321, -0.279]", "high"),
        ("lost", "8", "No gain is meaningful", "", "-", "low"),
    )


def test_text_page_notebook_and_markdown_say_the_same(audited, ledger):
    matrix = [[[1.0 if position == 89 + step else 0.01 for position in range(96)] for step in range(24)]]
    reading = Reading.of(np.array(matrix), range(1, 25), [1, 24], np.zeros((1, 24)))
    runs = around(0.2, 0.3, reading=reading.to_text(), leakage="declared")
    found = audited(runs)
    text = str(found)
    assert len(text.splitlines()) <= LINES
    page = render_report(ledger(runs), read(ledger(runs)), [])[0]
    sentences = [one for pair in found.screen.finding for one in pair] + [found.screen.trust]
    for shown in (" ".join(text.split()), found._repr_html_(), page):
        plain = shown.replace("&#39;", "'")
        assert all(" ".join(one.split()) in plain for one in sentences)
        assert all(name in plain for name in SOURCES)
    markdown = found.to_markdown().replace("\\", "")
    assert all(one in markdown for one in sentences)
    assert markdown.count("\n| ") == 2 + len(SOURCES)


@pytest.mark.parametrize("count", [1, 8, 40])
def test_the_text_has_at_most_24_lines_however_many_datasets_there_are(audited, count):
    runs = [
        constructed.record(dataset=f"a long name of a dataset {i}/15T", series_fingerprint=str(i), padded=1)
        for i in range(count)
    ]
    for width in (80, 120):
        lines = list(audited(runs).screen.lines(width))
        assert len(lines) <= LINES
        assert all(len(line) <= width for line in lines if not line.startswith((" " * 10 + "hrx", "NEXT")))
        break
    assert any("more datasets: see the page" in line for line in lines) == (count > 20)


def test_every_next_command_is_one_that_the_command_line_takes(audited, check):
    from hrx.cli.main import parse_request

    audits = [audited(around(0.2, 0.3, beats_naive=0), settings="96x24", effort="paper", seeds=1)]
    for audit in audits:
        for command in audit.screen.following:
            words = shlex.split(command.line)
            assert words[0] == "hrx"
            parse_request(words[1:])


def test_the_usual_settings_are_the_defaults_of_an_audit():
    defaults = as_settings(AuditRequest().completed())
    assert {name: defaults[name] for name in USUAL} == USUAL
    without = {name: value for name, value in defaults.items() if name not in USUAL}
    kept = ("models", "engine", "gpus", "gate", "verbose")
    assert not any(value for name, value in without.items() if name not in kept)
