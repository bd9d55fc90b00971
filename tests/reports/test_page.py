"""The page of a ledger, read as a file: what it holds, and what it never does."""

import base64
import json
import math
import re
import sqlite3
import struct
import warnings
import zlib
from contextlib import closing
from itertools import combinations

import numpy as np
import pytest
from helpers import bootstrap, crowd

from hrx.errors import HrxError
from hrx.records.ledger import LedgerWarning, StoredAudit
from hrx.reports import read, summarise
from hrx.reports.page import embed, render
from hrx.reports.page.data import PageStatistics, arrange, choose_examples, matrix_json, model_labels, pack
from hrx.reports.page.report import write_report
from hrx.reports.runs import fold_seeds

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
    for name, values in data(page(many), "records-0")["numbers"].items():
        np.testing.assert_array_equal(np.array(values, dtype=float), frame[name].to_numpy(dtype=float))
    for name in ("model", "dataset", "domain", "status", "leakage"):
        coded = runs["texts"][name]
        assert [coded["values"][code] for code in coded["codes"]] == frame[name].tolist()


@pytest.mark.slow
def test_a_page_of_16729_runs_opens_with_less_than_4_megabytes_and_loads_every_other_byte_later(tmp_path):
    frame = read(path := crowd.write(tmp_path / "ledger.db", crowd.records(), 40))
    page = write_report(path, tmp_path / "out").page
    beside = {one.stem: one.read_text() for one in (tmp_path / "out" / "index-data").iterdir()}
    first = ("records-0", "rank-yes", "example-0")
    assert page.stat().st_size + sum(len(beside[name]) for name in first) < 4_000_000
    parts = {
        name: json.loads(re.fullmatch(r'hrx\.receive\("[\w-]+", (.*)\);\n', text)[1]) for name, text in beside.items()
    }
    records = [parts[f"records-{number}"] for number in range(4)]
    gains = [gain for part in records for gain in part["numbers"]["g_own"]]
    np.testing.assert_array_equal(np.array(gains, dtype=float), frame["g_own"].to_numpy(dtype=float))
    text = page.read_text()
    assert re.findall(r"'nonce-([0-9a-f]{64})'", text) == re.findall(r'<script nonce="(\w+)"', text)
    here, later = data(text, "statistics")["groups"], parts["further-groups"]["groups"]
    assert not set(here) & set(later)
    assert sum(map(len, here.values())) <= 2_000 < sum(map(len, later.values()))


SCOPES = ("yes", "all", "no")


FIELDS = (
    "n", "own", "own_low", "own_high", "shuffled", "margin", "low", "high", "positive", "rank",
    "bins", "clusters", "judged",
)  # fmt: skip


def groups_of(text_of_page, scope):
    """{(grouping, value), …: {statistic: value}} of a page, with texts for codes."""
    texts = data(text_of_page, "runs")["texts"]
    for names, groups in data(text_of_page, "statistics")["groups"].items():
        for codes, (_, _, *scopes) in groups.items():
            pairs = zip(names.split(), map(int, codes.split()), strict=True)
            group = {name: texts[name]["values"][code] for name, code in pairs}
            statistics = scopes[SCOPES.index(scope)]
            yield group, statistics and dict(zip(FIELDS, statistics, strict=True))


