"""The catalogue against the benchmark's rules, the published table of domains, and the sources of its facts."""

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hrx.gift_eval.catalogue import choose, configurations, folders, paper_datasets
from hrx.gift_eval.frequency import leaderboard_season, parse

BENCHMARK = [folder for folder in folders() if not folder.copy_of]
IN_PAPER = {dataset.folder: dataset for dataset in paper_datasets() if dataset.folder}

# The paper's table "Zero-shot TSFMs by field": how many datasets each domain has, and how many runs.
PUBLISHED_DOMAINS = {
    "Nature": (3, 325),
    "Transport": (7, 2089),
    "Energy": (13, 3818),
    "Cloud": (6, 1924),
    "Web": (2, 554),
    "Healthcare": (4, 338),
    "Climate": (7, 1977),
    "Econ": (6, 1785),
    "Sales": (3, 686),
}

SHORT = {"M": 12, "W": 8, "D": 30, "H": 48, "T": 48, "S": 60}
SHORT_M4 = {"A": 6, "Q": 8, "M": 18, "W": 13, "D": 14, "H": 48}


def test_there_are_55_folders_and_one_stray_copy() -> None:
    assert len(BENCHMARK) == 55
    (stray,) = [folder for folder in folders() if folder.copy_of]
    (original,) = [folder for folder in folders() if folder.name == stray.copy_of]
    assert (stray.name, original.name) == ("jena_weather", "jena_weather/10T")
    assert (stray.bytes, stray.sha256) == (original.bytes, original.sha256)
    assert len({folder.sha256 for folder in BENCHMARK}) == 55


def test_there_are_97_configurations_on_the_55_folders() -> None:
    assert Counter(each.term for each in configurations()) == {"short": 55, "medium": 21, "long": 21}
    assert {each.folder for each in configurations()} == {folder.name for folder in BENCHMARK}
    assert len({each.name for each in configurations()}) == 97


def test_the_download_has_1_18_gigabytes() -> None:
    assert round(sum(folder.bytes for folder in folders()) / 1e9, 2) == 1.18


def test_prediction_lengths_follow_the_frequency_and_the_term() -> None:
    known = {folder.name: folder for folder in folders()}
    for each in configurations():
        rule = SHORT_M4 if "m4" in each.folder else SHORT
        short = rule[parse(known[each.folder].frequency).base]
        assert each.prediction_length == short * {"short": 1, "medium": 10, "long": 15}[each.term], each.name


def test_names_of_results_are_those_of_the_leaderboard() -> None:
    known = {folder.name: folder for folder in folders()}
    for each in configurations():
        folder = known[each.folder]
        result = folder.name.partition("/")[0].lower().replace("saugeenday", "saugeen").removesuffix("_with_missing")
        assert each.name == f"{result}/{folder.frequency}/{each.term}"


def test_the_papers_66_names_are_51_folders_13_library_sets_and_2_of_finance() -> None:
    assert Counter(each.source for each in paper_datasets()) == {
        "GIFT-Eval": 51, "Time-Series-Library": 13, "finance": 2,
    }  # fmt: skip
    assert len({each.name for each in paper_datasets()}) == 66
    for each in paper_datasets():
        assert bool(each.folder) != bool(each.bring), each.name


def test_the_paper_omits_the_five_folders_too_short_for_its_smallest_setting() -> None:
    left_out = {folder.name: folder for folder in folders() if folder.name not in IN_PAPER}
    assert set(left_out) == {"car_parts_with_missing", "hospital", "ett1/W", "ett2/W", "solar/W"}
    assert all(folder.longest is not None and folder.longest < 96 + 24 for folder in left_out.values())
    assert all(not folder.paper_domain and folder.field == folder.domain for folder in left_out.values())
    for folder in folders():
        if folder.name in IN_PAPER:
            assert folder.longest is None or folder.longest >= 96 + 24, folder.name
            assert folder.paper_domain


