"""What reports say of covariates, on ledgers whose shares, changes and verdicts are computed by hand."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.constructed import runs, store
from helpers.linear import LinearChannels

from hrx.audit import Protocol
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import measure_run
from hrx.gift_eval import Dataset, Series
from hrx.gift_eval.series import Covariate
from hrx.records.channels import ChannelEffect, Treatment, to_json
from hrx.records.record import DONE
from hrx.reports import read, tables
from hrx.reports.cells import Span, Value
from hrx.reports.page.report import write_report
from hrx.reports.screen import LINES, model_screen
from hrx.reports.summary import ModelSummary, summarise

Errors = Mapping[Treatment, float]
SIX = tuple(f"T{n}" for n in range(6))
GAINS = {"g_own": 0.1, "g_shuffled": -0.1, "g_margin": 0.2, "mse": 0.5, "mse_zero": 1.0, "mse_last": 0.9}


def effect(
    name: str, share: Sequence[float], errors: Errors | None = None, *, role: str = "future", kind: str = "number",
    read_from: int | None = 1, sensitivity: Sequence[float] | None = (2.0, 4.0),
) -> ChannelEffect:  # fmt: skip
    """A channel with these shares at two scored steps, and effects like them; not read without `read_from`."""
    total = 0.0 if read_from is None else 0.3
    steps = np.array(share, dtype=np.float64)
    slope = None if sensitivity is None else np.array(sensitivity)
    return ChannelEffect(
        name, role, kind, steps, steps, total, 0.0, steps, steps, 8, read_from, sensitivity=slope, errors=errors
    )


def frame(series: Mapping[str, Sequence[ChannelEffect]], **columns: object) -> pd.DataFrame:
    """A run for each series with the effects of its channels."""
    marks = list(series)
    effects = [to_json(one) for one in series.values()]
    about = {"series": marks, "series_fingerprint": marks, "channel_effects": effects, "dataset": "town/H"}
    return runs(len(marks), **{**GAINS, **about, **columns})


def rows(given: pd.DataFrame) -> list[dict[str, Value]]:
    (table,) = tables(given, ["covariates"])
    names = [column.name for column in table.columns]
    return [
        {"section": row.section} | dict(zip(names, (cell.value for cell in row.cells), strict=True))
        for row in table.rows
    ]


def helped(changes: Sequence[float], how: Treatment = "withheld") -> list[Errors]:
    """Errors of 0.5 as it is, and `1 + change` times that under a treatment."""
    return [{"as_is": 0.5, how: 0.5 * (1 + change)} for change in changes]


def one_each(name: str, errors: Sequence[Errors], **about: object) -> dict[str, list[ChannelEffect]]:
    return {f"T{n}": [effect(name, (0.2, 0.4), own, **about)] for n, own in enumerate(errors)}  # type: ignore[arg-type]


def summary(given: pd.DataFrame) -> ModelSummary:
    (found,) = summarise(given, [])
    return found


def test_share_and_change_are_medians_of_series_over_the_mean_of_seeds() -> None:
    # Seeds of T0: errors 0.4 and 0.6 as it is, 0.8 and 0.6 without it: 0.7 / 0.5 - 1 = 0.4, not the mean of 1 and 0.
    first = {"T0": [effect("temp", (0.1, 0.3), {"as_is": 0.4, "withheld": 0.8})]}
    second = {"T0": [effect("temp", (0.3, 0.5), {"as_is": 0.6, "withheld": 0.6})]}
    others = {
        f"T{n}": [effect("temp", (share, share), {"as_is": 0.5, "withheld": 0.5 * (1 + change)})]
        for n, share, change in ((1, 0.1, -0.2), (2, 0.5, 0.1), (3, 0.2, 0.3), (4, 0.7, 0.05))
    }
    found = rows(pd.concat([frame(first), frame(second, seed=1), frame(others)], ignore_index=True))
    (temp,) = found
    assert (temp["channel"], temp["n"]) == ("temp", 5)
    assert (temp["role"], temp["kind"], temp["read"], temp["treatment"]) == ("future", "number", "read", "withheld")
    # Shares 0.3 (the mean of 0.2 and 0.4), 0.1, 0.5, 0.2 and 0.7; five series have their range.
    assert temp["share"] == pytest.approx(0.3)
    assert temp["share_interval"] == pytest.approx(Span(0.1, 0.7))
    assert temp["change"] == pytest.approx(0.1)
    assert temp["change_interval"] == pytest.approx(Span(-0.2, 0.4))
    assert (temp["helps"], temp["p"]) == ("too few to tell", None)


@pytest.mark.parametrize(
    ("changes", "verdict", "p"),
    [
        ([0.1, 0.2, 0.1, 0.3, 0.1, 0.2], "helps", 2 / 64),
        ([-0.1, -0.2, -0.1, -0.3, -0.1, -0.2], "hurts", 2 / 64),
        ([0.1, 0.2, 0.1, 0.3, 0.1, -0.2], "no evidence", 14 / 64),
        ([0.0] * 6, "no evidence", 1.0),
        ([0.1] * 5, "too few to tell", None),
    ],
)
def test_six_series_decide_whether_a_channel_helps(changes: list[float], verdict: str, p: float | None) -> None:
    (found,) = rows(frame(one_each("temp", helped(changes))))
    assert (found["helps"], found["p"]) == (verdict, p if p is None else pytest.approx(p))


@pytest.mark.parametrize(
    ("series", "verdicts", "p"), [(6, ["no evidence"] * 2, 4 / 64), (7, ["helps", "hurts"], 4 / 128)]
)
def test_the_tests_of_a_models_channels_are_corrected_for_their_number(
    series: int, verdicts: list[str], p: float
) -> None:
    without: dict[str, list[ChannelEffect]] = {}
    for n in range(series):
        better, worse = helped([0.1, -0.1])
        idle = effect("idle", (0.0, 0.0), {"as_is": 0.5, "withheld": 0.5}, read_from=None)  # decides nothing
        without[f"T{n}"] = [effect("temp", (0.5, 0.5), better), effect("wind", (0.5, 0.5), worse), idle]
    found = {row["channel"]: row for row in rows(frame(without))}
    assert [found[name]["helps"] for name in ("temp", "wind", "idle")] == [*verdicts, "no evidence"]
    assert [found[name]["p"] for name in ("temp", "wind", "idle")] == pytest.approx([p, p, 1.0])


def test_treatments_are_never_pooled_and_are_named() -> None:
    # Withheld in two series, where it hurts; erased in four more, where it helps.
    errors = [*helped([-0.1, -0.3]), *helped([0.5] * 4, "erased")]
    (found,) = rows(frame(one_each("temp", errors)))
    assert (found["treatment"], found["helps"], found["n"]) == ("withheld", "too few to tell", 6)
    assert found["change"] == pytest.approx(-0.2)
    given = frame(one_each("temp", helped([0.1] * 6, "rearranged")))
    assert (rows(given)[0]["treatment"], rows(given)[0]["helps"]) == ("rearranged", "helps")
    assert summary(given).channels == "temp: read, 30 % of the effect, helps (rearranged)"


def test_outputs_are_never_pooled_and_stand_in_the_headline() -> None:
    median, upper = (frame(one_each("temp", helped([change] * 6)), output=output)
                     for change, output in ((0.1, "point"), (-0.1, "0.9")))  # fmt: skip
    both = pd.concat([median, upper], ignore_index=True)
    found = {str(row["section"]).partition(", output ")[2]: row["helps"] for row in rows(both)}
    assert found == {"": "helps", "0.9": "hurts"}
    assert summary(upper).headline.endswith(" (output 0.9)")
    assert " · output 0.9 · " in model_screen(summary(upper)).title
    assert "output" not in summary(median).headline
    pooled = summary(both)
    assert pooled.headline.endswith(" (output 0.9 and point)")
    assert any("output" in one for one in pooled.trust.weaknesses)


def test_read_is_counted_over_runs_with_the_first_step_that_moves() -> None:
    late = {
        "T0": [effect("a", (0.1, 0.1), read_from=65), effect("b", (0.1, 0.1))],
        "T1": [effect("a", (0.1, 0.1), read_from=70), effect("b", (math.nan, math.nan), read_from=None)],
    }
    found = {row["channel"]: (row["read"], row["helps"], row["change"]) for row in rows(frame(late))}
    assert found["a"][:2] == ("read from step 65", None)
    assert found["b"][0] == "read in 1 of 2 runs"
    assert math.isnan(float(str(found["a"][2])))  # no error was measured


def test_the_first_screen_has_one_short_line_of_covariates() -> None:
    target = effect("load", (0.6, 0.6), role="target")
    given = {
        name: [target, effect("temp", (0.3, 0.32), {"as_is": 0.5, "withheld": 0.6}),
               effect("holiday", (0.0, 0.0), {"as_is": 0.5, "withheld": 0.5}, kind="two-valued", read_from=None,
                      sensitivity=None)]
        for name in SIX
    }  # fmt: skip
    left_out = json.dumps({"price": "takes no past covariates: drop price"})
    made = frame(given, channels_left_out=left_out)
    line = (
        "temp: read, 31 % of the effect, helps; holiday: not read; left out: price (the model takes no past covariates)"
    )
    assert summary(made).channels == line
    screen = model_screen(summary(made), (), 3)
    shown = list(screen.lines(160))
    assert f"CHANNELS  {line}" in shown
    assert f"- Channels: {line}" in screen.to_markdown().replace("\\", "")
    crowded = {name: [*own, *(effect(f"c{n:02}" * 9, (0.1, 0.1)) for n in range(20))] for name, own in given.items()}
    several = pd.concat([frame(crowded, dataset=f"d{n}/H") for n in range(20)], ignore_index=True)
    assert "19 more on the page" in summary(several).channels
    assert len(list(model_screen(summary(several), (), 3).lines(80))) <= LINES
    by_channel = {row["channel"]: row for row in rows(made)}
    assert by_channel["price"]["read"] == "left out: the model takes no past covariates"
    assert by_channel["price"]["helps"] is by_channel["price"]["role"] is None
    assert by_channel["load"]["helps"] is None


def test_without_covariates_nothing_is_shown(tmp_path: Path) -> None:
    plain = runs(6, **GAINS)
    assert summary(plain).channels == summary(plain).output == ""
    assert not any(line.startswith("CHANNELS") for line in model_screen(summary(plain)).lines())
    page = write_report(store(plain, tmp_path / "plain.db"), tmp_path / "plain").page.read_text()
    assert 'id="channels"' not in page


def test_the_page_has_the_table_where_there_are_covariates(tmp_path: Path) -> None:
    made = frame(one_each("<b>temp", helped([0.1] * 6)), estimator="occlusion")
    page = write_report(store(made, tmp_path / "made.db"), tmp_path / "made").page.read_text()
    section = page.partition('<section id="channels"')[2].partition("</section>")[0]
    assert "&lt;b&gt;temp" in section
    assert "<b>temp" not in page
    assert "helps" in section
    assert '<a href="#channels">' in page


def test_an_audited_run_fills_the_table(tmp_path: Path) -> None:
    lookback, horizon, length = 16, 9, 300
    draw = np.random.default_rng(0)
    beside = (Covariate("temp", "future", draw.standard_normal(length + 12)),
              Covariate("price", "past", draw.standard_normal(length)))  # fmt: skip
    values = 3 + 2 * draw.standard_normal(length)
    series = Series("made", "one", "H", 24, "", values, 0, names=("load",), covariates=beside)
    model = LinearChannels(lookback, horizon, past=1, future=1)
    model.weights["past"][:] = 0
    data = Dataset("made", "H", 24, "", 1, row=lambda index: None)
    run = Run(model.identity, data, series, 0, Setting(lookback, horizon), 0, 2, Protocol(draws=2, scored=4))
    record = measure_run(model, run, MemoryBudget()).record
    assert record.status == DONE, record.reason
    stored = pd.DataFrame([{name: getattr(record, name) for name in runs(1).columns}])
    found = {row["channel"]: row for row in rows(read(store(stored, tmp_path / "run.db")))}
    effects = {one["name"]: one for one in json.loads(str(record.channel_effects))}
    assert {name: row["read"] for name, row in found.items()} == {"load": "read", "temp": "read", "price": "not read"}
    assert found["temp"]["share"] == pytest.approx(np.mean(effects["temp"]["share"]))
    errors = effects["temp"]["errors"]
    assert found["temp"]["change"] == pytest.approx(errors["withheld"] / errors["as_is"] - 1)
    assert (found["price"]["change"], found["price"]["helps"]) == (0.0, "too few to tell")
