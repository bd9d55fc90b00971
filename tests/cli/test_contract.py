"""`hrx verify --contract` and `hrx compare` of two contracts, as a user runs them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hrx.cli import main

ONLY = "isolation,reach,prefix,units,missing"
MODEL = """
import torch
def clean():
    return lambda x, horizon: x[:, -1:].expand(-1, horizon)
def leaks():
    return lambda x, horizon: x[:, -1:].expand(-1, horizon) + 0.01 * x.mean()
def old():
    return lambda x, horizon: x[:, -1:].expand(-1, horizon) + 1
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MODEL)
    return f"module:{tmp_path}/mine.py"


def contract(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["verify", *words, "--contract", "--settings", "24x6"])
    return code, capsys.readouterr().out


def test_a_leak_ends_with_exit_code_1_after_everything_is_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, junit = tmp_path / "c.html", tmp_path / "c.xml"
    code, out = contract(capsys, f"{model}:leaks", "--only", ONLY, "--page", str(page), "--junit", str(junit))
    assert code == 1
    assert "DOES NOT HOLD" in out
    assert "Required and does not hold: isolation." in " ".join(out.split())
    assert "isolation" in page.read_text()
    assert ElementTree.parse(junit).getroot().get("failures") == "1"


def test_only_the_named_properties_are_measured_and_printed_as_json(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = contract(capsys, f"{model}:clean", "--only", "units,isolation", "--json")
    value = json.loads(out)
    assert code == 0
    assert [one["name"] for one in value["properties"]] == ["isolation", "units"]
    assert [one["verdict"] for one in value["properties"]] == ["holds", "holds"]
    assert value["setting"] == "24x6"


def test_two_files_are_compared_and_what_broke_decides_the_exit_code(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("clean", "old")}
    for name, file in files.items():
        _, out = contract(capsys, f"{model}:{name}", "--only", "units,prefix,reach", "--json")
        file.write_text(out)
    assert main(["compare", str(files["clean"]), str(files["old"])]) == 1
    assert "Verdict: units held and does not hold any more" in capsys.readouterr().out
    assert main(["compare", str(files["old"]), str(files["clean"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exit"] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--contract", "--only", "unit"], "Unknown property 'unit'. Did you mean 'units'"),
        (["--contract", "--settings", "24x6,48x6"], "measures one setting"),
        (["--contract", "--settings", "600x24"], "reads a lookback of at most 512, not 600"),
        (["--contract", "--sanity"], "Drop --data, --channels and --sanity"),
        (["--only", "units"], "belong to the contract. Add --contract"),
    ],
)
def test_what_does_not_fit_a_contract_is_a_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "bolt-mini", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_contract_with_gates_is_refused(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.json"
    file.write_text(contract(capsys, f"{model}:clean", "--only", "units", "--json")[1])
    assert main(["compare", str(file), str(file), "--gate", "mse <= 1"]) == 2
    assert "without gates" in capsys.readouterr().err


@pytest.mark.slow
def test_the_embedded_checkpoint_keeps_its_contract_in_few_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bolt-mini", "--contract", "--json"]) == 0
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    found = {one["name"]: one["verdict"] for one in value["properties"]}
    required = {one["name"] for one in value["properties"] if one["required"]}
    assert {found[name] for name in required} == {"holds", "does not apply"}
    about_covariates = {"channel-order", "channel-isolation", "empty-channel", "future-reach", "two-valued"}
    assert {name for name in required if found[name] == "does not apply"} <= about_covariates
    assert found["sign"] == "does not hold"
    assert value["calls"] <= 600
    assert len(value["reach"]) == 24
    assert all(len(row) == 96 for row in value["reach"])


def test_time_that_ends_is_not_run_and_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bolt-mini", "--contract", "--budget", "0s", "--only", "units"]) == 3
    assert "Not run: units." in capsys.readouterr().out


def test_the_page_of_an_audit_shows_a_contract_and_a_model_card_gets_a_section(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card, file, out = tmp_path / "card.md", tmp_path / "c.json", tmp_path / "out"
    code, text = contract(capsys, f"{model}:leaks", "--only", "isolation,reach", "--json", "--markdown", str(card))
    file.write_text(text)
    assert code == 1
    assert "| `isolation` | DOES NOT HOLD | " in card.read_text()
    audit = ["audit", f"{model}:clean", "--data", "sample:co2/W", "--settings", "24x6", "--seeds", "1"]
    assert main([*audit, "--workers", "0", "--out", str(out)]) == 0
    assert main(["report", str(out / "ledger.db"), "--out", str(out), "--contract", str(file)]) == 0
    page = (out / "index.html").read_text()
    assert "mine:leaks at 24x6" in page
    assert "Required and does not hold: isolation." in page
    assert "data:image/png;base64," in page
    assert main(["report", str(out / "ledger.db"), "--out", str(out)]) == 0
    assert "mine:leaks at 24x6" not in (out / "index.html").read_text()


def test_another_process_that_takes_too_long_is_not_run(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hrx.api.verify.ELSEWHERE_SECONDS", 0.0)
    code, out = contract(capsys, f"{model}:clean", "--only", "process", "--json")
    assert (code, json.loads(out)["properties"][0]["verdict"]) == (3, "not run")


@pytest.mark.slow
def test_weights_that_are_drawn_when_a_model_is_built_differ_in_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "drawn.py").write_text(
        "import torch\n"
        "def free():\n    return torch.nn.Linear(24, 6)\n"
        "def fixed():\n    torch.manual_seed(0)\n    return free()\n"
    )
    found = {}
    for name in ("free", "fixed"):
        code, out = contract(capsys, f"module:{tmp_path}/drawn.py:{name}", "--only", "process", "--json")
        found[name] = code, json.loads(out)["properties"][0]["verdict"]
    assert found == {"free": (1, "does not hold"), "fixed": (0, "holds")}
