"""What a user gets from a wheel, from a git URL and from a clone, and whether the printed hints install something."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from hrx import errors
from hrx.adapters.families import families
from hrx.errors import install_command

ROOT = Path(__file__).parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
OFFLINE = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(folder), str(ROOT)], check=True, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_every_file_of_the_packages(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    for package in ("adapters", "audit", "cli", "gift_eval", "reports"):
        for file in (ROOT / package).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                assert f"hrx/{file.relative_to(ROOT)}" in held, file
    for file in (ROOT / "common").glob("*.*"):
        assert f"hrx/{file.name}" in held, file


class Environment:
    """A fresh environment that has the dependencies of this one, but not its hrx."""

    def __init__(self, folder: Path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.bin = folder / "bin"
        ours = sysconfig.get_path("purelib")
        (site,) = folder.glob("lib/*/site-packages")
        # A .pth file of this environment would import its editable hrx: only the folder itself is added, last.
        (site / "dependencies.pth").write_text("\n".join([ours, *_shared(Path(ours))]) + "\n")
        self.variables = os.environ | {"OMP_NUM_THREADS": "1", "PIP_NO_INPUT": "1"}
        self.variables.pop("PYTHONPATH", None)

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=cwd, env=self.variables, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def pip(self, *arguments: str, cwd: Path) -> None:
        self.run("python", "-m", "pip", "install", *OFFLINE, *arguments, cwd=cwd)


def _shared(ours: Path) -> list[str]:
    """Folders that an overlay environment adds to its own."""
    text = "".join(path.read_text(encoding="utf-8") for path in ours.glob("main.pth"))
    return re.findall(r"addsitedir\('?\"?([^'\")]+)", text)


@pytest.mark.slow
def test_hrx_works_outside_the_repository_and_its_hint_installs_from_where_it_came(wheel: Path, tmp_path: Path) -> None:
    """From a wheel and from a git URL; the hints run with the options that keep pip off the network."""
    environment = Environment(tmp_path / "venv")
    work = tmp_path / "work"
    work.mkdir()
    clone = tmp_path / "a clone"
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone of the repository")
    subprocess.run([git, "clone", "--quiet", str(ROOT), str(clone)], check=True)
    url = f"git+{clone.as_uri()}"
    sources = {str(wheel): f"{wheel}[ray]", url: f"{clone}[ray]"}
    for source, expected in sources.items():
        environment.pip("--force-reinstall", source, cwd=work)
        code = "import hrx; from hrx.errors import install_command; print(hrx.__file__); print(install_command('ray'))"
        file, hint = environment.run("python", "-c", code, cwd=work).stdout.splitlines()
        assert file.startswith(str(tmp_path / "venv"))
        words = shlex.split(hint)
        assert words == [str(environment.bin / "python"), "-m", "pip", "install", expected]
        environment.pip(*words[4:], cwd=work)
    quick = ["--data", "sample:co2", "--settings", "96x24", "--series", "1", "--seeds", "1", "--windows", "1"]
    assert "FINDING" in environment.run("hrx", "audit", *quick, cwd=work).stdout
    environment.run("hrx", "report", "hrx-audit/ledger.db", "--out", "page", cwd=work)
    assert environment.run("hrx", "tables", "hrx-audit/ledger.db", "--against", "published", cwd=work).stdout


COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = {"url": "https://git.example/owner/hrx", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ({"url": ROOT.as_uri(), "dir_info": {"editable": True}}, ["-e", f"{ROOT}[ttm]"]),
        ({"url": ROOT.as_uri(), "dir_info": {}}, [f"{ROOT}[ttm]"]),
        (GIT | {"url": "https://git.example/a b/hrx"}, [f"hrx[ttm] @ git+https://git.example/a%20b/hrx@{COMMIT}"]),
        (GIT, [f"hrx[ttm] @ git+https://git.example/owner/hrx@{COMMIT}"]),
        ({"url": "file:///gone/hrx-0.1.0-py3-none-any.whl", "archive_info": {}}, ["hrx[ttm]"]),
        ({}, ["hrx[ttm]"]),
    ],
    ids=["editable", "folder", "space", "git", "wheel-gone", "index"],
)
def test_a_hint_names_what_hrx_was_installed_from(
    origin: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_origin", lambda: origin)
    words = shlex.split(install_command("ttm"))
    assert words[words.index("install") + 1 :] == expected
    if "[ttm]" in expected[-1] and not expected[-1].startswith("/"):
        assert Requirement(expected[-1]).extras == {"ttm"}


def test_a_damaged_record_of_the_origin_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaged:
        def read_text(self, name: str) -> str:
            return "{"

    monkeypatch.setattr(errors, "distributions", lambda name: [Damaged()])
    assert install_command("ttm").endswith("install 'hrx[ttm]'")


def test_pip_is_named_by_its_interpreter_unless_the_environment_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pip", "python"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_command("ttm").startswith(f"{tmp_path}/python -m pip install ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("ttm").startswith("pip install ")


def test_every_extra_that_a_hint_names_exists() -> None:
    sources = [path for package in ("adapters", "audit", "cli", "gift_eval") for path in (ROOT / package).rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    named = {name for text in texts for name in re.findall(r"install_command\(['\"]([\w-]+)['\"]\)", text)}
    assert {"ray", "gift-eval"} <= named
    assert named | {family.extra for family in families().values() if family.extra} <= EXTRAS
    assert not [text for text in texts if re.search(r"pip install ['\"]?hrx", text)], (
        "a hint that does not use the helper"
    )


def test_the_install_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \|", page.partition("## Extras")[2], re.M)
    listed = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}
    assert listed == EXTRAS


def test_every_extra_that_a_document_names_exists() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"pip install [^\n`]*\[([\w,-]+)\]", text)
        assert {extra for one in named for extra in one.split(",")} <= EXTRAS, page.name
        assert not re.search(r"pip install ['\"]?hrx\b(?!(\[[^]]*\])? @)", text), f"{page.name}: hrx is not on PyPI"