def test_the_page_says_how_many_damaged_records_it_leaves_out(ledger, tmp_path):
    path = ledger(crowd.records(20, models=1, datasets=2))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE runs SET g_own = g_own + 0.25 WHERE rowid IN (SELECT rowid FROM runs LIMIT 2)")
    with pytest.warns(LedgerWarning, match="2 in all"):
        text = write_report(path, tmp_path / "out").page.read_text(encoding="utf-8")
    assert f"{path.name}: 18 runs," in text
    assert "Left out: 2 damaged records; hrx check names all" in text


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """The runs of a ledger with three combinations of series and seed per cell, and the text of its page."""
    folder = tmp_path_factory.mktemp("crowded")
    path = crowd.write(folder / "ledger.db", crowd.records(200, models=2, datasets=3), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hrx.reports.page.report.figures", lambda *_: [])
        return with_settings(read(path)), write_report(path, folder / "out").page.read_text(encoding="utf-8")


def with_settings(frame):
    return frame.assign(setting=frame["lookback"].astype(str) + "x" + frame["horizon"].astype(str))


@pytest.mark.parametrize("scope", SCOPES)
def test_the_statistics_of_every_combination_of_filters_are_those_of_folded_seeds(crowded, scope):
    frame, shown = crowded
    done, beats = frame["status"] == "done", (frame["beats_naive"] == 1).fillna(False)
    chosen = frame[done & {"yes": beats, "all": True, "no": ~beats}[scope]]
    found = list(groups_of(shown, scope))
    assert {tuple(group) for group, _ in found} >= {(), ("model",), ("model", "dataset", "setting")}
    for group, statistics in found:
        runs = chosen
        for name, value in group.items():
            runs = runs[runs[name] == value]
        if runs.empty:
            assert statistics is None
            continue
        folded = runs.groupby(["model", "dataset", "setting", "series"])[
            ["g_own", "g_shuffled", "g_margin", "rank"]
        ].mean()
        assert statistics["n"] == len(folded)
        assert statistics["rank"] == pytest.approx(folded["rank"].median(), rel=1e-8)
        own, shuffled, margins = (bootstrap.source_values(runs, f"g_{name}") for name in ("own", "shuffled", "margin"))
        for name, values in (("own", own), ("shuffled", shuffled), ("margin", margins)):
            assert statistics[name] == pytest.approx(np.median(values), rel=1e-8)
        for (low, high), values in ((("low", "high"), margins), (("own_low", "own_high"), own)):
            expected = bootstrap.order_statistics(values)
            if expected == (None, None):
                assert (statistics[low], statistics[high]) == expected
            else:
                assert (statistics[low], statistics[high]) == pytest.approx(expected, rel=1e-7)
        assert statistics["positive"] == pytest.approx((margins > 0).mean(), rel=1e-8)
        assert statistics["clusters"].startswith(f"{len(margins)} s")


def test_every_combination_of_filters_finds_the_statistics_of_its_runs(crowded):
    frame, shown = crowded
    texts, statistics = data(shown, "runs")["texts"], data(shown, "statistics")
    done = frame[frame["status"] == "done"]
    groupings = data(shown, "runs")["groupings"]
    for count in range(len(groupings) + 1):
        for names in combinations(groupings, count):
            stored = statistics["computed"][" ".join(names)].split()
            assert set(stored) <= set(names)
            for values, runs in done.groupby(list(names)) if names else [((), done)]:
                codes = {name: texts[name]["values"].index(value) for name, value in zip(names, values, strict=True)}
                found = statistics["groups"][" ".join(stored)][" ".join(str(codes[name]) for name in stored)]
                assert found[0] == pytest.approx(runs["beats_naive"].mean(), rel=1e-8)
                assert found[1] == pytest.approx((runs["mse"] < runs["mse_seasonal"]).mean(), rel=1e-8)


def test_combinations_beyond_the_limit_are_left_out_and_smaller_ones_stay(crowded):
    found = PageStatistics(arrange(crowded[0]), most_groups=20).as_json()
    assert found["computed"]["model dataset setting"] is None
    assert found["computed"]["dataset"] == "dataset"
    assert sum(map(len, found["groups"].values())) <= 20


def test_the_verdict_of_a_selection_follows_the_rule_of_the_summary(page, record):
    """Twelve series of one dataset have own rows that belong to their steps; in the other dataset nothing does."""

    def run(dataset, number, **gains):
        return record(dataset=dataset, series=f"T{number}", series_fingerprint=f"{dataset} {number}", **gains)

    clear = [run("clear/H", i, g_own=0.1 + i / 100, g_margin=0.2 + i / 100) for i in range(12)]
    none = [run("none/H", i, g_own=i - 5.5, g_margin=5.5 - i) for i in range(12)]
    few = [run("few/H", i) for i in range(4)]
    shown = page([*clear, *none, *few])
    statistics = data(shown, "statistics")
    of = {group["dataset"]: found for group, found in groups_of(shown, "yes") if list(group) == ["dataset"]}
    tones = {name: statistics["findings"][found["judged"][0]][0] for name, found in of.items()}
    assert tones == {"clear/H": "yes", "none/H": "few", "few/H": "few"}


def test_a_selection_of_a_model_has_the_verdict_of_the_summary_over_its_runs(crowded):
    frame, shown = crowded
    statistics = data(shown, "statistics")
    beats = frame[(frame["status"] == "done") & (frame["beats_naive"] == 1).fillna(False)]
    compared = 0
    for group, found in groups_of(shown, "yes"):
        if found is None or "model" not in group:
            assert found is None or found["judged"] is None
            continue
        if len(group) > 2:
            continue
        runs = beats
        for name, value in group.items():
            runs = runs[runs[name] == value]
        finding, figures = found["judged"]
        (summary,) = summarise(runs.drop(columns="setting"), [])
        assert statistics["findings"][finding] == [summary.tone, summary.headline]
        assert summary.because.startswith(statistics["figures"][figures])
        compared += 1
    assert compared > 4


def test_rank_points_are_the_folded_configurations_of_the_scope_with_medians_of_equal_bins(crowded):
    frame, text_of_page = crowded
    points = data(text_of_page, "rank-yes")
    chosen = frame[(frame["status"] == "done") & (frame["beats_naive"] == 1).fillna(False)]
    folded = fold_seeds(chosen, ["rank", "g_margin"])
    assert sorted(points["rank"]) == pytest.approx(sorted(folded["rank"]), rel=1e-4)
    assert sorted(points["gain"]) == pytest.approx(sorted(folded["g_margin"]), rel=1e-4, abs=1e-9)
    assert all(chosen.index.isin([run]).any() for run in points["run"])
    for group, found in groups_of(text_of_page, "yes"):
        if list(group) not in ([], ["model"]):
            continue
        mine = folded if not group else folded[folded["model"] == group["model"]]
        ordered = mine.sort_values("rank", kind="stable")[["rank", "g_margin"]].to_numpy()
        expected = [np.median(part, axis=0) for part in np.array_split(ordered, min(8, len(ordered) // 10))]
        np.testing.assert_allclose(found["bins"], expected, rtol=1e-8)


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
    assert shown.count("<script") == 11  # ten blocks of data, and the page's own
    assert shown.count("</script>") == 11
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
    from hrx.records.ledger import Ledger

    many = [record(model=model, dataset=f"d{k}") for model in ("a", "b") for k in range(4)]
    path = ledger(many, examples=map(example, many))
    frame = read(path)
    each = len(pack(np.asarray(example(many[0]).matrix) / example(many[0]).matrix.max()))
    with Ledger.open(path, create=False) as opened:
        shown, stored = choose_examples(opened, frame, frame["model"].tolist(), [], budget=5 * each)
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
    shown = page([])
    assert "The ledger holds no runs." in shown
    assert "<h1>An audit without runs</h1>" in shown


def test_a_run_without_numbers_is_shown_with_its_reason(page, record):
    shown = page(
        [record(), record(status="excluded", reason="too short: 9 values", seed=1), record(status="failed", seed=2)]
    )
    assert "too short: 9 values" in shown
    assert "no reason was recorded" in shown


def test_the_command_to_reproduce_is_the_one_that_the_ledger_keeps(ledger, record, tmp_path):
    from hrx.records.ledger import Ledger

    path = ledger([record()])
    assert "<pre>hrx report " in write_report(path, tmp_path / "a").page.read_text()
    settings = {"models": ["m"], "data": "sample", "seeds": 2, "precision": None, "rank-only": False, "python": ["x"]}
    with Ledger.open(path) as opened:
        opened.write_audit(StoredAudit("2026-01-01T00:00:00+00:00", "0.1.0", json.dumps(settings)))
    shown = write_report(path, tmp_path / "b").page.read_text()
    assert "<pre>hrx audit m --data sample --seeds 2 --python x\n" in shown


def test_the_first_example_may_be_interpreted_and_every_other_one_says_why_not(ledger, record, example, check):
    from hrx.records.ledger import Ledger

    many = [
        record(dataset="loses/H", beats_naive=0),
        record(dataset="unknown/H", beats_naive=None),
        record(dataset="refused/H", horizon=48),
        record(dataset="good/H"),
    ]
    path = ledger(many, examples=map(example, many))
    frame = read(path)
    refused = check("derivative", False, 0.5, 1e-2, "96x48")
    with Ledger.open(path, create=False) as opened:
        shown = choose_examples(opened, frame, frame["model"].tolist(), [refused])[0]
    why = {frame["dataset"].iloc[item["run"]]: item["why"] for item in shown}
    assert next(iter(why)) == "good/H"
    assert why.pop("good/H") == ""
    assert "does not beat naive" in why["loses/H"]
    assert "unknown whether" in why["unknown/H"]
    assert why["refused/H"] == "the model fails admission at 96x48 (derivative)"
    assert shown[0]["file"] == "bolt-mini--good-h--t1--96x24"


def test_the_card_and_the_table_of_checks_show_the_same_parity(page, record, check):
    checks = [check("equivalence", True, 3e-7, 1e-5), check("equivalence", True, 1e-7, 1e-5, "512x96")]
    runs = [record(parity=8e-7), record(lookback=512, horizon=96, parity=2e-7)]
    shown = page(runs, checks)
    assert '<dt>worst parity</dt><dd><span class="big">8.0e-07</span>' in shown
    rows = re.findall(r'<tr data-model="bolt-mini"(?: data-setting="(.*?)" hidden="")?>(.*?)</tr>', shown)
    figures = {setting: re.findall(r'class="number">(.*?)<', row)[0] for setting, row in rows}
    assert figures == {"": "8e-07", "96x24": "8e-07", "512x96": "2e-07"}


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((0.1, 0.9, None), '<span class="big">50 %</span><small>1 of 2 scored runs, 1 unknown</small>'),
        ((None, None, None), '<span class="big">–</span><small>unknown</small>'),
    ],
)
def test_seasonal_naive_stands_beside_naive_and_unknown_is_not_zero(page, record, errors, expected):
    shown = page([record(series=f"T{i}", mse=0.5, mse_seasonal=error) for i, error in enumerate(errors)])
    assert f"<dt>beats seasonal naive</dt><dd>{expected}" in shown
    known = [None if error is None else float(error > 0.5) for error in errors]
    assert data(shown, "runs")["beats_seasonal"] == known
    share = data(shown, "statistics")["groups"][""][""][1]
    assert share == (None if known[0] is None else 0.5)


def test_one_run_is_one_run_and_has_no_interval(page, record):
    shown = page([record()])
    assert "ledger0.db: 1 run, 1 of them scored, on 1 dataset" in shown
    assert "1 of 1 scored run<" in shown
    assert "no interval: fewer than five series" in shown


def test_excluded_runs_are_counted_by_kind_and_each_run_knows_its_row(page, record):
    refused = [record(status="excluded", reason=f"too short: {n} values", seed=n) for n in range(3)]
    shown = page([record(), *refused, record(status="failed", seed=9)])
    found = data(shown, "exclusions")
    assert found["rows"][0] == {"status": "excluded", "search": "too short"}
    assert found["of"] == [-1, 0, 0, 0, 1]
    assert '<p id="excluded-note">4 of 5 runs were excluded or failed.</p>' in shown


def test_text_and_data_are_safe_wherever_they_stand():
    shown = render("notebook.html", title='<a href="x">\n\x1b', lines=[], note="")
    assert "<b>&lt;a href=&#34;x&#34;&gt; \N{REPLACEMENT CHARACTER}</b>" in shown
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
    runs, expected = data(found, "records-0"), data(missing, "records-0")
    assert runs["numbers"] == expected["numbers"]
    assert runs["numbers"]["g_own"][11:14] == [None, 0.7, None]
    n, own, *_ = data(found, "statistics")["groups"][""][""][3]
    assert (own, n) == (pytest.approx(np.median([*(0.01 * np.arange(11)), 0.7, 0.12])), 14)
    assert "3 of 15 scored runs hold impossible numbers (infinite, or beyond 1e+100), in g_own" in found
    assert "impossible numbers" not in missing


def test_an_infinite_parity_is_shown_of_its_run_its_model_and_its_check(page, record, check):
    checks = [check("equivalence", False, math.inf, 1e-5), check("determinism", True, math.nan, 0.0)]
    shown = page([record(), record(seed=1, parity=np.inf), record(seed=2, parity=None)], checks)
    assert data(shown, "records-0")["numbers"]["parity"] == [2e-7, "inf", None]
    assert '<dt>worst parity</dt><dd><span class="big">inf</span>' in shown
    assert '<td class="number">inf</td><td class="number">1e-05</td>' in shown
    assert '<td class="number">–</td><td class="number">0</td>' in shown
