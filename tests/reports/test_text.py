"""Terminal text: summaries, tables, names and numbers."""

import unicodedata

import numpy as np
import pytest
from rich.cells import cell_len

from hrx.reports import render, summarise
from hrx.reports.text import clean, listed, percent, render_table, shorten, signed, wrap

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "two\nlines\r\nand\ttabs",
    "right\u202eto left\u2066",
    "nul\x00bell\x07",
    "half \ud800 a pair",
    "Z\u0351\u0352\u0353\u0354\u0355algo",
    "数据集" * 200,
    "x" * 100_000,
    "a b " * 5_000,
    "",
]


def _is_harmless(text):
    return all(c == "\n" or unicodedata.category(c)[0] != "C" for c in text)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_neither_leaves_its_place_nor_is_obeyed(record, frame, name, width):
    stored = name.encode("utf-8", "replace").decode()  # SQLite takes no half of a pair
    runs = frame([record(model=stored, checkpoint=stored), record(model=stored, status="failed", reason=stored)])
    text = render(summarise(runs, []), width)
    assert _is_harmless(text)
    assert max(map(cell_len, text.splitlines())) <= width
    assert len(text.splitlines()) < 60
    text = render_table(("name", "runs"), [(name, 3), ("other", 12)], width)
    assert _is_harmless(text)
    assert max(map(cell_len, text.splitlines())) <= width
    text.encode()


def test_the_rendering_says_all_there_is_to_say(many, record, frame):
    around = np.linspace(-0.01, 0.01, 12)
    runs = many(0.1 + around, 0.3 + around) + many(0.1 + around[:4], 0.3 + around[:4], beats_naive=0, dataset="d2")
    runs += [record(status="excluded", reason="the series is too short", seed=seed) for seed in range(3)]
    runs += [record(status="failed", reason="RuntimeError: boom")]
    text = render(summarise(frame(runs), []), 80)
    for expected in (
        "bolt-mini (amazon/bolt-mini, weights ffffffffffff)",
        "yes, worst parity 2.0e-07",
        "20: 16 scored, 3 excluded, 1 failed",
        "12 of 16 scored runs beat both naive forecasts (75 %)",
        "3.00 (median)",
        "all scored runs (n=16, 2 sources)",
        "runs that beat naive (n=12, 12 series)",
        "Verdict: Reads different inputs for different steps",
        "Excluded (3 runs)\n       3  the series is too short\n",
        "Failed (1 run)\n       1  RuntimeError: boom\n",
    ):
        assert expected in text
    for gain in ("g_own", "g_shuffled", "g_margin"):
        assert sum(line.split()[:1] == [gain] for line in text.splitlines()) == 2
    row = next(line for line in text.splitlines() if line.strip().startswith("g_own"))
    by_source = [np.median(0.1 + around), np.median(0.1 + around[:4])]
    assert row.split() == ["g_own", f"{np.median(by_source):+.3f}", "-", "2", "of", "2", "-"]


def test_few_runs_are_marked(record, frame):
    text = render(summarise(frame([record(), record(seed=1)]), []))
    assert "all scored runs (n<10: few runs, n=1, seeds of 2 runs folded, 1 series)" in text


def test_a_group_without_runs_shows_no_numbers(record, frame):
    text = render(summarise(frame([record(beats_naive=0)]), []))
    assert "runs that beat naive (none)" in text
    assert "nan" not in text


def test_an_infinite_parity_is_shown(record, frame):
    text = render(summarise(frame([record(), record(seed=1, parity=np.inf)]), []))
    assert "admitted  yes, worst parity inf\n" in text
    assert "parity" not in render(summarise(frame([record(parity=None)]), []))


def test_impossible_numbers_are_reported_below_the_gains(many, frame):
    text = render(summarise(frame(many([0.1] * 13, [*[0.3] * 12, np.inf])), []), 200)
    assert "all scored runs (n=12, 12 series)\n" in text
    assert "1 of 13 scored runs holds impossible numbers" in " ".join(text.split())
    assert "inf" not in text.replace("infinite", "")


