"""The page of a ledger, read as a file: what it holds, and what it never does."""

import base64
import json
import math
import re
import struct
import warnings
import zlib

import numpy as np
import pytest
from helpers import crowd

from hrx.audit.ledger.store import StoredAudit
from hrx.errors import HrxError
from hrx.reports import read
from hrx.reports.page import embed
from hrx.reports.page.data import BUDGET, arrange, choose_examples, matrix_json, model_labels, pack
from hrx.reports.page.report import write_report
from hrx.reports.runs import fold_seeds, median_interval
from hrx.reports.text import escape_html

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202ertl\x00" + "x" * 300


def data(page, name):
    """The embedded JSON of that name."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    return json.loads(found.group(1))


@pytest.fixture(autouse=True)
def without_figures(monkeypatch):
    """Figures for print have tests of their own, and take longer than everything else."""
    monkeypatch.setattr("hrx.reports.page.report.figures", lambda *_: [])


@pytest.fixture
def page(ledger, tmp_path):
    """page(records, …): the text of the page of a ledger with these runs."""

    def make(*arguments, **named):
        return write_report(ledger(*arguments, **named), tmp_path / "out").page.read_text(encoding="utf-8")

    return make


def test_every_number_of_the_runs_is_the_ledgers_own_digit_for_digit(page, ledger):
    many = crowd.records(200, models=2, datasets=5)
    runs = data(page(many), "runs")
    frame = read(ledger(many))
    assert runs["count"] == len(frame) == 200
    for name, values in runs["numbers"].items():
        np.testing.assert_array_equal(np.array(values, dtype=float), frame[name].to_numpy(dtype=float))
    for name in ("model", "dataset", "domain", "status", "leakage"):
        coded = runs["texts"][name]
        assert [coded["values"][code] for code in coded["codes"]] == frame[name].tolist()


@pytest.mark.slow
def test_a_page_of_16729_runs_stays_below_30_megabytes_with_every_example_that_its_budget_holds(tmp_path):
    runs = arrange(read(crowd.write(tmp_path / "ledger.db", crowd.records(), 0)))
    size = len(embed("runs", runs.as_json()))
    assert runs.as_json()["count"] == crowd.RUNS
    assert size + BUDGET < 25_000_000


SCOPES = ("yes", "all", "no")


def groups_of(text_of_page, scope):
    """{(grouping, value), …: (statistics)} of a page, with texts for codes."""
    texts = data(text_of_page, "runs")["texts"]
    for names, groups in data(text_of_page, "statistics").items():
        for codes, (_, *scopes) in groups.items():
            pairs = zip(names.split(), map(int, codes.split()), strict=True)
            group = {name: texts[name]["values"][code] for name, code in pairs}
            yield group, scopes[SCOPES.index(scope)]


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
def test_the_statistics_of_every_group_and_pair_of_groups_are_those_of_folded_seeds(page, ledger, scope):
    many = crowd.records(600, models=2, datasets=5)
    frame = read(ledger(many))
    frame["setting"] = frame["lookback"].astype(str) + "x" + frame["horizon"].astype(str)
    done, beats = frame["status"] == "done", (frame["beats_naive"] == 1).fillna(False)
    chosen = frame[done & {"yes": beats, "all": True, "no": ~beats}[scope]]
    found = list(groups_of(page(many), scope))
    assert {tuple(group) for group, _ in found} >= {(), ("model",), ("model", "setting")}
    for group, statistics in found:
        runs = chosen
        for name, value in group.items():
            runs = runs[runs[name] == value]
        if runs.empty:
            assert statistics is None
            continue
        folded = fold_seeds(runs, ["g_own", "g_shuffled", "g_margin", "rank"])
        margins = folded["g_margin"].to_numpy()
        n, own, shuffled, margin, low, high, positive, rank = statistics
        assert n == len(margins)
        assert (own, shuffled) == pytest.approx((folded["g_own"].median(), folded["g_shuffled"].median()), rel=1e-12)
        found = [math.nan if end is None else end for end in (margin, low, high)]
        assert found == pytest.approx(list(median_interval(margins)), rel=1e-12, nan_ok=True)
        assert positive == pytest.approx((margins > 0).mean(), rel=1e-12)
        assert rank == pytest.approx(folded["rank"].median(), rel=1e-12)


def test_the_share_that_beats_naive_is_that_of_a_groups_scored_runs(page, ledger):
    many = crowd.records(300, models=2, datasets=3)
    text_of_page, frame = page(many), read(ledger(many))
    values = data(text_of_page, "runs")["texts"]["model"]["values"]
    for code, (share, *_) in data(text_of_page, "statistics")["model"].items():
        mine = frame[(frame["model"] == values[int(code)]) & (frame["status"] == "done")]
        assert share == pytest.approx(mine["beats_naive"].mean(), rel=1e-12)


def test_rank_points_are_the_folded_configurations_of_the_scope_with_medians_of_equal_bins(page, ledger):
    many = crowd.records(600, models=2, datasets=5)
    text_of_page, frame = page(many), read(ledger(many))
    points = data(text_of_page, "rank-points")["yes"]
    chosen = frame[(frame["status"] == "done") & (frame["beats_naive"] == 1).fillna(False)]
    folded = fold_seeds(chosen, ["rank", "g_margin"])
    assert sorted(points["rank"]) == pytest.approx(sorted(folded["rank"]), rel=1e-4)
    assert sorted(points["gain"]) == pytest.approx(sorted(folded["g_margin"]), rel=1e-4, abs=1e-9)
    assert all(chosen.index.isin([run]).any() for run in points["run"])
    ordered = folded.sort_values("rank", kind="stable")[["rank", "g_margin"]].to_numpy()
    expected = [np.median(part, axis=0) for part in np.array_split(ordered, 8)]
    np.testing.assert_allclose(points["bins"][""][""], expected, rtol=1e-12)


def test_the_shared_vector_is_the_mean_row_and_bright_colours_end_at_the_99th_percentile():
    matrix = np.random.default_rng(0).random((5, 40)) ** 3
    shown = matrix_json(matrix)
    assert shown["largest"] == matrix.max()
    planes = zlib.decompress(base64.b64decode(shown["shared"]))
    back = [struct.unpack("<e", bytes([planes[40 + k], planes[k]]))[0] for k in range(40)]
    np.testing.assert_allclose(back, matrix.mean(axis=0) / matrix.max(), rtol=1e-3)
    (largest, bright), (largest_shared, _) = shown["tops"]
    assert largest == 1
    assert bright == pytest.approx(sorted(matrix.ravel() / matrix.max())[int(0.99 * 199)], rel=1e-3)
    assert largest_shared == pytest.approx(matrix.mean(axis=0).max() / matrix.max(), rel=1e-3)


def test_a_hostile_name_ends_no_element_and_starts_none(page, record, example):
    one = record(model=HOSTILE, dataset=HOSTILE, series=HOSTILE, domain=HOSTILE, checkpoint=HOSTILE)
    other = record(model=HOSTILE, status="excluded", reason=HOSTILE, seed=1)
    shown = page([one, other], examples=[example(one)])
    assert "<img src=x" not in shown
    assert shown.count("<script") == 5  # four blocks of data, and the page's own
    assert shown.count("</script>") == 5
    assert "\u202e" not in shown
    assert "\x00" not in shown
    assert data(shown, "runs")["texts"]["dataset"]["values"][0].startswith("</script><script>alert(1)")


def test_only_scripts_and_styles_with_a_listed_hash_may_run(page, record):
    shown = page([record()])
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', shown).group(1)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r'(?:src|href)="(?!#|data:|figures/)', shown)


def test_cleaned_names_that_look_alike_stay_apart(page, record):
    runs = data(page([record(dataset="a\x01"), record(dataset="a\x02")]), "runs")
    first, second = runs["texts"]["dataset"]["values"]
    assert first != second


def test_a_matrix_comes_back_to_three_digits():
    rng = np.random.default_rng(0)
    values = rng.random((7, 33)) ** 4
    planes = zlib.decompress(base64.b64decode(pack(values)))
    half = len(planes) // 2
    back = [struct.unpack("<e", bytes([planes[half + k], planes[k]]))[0] for k in range(half)]
    np.testing.assert_allclose(np.reshape(back, values.shape), values, rtol=5e-4, atol=6e-8)


def test_examples_are_chosen_in_turns_until_the_budget_is_spent(ledger, record, example):
    from hrx.audit.ledger.store import Ledger

    many = [record(model=model, dataset=f"d{k}") for model in ("a", "b") for k in range(4)]
    path = ledger(many, examples=map(example, many))
    frame = read(path)
    each = len(pack(np.asarray(example(many[0]).matrix) / example(many[0]).matrix.max()))
    with Ledger.open(path, create=False) as opened:
        shown, stored = choose_examples(opened, frame, frame["model"].tolist(), budget=5 * each)
    assert stored == 8
    assert len(shown) == 5
    models = [frame["model"].iloc[item["run"]] for item in shown]
    assert sorted(models) == ["a", "a", "a", "b", "b"]


def test_other_files_of_the_directory_stay_and_the_page_is_replaced_whole(ledger, record, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "index.html").write_text("old")
    path = ledger([record()])

    def fail(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        with pytest.raises(HrxError, match="cannot be written"):
            write_report(path, out)
    assert (out / "index.html").read_text() == "old"
    write_report(path, out)
    assert (out / "notes.txt").read_text() == "mine"
    assert "bolt-mini" in (out / "index.html").read_text()
    assert not list(out.rglob("*.tmp"))


def test_an_empty_ledger_has_a_page_that_says_so(page):
    assert "The ledger holds no runs." in page([])


def test_a_run_without_numbers_is_shown_with_its_reason(page, record):
    shown = page(
        [record(), record(status="excluded", reason="too short: 9 values", seed=1), record(status="failed", seed=2)]
    )
    assert "too short: 9 values" in shown
    assert "no reason was recorded" in shown


def test_the_command_to_reproduce_is_the_one_that_the_ledger_keeps(ledger, record, tmp_path):
    from hrx.audit.ledger.store import Ledger

    path = ledger([record()])
    assert "hrx audit bolt-mini --data SOURCE --settings 96x24" in write_report(path, tmp_path / "a").page.read_text()
    settings = {"models": ["m"], "data": "sample", "seeds": 2, "precision": None, "rank-only": False, "python": ["x"]}
    with Ledger.open(path) as opened:
        opened.write_audit(StoredAudit("2026-01-01T00:00:00+00:00", "0.1.0", json.dumps(settings)))
    shown = write_report(path, tmp_path / "b").page.read_text()
    assert "<pre>hrx audit m --data sample --seeds 2 --python x\n" in shown


def test_text_and_data_are_safe_wherever_they_stand():
    assert escape_html('<a href="x">\n\x1b') == "&lt;a href=&quot;x&quot;&gt; \N{REPLACEMENT CHARACTER}"
    assert "<" not in embed("n", "</script>&")[len('<script type="application/json" id="n">') : -len("</script>")]


def test_a_path_that_cannot_be_a_directory_is_refused(ledger, record, tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(HrxError, match="cannot create"):
        write_report(ledger([record()]), tmp_path / "out")


def test_models_of_one_name_are_reported_apart_by_as_much_of_their_weights_as_it_takes(record, frame):
    marks = ["0" * 12 + "a" * 52, "0" * 12 + "b" * 52]
    labels = model_labels(frame([record(fingerprint=mark) for mark in marks]))
    assert labels == [f"bolt-mini ({mark[:16]})" for mark in marks]
    assert model_labels(frame([record(), record(seed=1)])) == ["bolt-mini", "bolt-mini"]


def test_impossible_numbers_count_like_missing_ones_and_are_reported(page, record):
    def stored(gain, error):
        good = [record(series=f"T{i}", g_own=0.01 * i) for i in range(11)]
        seeds = [record(series="T90", seed=0, g_own=gain), record(series="T90", seed=1, g_own=0.7)]
        return [*good, *seeds, record(series="T91", g_own=gain), record(series="T92", mse=error)]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = page(stored(1.7e308, np.inf))
    missing = page(stored(None, None))
    assert data(found, "statistics") == data(missing, "statistics")
    runs, expected = data(found, "runs"), data(missing, "runs")
    assert runs["numbers"] == expected["numbers"]
    assert runs["numbers"]["g_own"][11:14] == [None, 0.7, None]
    n, own, *_ = data(found, "statistics")[""][""][2]
    assert (own, n) == (pytest.approx(np.median([*(0.01 * np.arange(11)), 0.7, 0.12])), 14)
    assert "3 of 15 scored runs hold impossible numbers (infinite, or beyond 1e+100), in g_own" in found
    assert "impossible numbers" not in missing


def test_an_infinite_parity_is_shown_of_its_run_its_model_and_its_check(page, record, check):
    checks = [check("equivalence", False, math.inf, 1e-5), check("determinism", True, math.nan, 0.0)]
    shown = page([record(), record(seed=1, parity=np.inf), record(seed=2, parity=None)], checks)
    assert data(shown, "runs")["numbers"]["parity"] == [2e-7, "inf", None]
    assert '<dt>worst parity</dt><dd><span class="big">inf</span>' in shown
    assert '<td class="number">inf</td><td class="number">1e-05</td>' in shown
    assert '<td class="number">–</td><td class="number">0</td>' in shown
