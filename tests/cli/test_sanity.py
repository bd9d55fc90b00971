"""`hrx verify --sanity`, through the command line."""

import json
from pathlib import Path

import pytest

from hrx.cli.main import main

RANK_ONE = """
import torch

def outer():
    torch.manual_seed(0)
    linear = torch.nn.Linear(32, 8)
    with torch.no_grad():
        linear.weight.copy_(torch.outer(torch.rand(8) + 0.5, torch.randn(32)))
    return linear

def full():
    torch.manual_seed(0)
    return torch.nn.Linear(32, 8)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    file = tmp_path / "models.py"
    file.write_text(RANK_ONE)
    return file


def test_verify_shows_sanity_checks_on_request_and_they_do_not_decide_admission(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", f"module:{models}:full", "--settings", "32x8", "--sanity", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    names = [check["check"] for check in output["checks"]]
    assert names[-3:] == ["randomised parameters", "stable size", "stable order"]
    assert all({"figure", "limit", "setting", "passed"} <= set(check) for check in output["checks"])

    models.write_text(
        RANK_ONE + "\ndef fixed():\n    weight = full().weight.detach()\n    return lambda x: x @ weight.T\n"
    )
    assert main(["verify", f"module:{models}:fixed", "--settings", "32x8", "--sanity", "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert output["admitted"]
    failed = [check for check in output["checks"] if not check["passed"]]
    assert [check["check"] for check in failed] == ["randomised parameters"]
    assert failed[0]["figure"] is None