def test_a_model_that_was_not_audited_has_no_table_of_gains(record, frame):
    text = render(summarise(frame([record(status="excluded", reason="the forecast is constant")]), []))
    assert "admitted  unknown" in text
    assert "Verdict: Not audited: no run could be scored" in text
    assert "g_own" not in text


def test_an_empty_ledger_is_said_to_be_empty():
    assert render([], 80) == "The ledger holds no runs.\n"


def test_only_the_most_frequent_reasons_are_listed_and_the_rest_counted(record, frame):
    runs = [record(status="failed", reason=f"reason {i}", seed=s) for i in range(11) for s in range(12 - i)]
    text = render(summarise(frame(runs), []))
    assert "      12  reason 0\n" in text
    assert "       9  for 3 other reasons\n" in text
    assert "reason 8" not in text


def test_reasons_of_one_kind_are_counted_together_with_an_example(record, frame):
    reasons = ["too short: 84 values", "too short: 84 values", "too short: 212 values", "constant forecast"]
    text = render(summarise(frame([record(status="excluded", reason=r, seed=i) for i, r in enumerate(reasons)]), []))
    assert "       3  too short: 84 values (and 1 more like it)\n" in text
    assert "       1  constant forecast\n" in text


def test_a_table_aligns_numbers_to_the_right_and_text_to_the_left():
    text = render_table(
        ("name", "runs", "share", "figure", "ok"), [("a", 7, "5 %", 0.25, True), ("bcd", 1234, "100 %", None, False)]
    )
    assert text.splitlines() == [
        "name  runs  share  figure  ok",
        "----  ----  -----  ------  ---",
        "a        7    5 %    0.25  yes",
        "bcd   1234  100 %       -  no",
    ]


def test_a_table_without_rows_is_its_head():
    assert render_table(("a", "bc"), []) == "a  bc\n-  --\n"


def test_text_columns_share_what_room_there_is_and_numbers_stay_whole():
    text = render_table(("first", "n", "second"), [("word " * 12, 123456, "text " * 12)], 50)
    assert max(map(len, text.splitlines())) <= 50
    assert "123456" in text
    assert text.count("word") == text.count("text") == 12
    first, number, second = (len(rule) for rule in text.splitlines()[1].split())
    assert number == 6
    assert abs(first - second) <= 2


def test_wide_letters_count_twice():
    text = render_table(("name", "n"), [("数据", 1), ("abcd", 2)])
    assert text.splitlines()[2:] == ["数据  1", "abcd  2"]


def test_a_shortened_name_keeps_both_ends():
    assert shorten("organisation/model-large-v2", 11) == "organ…ge-v2"
    assert shorten("short", 5) == "short"
    for width in range(1, 12):
        assert cell_len(shorten("数据abc数据", width)) <= width


def test_wrapping_loses_no_word_and_keeps_the_width():
    text = "one two three " + "x" * 25 + " four"
    lines = wrap(text, 10)
    assert max(map(len, lines)) <= 10
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap("", 10) == [""]


def test_accents_and_scripts_with_marks_stay_as_they_are():
    for name in ("électricité", "ไทยที่", "हिन्दी"):
        assert clean(name) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.12, "+0.120"), (-0.0312, "-0.031"), (0.0, "0.000"), (2e-5, "+2.0e-05"), (12345.0, "+1.2e+04"), (None, "-")],
)
def test_gains_carry_their_sign_and_never_round_to_nothing(value, shown):
    assert signed(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.856, "86 %"), (0.999, ">99 %"), (0.001, "<1 %"), (0.0, "0 %"), (1.0, "100 %"), (np.nan, "-")],
)
def test_only_all_is_a_hundred_percent_and_only_none_is_zero(share, shown):
    assert percent(share) == shown


def test_a_list_reads_as_a_sentence_has_it():
    assert [listed("abc"[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
