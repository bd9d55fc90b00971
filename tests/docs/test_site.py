"""The documentation site builds from the repository, without warnings and without anything fetched from elsewhere."""

import json
import re
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path

import pytest
import yaml
from helpers.browser import open_browser

from hrx import adapters, audit, gift_eval, reports
from hrx.cli.main import parser
from hrx.records.record import COLUMNS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "properdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_the_repository_is_on_the_site(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists(), page.name
    navigation = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"{page.stem}.html" in navigation or page.stem == "index", page.name


def test_the_reference_names_every_verb_and_every_column(site: Path) -> None:
    commands = (site / "command-line.html").read_text(encoding="utf-8")
    (verbs,) = (action for action in parser()._actions if isinstance(action.choices, dict))
    assert verbs.choices
    for verb in verbs.choices:
        assert f"hrx {verb}" in commands
    record = (site / "record.html").read_text(encoding="utf-8")
    for column in COLUMNS:
        assert f"<code>{column.name}</code>" in record


def test_the_api_page_has_every_public_name_with_its_signature(site: Path) -> None:
    page = unescape(re.sub(r"<[^>]+>", "", (site / "api.html").read_text(encoding="utf-8")))
    for package in (adapters, audit, gift_eval, reports):
        for name in package.__all__:
            assert f"{package.__name__}.{name}" in page, name
    assert "hrx.adapters.load(name: str" in page
    assert "(W, L) -> (W, R, L)" in page, "a docstring"


def test_settings_and_code_stand_on_the_pages_that_ask_for_them(site: Path) -> None:
    estimators = (site / "estimators.html").read_text(encoding="utf-8")
    assert re.search(r"<td><code>points</code></td>\s*<td>32</td>\s*<td>interpolation points", estimators)
    assert re.search(
        r"<td><code>captum:Occlusion</code></td>\s*<td><code>window</code> 0, <code>stride</code> 0", estimators
    )
    assert "<code>LofLime</code></td>" in estimators
    covariates = (site / "covariates.html").read_text(encoding="utf-8")
    assert re.search(r"<td>chronos-2</td>\s*<td>1 to any targets; past: optional, categorical", covariates)
    assert "class T0(WindowForecaster)" in (site / "add-a-model.html").read_text(encoding="utf-8")


def test_the_gallery_links_to_results_that_were_made(site: Path) -> None:
    text = (site / "gallery.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'(?:href|src)="(gallery/[^"]+)"', text))
    assert {"gallery/report/index.html", "gallery/explanation.html", "gallery/tables.html"} < linked
    for target in linked:
        assert (site / target).stat().st_size > 1000, target
    assert "Verdict" in (site / "gallery" / "report" / "index.html").read_text(encoding="utf-8")


def test_the_results_are_on_the_site_with_their_records(site: Path) -> None:
    page = (site / "results.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<td[^>]*>[+-]\d\.\d+<br[ />]+\[[+-]", page)) > 50, "medians with their intervals"
    for model in ("ttm-r2", "bolt-mini"):
        assert f'href="results/{model}.parquet"' in page
        assert (site / "results" / f"{model}.parquet").read_bytes()[:4] == b"PAR1"


def test_every_notebook_ran_and_shows_what_its_cells_made(site: Path) -> None:
    navigation = (site / "index.html").read_text(encoding="utf-8")
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) == 4
    for notebook in notebooks:
        stored = json.loads(notebook.read_text(encoding="utf-8"))
        assert not any(cell.get("outputs") for cell in stored["cells"]), "outputs are made by the build, not stored"
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert f"notebooks/{notebook.stem}.html" in navigation
        assert (site / "notebooks" / notebook.name).exists()
        pictures = re.findall(r'src="(?:\./)?([^":]+\.png)"', page)
        assert pictures
        for picture in pictures:
            assert (site / "notebooks" / picture).read_bytes().startswith(b"\x89PNG")
        assert "Loading weights" not in page
        assert "Traceback" not in page


def test_no_search_is_offered_that_a_page_from_disk_could_not_do(site: Path) -> None:
    assert not (site / "search").exists()
    page = (site / "index.html").read_text(encoding="utf-8")
    assert 'type="search"' not in page
    assert 'data-bs-target="#properdocs_search_modal"' not in page


def test_from_disk_the_pages_have_no_script_errors_and_fit_a_phone(site: Path) -> None:
    with open_browser() as browser:
        browser.tab.set_viewport_size({"width": 390, "height": 800})
        for page in sorted({*site.glob("*.html")} - {site / "404.html"}):
            browser.tab.goto(page.as_uri())
            assert browser.complaints == [], page.name
            assert browser.run("document.documentElement.scrollWidth") <= 390, page.name


def test_the_prose_stays_short() -> None:
    written_by_commands = {"contracts", "error-rates", "parity"}
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.stem not in written_by_commands]
    prose = [re.sub(r"<!-- figures.*?end of figures -->", "", page.read_text("utf-8"), flags=re.S) for page in pages]
    assert sum(len(text.split()) for text in prose) <= 30_000
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_the_citation_is_the_same_for_people_and_for_tools() -> None:
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (paper["title"], paper["version"], paper["license"]) == (project["name"], project["version"], "Apache-2.0")
    page = (ROOT / "docs" / "citation.md").read_text(encoding="utf-8").replace("\n", " ").replace("            ", "")
    cited = paper["preferred-citation"]
    assert f"*{cited['title']}.*" in page
    names = [f"{author['family-names']}, {author['given-names']}" for author in cited["authors"]]
    assert f"author = {{{' and '.join(names)}}}" in page


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.glob("*.html"))
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]+"', text), page.name
        assert not re.findall(r'<link[^>]+href="(?:https?:)?//[^"]+"', text), page.name
