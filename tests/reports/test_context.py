"""The needed context in reports: per model and dataset, in words, as JSON and on the page."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hrx.records.context import NeededContext
from hrx.records.record import Record
from hrx.reports.audit_summary import render
from hrx.reports.context import context_lines, context_section, context_sentence, dataset_contexts, padding_sentence
from hrx.reports.page.report import render_report
from hrx.reports.summary import summarise

KEPT = np.array([96, 72, 48, 36])


def found(change: list[float], cut: list[float], padded_to: int | None = None, refusal: str = "") -> NeededContext:
    """Curves over four contexts; the errors from a cut lookback grow by a tenth each."""
    mse = np.where(np.isnan([0, *cut]), math.nan, [0.5, 0.6, 0.7, 0.8])
    seconds = np.array([math.nan, 0.3, 0.2, 0.1])
    whole = np.array([math.nan, 0.4, 0.4, 0.4])
    return NeededContext(
        0.01,
        16,
        KEPT,
        np.array([0, *change]),
        KEPT,
        np.array([0, *cut]),
        mse,
        2 * mse,
        seconds,
        whole,
        padded_to,
        refusal,
    )


HOLDS = found([0.001, 0.004, 0.02], [0.002, 0.006, 0.009])
FAILS = found([0.001, 0.004, 0.02], [0.002, 0.3, 0.4], padded_to=512)
WHOLE = found([0.02, 0.03, 0.05], [0.02, 0.3, 0.4])
UNCUT = found([0.001, 0.004, 0.02], [math.nan] * 3, refusal="a lookback of 72: RuntimeError")


@pytest.mark.parametrize(
    ("context", "says", "never"),
    [
        (
            HOLDS,
            ["at most 48 of 96 (change with all older values replaced: 0.4 % with 48, 2 % with 36).",
             "Really cut to 48, the forecasts change by 0.6 %, mse 0.5 → 0.7, MASE 1 → 1.4, time 0.50×.",
             "The shortest lookback that can really be cut to is 36 (change 0.9 %"],
            "But",
        ),
        (
            FAILS,
            ["But really cut to 48, they change by 30 %", "hardly read, but the model needs them",
             "The shortest lookback that can really be cut to is 72 (change 0.2 %, mse 0.5 → 0.6"],
            "chance",
        ),
        (WHOLE, ["all 96 values (change with all older values replaced: 2 % with 72).", "No shorter lookback"], "mse"),
        (UNCUT, ["at most 48 of 96", "Not checked by cutting: a lookback of 72: RuntimeError."], "shortest"),
        (
            found([0.001, 0.004, 0.02], [0.02, 0.004, 0.4]),
            ["Really cut to 48, the forecasts change by 0.4 %", "But a longer lookback does not", "may be chance."],
            "shortest",
        ),
    ],
    ids=["holds", "fails", "whole", "not cut", "not monotone"],
)  # fmt: skip
def test_the_sentences_say_what_was_found(context: NeededContext, says: list[str], never: str) -> None:
    text = context_sentence(context)
    for sentence in says:
        assert sentence in text
    assert never not in text


@pytest.fixture
def runs(record: Callable[..., Record], frame: Callable[..., pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    """runs(context, …): a frame with two seeds of a series for each context."""

    def make(*contexts: NeededContext, **more: object) -> pd.DataFrame:
        return frame(
            record(
                seed=seed, series=f"T{place}", series_fingerprint=f"s{place}",
                context=1, context_bound=one.bound, context_windows=16, **one.columns(), **more,
            )
            for place, one in enumerate(contexts)
            for seed in (0, 1)
        )  # fmt: skip

    return make


def test_a_dataset_has_the_mean_of_its_series_and_the_range_over_them(runs: Callable[..., pd.DataFrame]) -> None:
    (one,) = dataset_contexts(runs(HOLDS, WHOLE))
    assert (one.dataset, one.setting, len(one.series), one.range) == ("us_births/D", "96x24", 2, (48, 96))
    np.testing.assert_allclose(one.mean.change, [0, 0.0105, 0.017, 0.035])
    assert (one.mean.needed, one.mean.windows) == (96, 32)
    text = "\n".join(context_lines([one], 80))
    assert "Single series: 48 to 96." in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_has_null_for_what_was_not_measured(runs: Callable[..., pd.DataFrame]) -> None:
    (summary,) = summarise(runs(UNCUT), [])
    (entry,) = json.loads(json.dumps(summary.as_json(), allow_nan=False))["context"]
    assert (entry["needed"], entry["next_shorter"], entry["outcome"]) == (48, 36, "impossible")
    assert entry["cut"] is entry["shortest_cut"] is None
    assert entry["whole"] == {"mse": 0.5, "mase": 1.0}
    assert entry["curves"]["cut_change"] == [0.0, None, None, None]
    (summary,) = summarise(runs(HOLDS), [])
    cut = summary.as_json()["context"][0]["cut"]  # type: ignore[index]
    assert cut == {"lookback": 48, "change": 0.006, "mse": 0.7, "mase": 1.4, "time_ratio": 0.5}


def test_runs_without_a_needed_context_show_nothing_of_it(
    record: Callable[..., Record], frame: Callable[..., pd.DataFrame]
) -> None:
    (summary,) = summarise(frame([record()]), [])
    assert summary.as_json()["context"] == []
    assert "context" not in render([summary])
    assert context_section([("m", summary.contexts)]) == ""


def test_bounds_are_not_averaged_with_one_another(runs: Callable[..., pd.DataFrame]) -> None:
    both = pd.concat([runs(HOLDS), runs(HOLDS).assign(context_bound=0.5)])
    assert [one.mean.needed for one in dataset_contexts(both)] == [48, 36]


def test_the_page_has_a_section_with_the_check_the_shortest_cut_and_what_limits_them(
    runs: Callable[..., pd.DataFrame], ledger: Callable[..., Path]
) -> None:
    page = render_report(ledger([]), runs(FAILS, dataset="<b>/H"), [])[0]
    section = page[page.index('<section id="context"') :].partition("</section>")[0]
    rows = section.partition("<tbody>")[2].split("<tr>")[1:]
    assert ["needed context: fails" in rows[0], "shortest cut" in rows[1], len(rows)] == [True, True, 2]
    assert "&lt;b&gt;/H" in rows[0]
    assert "0.4 % at 48, 2 % at 36" in rows[0]
    assert padding_sentence([FAILS]) in section
    assert '<a href="#context">' in page
    plain = render_report(ledger([]), runs(FAILS).assign(context_curves=None), [])[0]
    assert 'id="context"' not in plain
    assert "#context" not in plain
