"""The published numbers: equal to the reference where that is at hand, and matched to the names of records."""

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from helpers.constructed import runs

from hrx.reports import tables
from hrx.reports.published import (
    STAR,
    dataset_name,
    datasets,
    domain_name,
    model_name,
    models,
    published_tables,
)

PUBLISHED = published_tables()
PUBLISHED_MODELS = set(models().values())


@pytest.mark.parametrize(
    ("name", "theirs", "key", "renamed"),
    [
        ("models", "fm_models", "model", {}),
        ("models_full", "fm_models_full", "model", {"beats_naive": "beats_naive_pct"}),
        ("metrics", "fm_std", "metric", {"p": "sign_test"}),
        ("domains", "fm_domains", "domain", {}),
        ("datasets", "fm_datasets", "dataset", {"g_own": "gain"}),
    ],
)
def test_the_repository_has_the_numbers_of_the_reference(real_data: Path, name, theirs, key, renamed) -> None:
    reference = json.loads((real_data / "reference" / "published_tables.json").read_text())[theirs]
    rows = list(PUBLISHED[name].rows.values())
    assert [row["row"] for row in rows] == [row[key] for row in reference]
    names = {"positive": "positive_pct"} | renamed
    for ours, given in zip(rows, reference, strict=True):
        for column, value in ours.items():
            if column != "row":
                assert value == given[names.get(column, column)], (ours["row"], column)


def test_the_repository_has_the_axes_of_the_reference(real_data: Path) -> None:
    reference = json.loads((real_data / "reference" / "published_tables.json").read_text())
    for section, key in (("Horizon H", "H"), ("Lookback L", "L")):
        for given in reference["fm_axes"][key]:
            ours = PUBLISHED["axes"].rows[section, str(given["value"])]
            assert (ours["g_own"], ours["g_margin"], ours["positive"], ours["n"]) == (
                given["g_own"], given["g_margin"], given["positive_pct"], given["n"],
            )  # fmt: skip


def test_the_repository_has_the_names_and_domains_of_the_reference(real_data: Path) -> None:
    with (real_data / "reference" / "published_datasets.csv").open() as file:
        reference = list(csv.DictReader(file))
    assert len(datasets()) == len(reference) == 66
    finance = {"Finance": "finance/log_price", "Finance_ret": "finance/log_return"}
    for row in reference:
        here = row["gift_eval_path"] or finance.get(row["paper_name"], row["paper_name"])
        ours = datasets()[here.casefold()]
        assert ours.name == row["paper_name"]
        assert ours.domain == ("" if row["domain"].startswith("(") else row["domain"])


@pytest.mark.parametrize(("name", "theirs"), [("backbones", "backbones"), ("benchmarks", "benchmarks")])
def test_the_repository_has_the_trained_rows_of_the_reference(real_data: Path, name: str, theirs: str) -> None:
    reference = json.loads((real_data / "reference" / "published_trained.json").read_text())[theirs]
    renamed = {"g_own_ci": "ci", "margin_of_medians": "g_margin", "row": "name"}
    for ours, given in zip(PUBLISHED[name].rows.values(), reference, strict=True):
        cells = {renamed.get(column, column): value for column, value in ours.items()}
        assert cells == given | {"significant": "yes" if given["significant"] else "-"}


def test_the_repository_has_the_paired_changes_of_the_reference(real_data: Path) -> None:
    reference = json.loads((real_data / "reference" / "published_trained.json").read_text())["axes"]
    for ((section, levels), ours), given in zip(PUBLISHED["trained_axes"].rows.items(), reference, strict=True):
        assert (section, levels.replace("→", "->")) == (given["name"], given["range"])
        assert (ours["change"], ours["change_ci"], ours["n"]) == (given["change"], given["ci"], given["blocks"])