def test_joined_with_its_runs_the_catalogue_gives_the_published_table_of_domains() -> None:
    found: dict[str, tuple[int, int]] = {}
    for folder in folders():
        if folder.name in IN_PAPER:
            datasets, runs = found.get(folder.paper_domain, (0, 0))
            found[folder.paper_domain] = (datasets + 1, runs + IN_PAPER[folder.name].runs)
    assert found == PUBLISHED_DOMAINS


def test_a_folder_and_its_paper_name_are_of_one_frequency_and_width() -> None:
    known = {folder.name: folder for folder in folders()}
    for name, dataset in IN_PAPER.items():
        assert (dataset.frequency, dataset.variates) == (known[name].frequency, known[name].variates)
        assert dataset.name.lower() == name.replace("/", "_").lower()


def test_the_leaderboards_seasons_are_those_of_gluonts_and_days_have_seven_in_an_audit() -> None:
    seasonality = pytest.importorskip("gluonts.time_feature", reason="gluonts is not installed")
    new = {"T": "min", "S": "s", "H": "h", "M": "ME", "Q": "QE", "A": "YE"}
    for folder in folders():
        frequency = parse(folder.frequency)
        alias = f"{frequency.multiple}{new.get(frequency.base, frequency.base)}"
        official = seasonality.get_seasonality(alias)
        assert leaderboard_season(folder.frequency) == official, folder.name
        assert folder.season == (7 if folder.frequency == "D" else official), folder.name


def test_a_dataset_means_all_its_frequencies_and_no_name_means_everything() -> None:
    assert [folder.name for folder in choose(["us_births", "us_births/D"])] == [
        "us_births/D", "us_births/M", "us_births/W",
    ]  # fmt: skip
    assert len(choose(["jena_weather"])) == 4
    assert choose([]) == folders()


def test_the_catalogue_needs_neither_torch_nor_a_library_of_the_extra() -> None:
    script = (
        "import sys; from hrx.gift_eval import catalogue; catalogue.folders(); catalogue.paper_datasets(); "
        "print(*{'torch', 'datasets', 'huggingface_hub'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == ""


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_fact_is_that_of_the_reference(real_data: Path) -> None:
    reference = real_data / "reference"
    known = {folder.name: folder for folder in folders()}
    manifest = lines(reference / "gift_eval_manifest.csv")
    assert {line["path"] for line in manifest} == set(known)
    for line in manifest:
        folder = known[line["path"]]
        assert (str(folder.bytes), folder.sha256) == (line["arrow_bytes"], line["sha256"])
        assert [str(count) for count in (folder.series, folder.variates, folder.covariates)] == [
            line["num_series"], line["target_dim"], line["past_feat_dim"],
        ]  # fmt: skip
        lengths = [str(length) for length in dict.fromkeys((folder.shortest, folder.longest)) if length is not None]
        assert "-".join(lengths) == line["series_length"]
    listed = {each.name: each for each in configurations()}
    for line in lines(reference / "gift_eval_configs.csv"):
        each = listed.pop(line["config"])
        folder = known[each.folder]
        assert [each.folder, each.term, folder.frequency, folder.domain, str(folder.variates)] == [
            line["path"], line["term"], line["freq"], line["domain"], line["num_variates"],
        ]  # fmt: skip
        assert (str(each.prediction_length), str(each.windows or "")) == (line["prediction_length"], line["windows"])
    assert not listed


def test_every_name_and_run_count_is_that_of_the_published_tables(real_data: Path) -> None:
    tables = json.loads((real_data / "reference" / "published_tables.json").read_text())
    assert {each.name: each.runs for each in paper_datasets()} == {
        line["dataset"]: line["n"] for line in tables["fm_datasets"]
    }
    assert {line["domain"]: (line["datasets"], line["n"]) for line in tables["fm_domains"]} == PUBLISHED_DOMAINS
    published = lines(real_data / "reference" / "published_datasets.csv")
    domains = {line["gift_eval_path"]: line["domain"] for line in published if line["gift_eval_path"]}
    assert {folder.name: folder.paper_domain for folder in folders() if folder.paper_domain} == domains