OUTSIDE = ["estimators", "estimators_plain", "cost", "seeds", "rank", "truncation", "distance", "trained_domains"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_numbers_outside_the_reference_stand_in_the_paper_in_this_order(real_data: Path, name: str) -> None:
    """Every number of a row is found in the LaTeX of that table, one after the other."""
    paper = (real_data / "reference" / "paper.tex").read_text()
    label = rf"\label{{{PUBLISHED[name].label}}}"
    body = paper[paper.index(label) :].split(r"\end{tabular}")[0].replace("{,}", "").replace(r"\%", "%")
    defined = macros(paper)
    body = re.sub(r"\\(\w+)", lambda macro: defined.get(macro[1], macro[0]), body)
    at = 0
    for row in PUBLISHED[name].rows.values():
        for column, value in row.items():
            if column in ("row", "section"):
                continue
            for number in value if isinstance(value, list) else [value]:
                forms = {f"{number:.3f}", f"{number:.2f}", f"{number:.1f}", f"{number:.0f}", f"{number}"}
                places = [body.find(form, at) for form in forms if abs(float(form) - number) < 1e-9]
                found = min(place for place in places if place >= 0)
                assert found >= at
                at = found + 1


def macros(paper: str) -> dict[str, str]:
    """The numbers that the paper's tables name instead of printing."""
    return dict(re.findall(r"\\newcommand\{\\(\w+)\}\{([-+.\d]+)\}", paper))


def test_the_numbers_of_both_axes_are_those_that_the_paper_defines(real_data: Path) -> None:
    """Its table has a column for each axis, ours a row."""
    defined = macros((real_data / "reference" / "paper.tex").read_text())
    for axis, name in (("Time", "time"), ("Channel", "chan")):
        row = PUBLISHED["channels"].rows["", axis]
        assert row["g_own"] == float(defined[f"{name}Gain"])
        assert row["rank"] == float(defined[f"{name}Rank"])


def test_names_of_records_become_those_of_the_paper() -> None:
    assert dataset_name("us_births/D") == "Us_births_D"
    assert dataset_name("SZ_TAXI/15T") == "SZ_TAXI_15T"
    assert dataset_name("m4_hourly") == "M4_hourly"
    assert dataset_name("etth1") == "ETTh1"
    assert dataset_name("us_births/D'; --") == "us_births/D'; --"
    assert domain_name("bizitobs_service", "Web/CloudOps") == "Web"
    assert domain_name("Traffic", "") == ""
    assert domain_name("my/H", "Energy") == "Energy"
    assert len(set(models().values())) == 8


TTM = "348b862b15b55bdf09f900bb9daa83393f69691254146498da3746e2b64b1a49"


@pytest.mark.parametrize(
    ("model", "checkpoint", "fingerprint", "expected"),
    [
        ("./anything", "amazon/chronos-2", "f", "Chronos-2"),
        ("fine-tune", "fine-tune", TTM, "TTM-r2"),
        ("ttm-r2", "ttm-r2", "f", "ttm-r2"),
        ("chronos-bolt-base", "chronos-bolt-base", "f", "chronos-bolt-base"),
        ("TTM-r2", "TTM-r2", "f", "TTM-r2 (not the published one)"),
        ("bolt-mini", "bolt-mini", "f", "bolt-mini"),
    ],
)
def test_a_model_is_published_by_its_weights_or_hub_id_and_never_by_the_name_of_its_folder(
    model: str, checkpoint: str, fingerprint: str, expected: str
) -> None:
    assert model_name(model, checkpoint, fingerprint) == expected
    frame = runs(12, model=model, checkpoint=checkpoint, fingerprint=fingerprint, g_own=0.1)
    (table,) = tables(frame, ["models"], against="published")
    assert table.rows[0].cells[0].value == expected
    assert (table.rows[0].cells[1].published is not None) == (expected in PUBLISHED_MODELS)


def test_the_stored_fingerprint_is_that_of_the_released_weights(real_data: Path) -> None:
    from hrx.adapters.checkpoint import Checkpoint

    assert models()[Checkpoint(real_data / "checkpoints" / "ttm-r2", "x", "x").fingerprint] == "TTM-r2"


def test_a_row_says_what_it_has_in_common_with_the_published_one() -> None:
    about = {"model": "c", "checkpoint": "amazon/chronos-2", "g_own": 0.1, "g_margin": 0.2, "rank": 1.2}
    frame = pd.concat([
        runs(12, dataset="us_births/D", lookback=512, horizon=96, **about),
        runs(12, dataset="mine/D", lookback=512, horizon=24, **about),
        runs(12, dataset="mine/D", lookback=100, horizon=10, **about),
    ], ignore_index=True)  # fmt: skip

    def said(name: str, key: str) -> str:
        (table,) = tables(frame, [name], against="published")
        return next(row.cells[-1].text for row in table.rows if row.key == key)

    assert said("models", "Chronos-2") == "1/66 datasets +1, 2/7 settings +1"
    assert said("metrics", "g_own") == "1/8 models, 1/66 datasets +1, 2/7 settings +1"
    assert said("datasets", "Us_births_D") == "1/8 models, 1/7 settings"
    assert said("datasets", "mine/D") == "-"
    assert said("axes", "24") == "1/8 models, 0/66 datasets +1"
    assert said("axes", "96") == "1/8 models, 1/66 datasets, 1/4 settings"
    assert said("rank", "[1.1, 1.25)") == "no model: trained backbones"


def test_a_row_on_the_same_models_datasets_and_settings_has_all_in_common() -> None:
    settings = [one.split("x") for one in sorted(STAR)]
    names = [one.dataset or one.name for one in datasets().values()]
    pairs = [(name, int(lookback), int(horizon)) for name in names for lookback, horizon in settings]
    columns = dict(zip(("dataset", "lookback", "horizon"), map(list, zip(*pairs, strict=True)), strict=True))
    frame = runs(len(pairs), checkpoint="amazon/chronos-2", g_own=0.1, **columns)
    (table,) = tables(frame, ["models"], against="published")
    assert table.rows[0].cells[-1].value == "all"


def test_rows_that_share_nothing_show_the_published_value_without_a_difference() -> None:
    frame = runs(12, g_own=0.1, g_margin=0.2, rank=1.2)
    for name in ("metrics", "axes", "rank"):
        (table,) = tables(frame, [name], against="published")
        assert any(cell.published is not None for row in table.rows for cell in row.cells)
        assert all(cell.difference is None for row in table.rows for cell in row.cells)
        assert "difference" not in {shown.part for shown in table.shown}


def test_a_difference_is_that_of_the_printed_values() -> None:
    row = PUBLISHED["models_full"].rows["", "Chronos-2"]
    about = {"model": "chronos-2", "checkpoint": "amazon/chronos-2", "dataset": "us_births/D", "lookback": 512}
    frame = runs(40, **about, horizon=96, g_own=row["g_own"] + 0.0104)
    (table,) = tables(frame, ["models_full"], against="published")
    by_name = dict(zip([c.name for c in table.columns], table.rows[0].cells, strict=True))
    assert by_name["g_own"].published == row["g_own"]
    assert by_name["g_own"].difference == 0.01
    assert by_name["positive"].difference == pytest.approx(1 - row["positive"] / 100)
    assert by_name["n"].published == row["n"]
    shown = " ".join(table.to_text(120).split())
    assert "+0.080 +0.070 +0.010 100% 66% +34 pt 40 2,285" in shown
    assert "trained backbones" in tables(frame.assign(rank=1.2), ["rank"], against="published")[0].note
