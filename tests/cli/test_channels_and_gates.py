"""`hrx audit --channels` and `--gate`, through the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from hrx.cli import main
from hrx.reports import read

MIXING = """
import torch

from hrx.adapters import Limits, from_module


class Mixing(torch.nn.Module):
    '''Each step repeats the last value of another channel.'''

    def forward(self, x, horizon):
        steps = torch.arange(horizon) % x.shape[2]
        return x[:, -1:, steps].transpose(1, 2).expand(-1, -1, x.shape[2]) + 0.1 * x.mean(dim=1, keepdim=True)


def make():
    return from_module(Mixing(), limits=Limits(multivariate=True))
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    values = np.cumsum(rng.normal(size=(400, 3)), axis=0)
    lines = [f"2020-01-{1 + i // 24:02d} {i % 24:02d}:00,{a:.4f},{b:.4f},{c:.4f}" for i, (a, b, c) in enumerate(values)]
    file = tmp_path / "wide.csv"
    file.write_text("\n".join(["time,a,b,c", *lines]))
    return file


def audit(tmp_path: Path, *arguments: str) -> int:
    quick = ["--settings", "48x12", "--windows", "2", "--draws", "2", "--seeds", "1", "--out", str(tmp_path / "out")]
    return main(["audit", *arguments, *quick])


def test_items_of_several_variates_are_measured_along_both_axes(table: Path, tmp_path: Path) -> None:
    (tmp_path / "mixing.py").write_text(MIXING)
    assert audit(tmp_path, f"module:{tmp_path / 'mixing.py'}:make", "--data", f"csv:{table}", "--channels") == 0
    (record,) = read(tmp_path / "out" / "ledger.db").to_dict("records")
    assert (record["status"], record["channels"]) == ("done", 3)
    # Every step reads one channel of its own, so rows belong to their steps on the channel axis.
    assert record["g_margin_channel"] > 0
    assert record["rank_channel"] > 2
    assert record["parity"] <= 1e-6


def test_a_model_of_one_variate_is_excluded_from_the_channel_axis(table: Path, tmp_path: Path) -> None:
    assert audit(tmp_path, "bolt-mini", "--data", f"csv:{table}", "--channels") == 0
    (record,) = read(tmp_path / "out" / "ledger.db").to_dict("records")
    assert record["status"] == "excluded"
    assert record["reason"] == "bolt-mini reads one variate at a time, so there is no channel axis"


def test_channels_need_data_that_have_them_and_the_input_gradient(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(tmp_path, "bolt-mini", "--data", "sample:elnino/M", "--channels") == 2
    assert "No dataset of sample:elnino/M has several variates" in capsys.readouterr().err
    assert audit(tmp_path, "bolt-mini", "--data", f"csv:{table}", "--channels", "--estimator", "occlusion") == 2
    assert "--channels works with the input gradient only" in capsys.readouterr().err


def test_gates_of_an_audit_are_judged_after_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["bolt-mini", "--data", "sample:elnino/M"]
    assert audit(tmp_path, *data, "--gate", "parity <= 1e-5", "--gate", "rank >= 1000") == 4
    output = capsys.readouterr().out
    assert "Gate parity <= 1e-5 of bolt-mini: passed: the worst run lies within the bound; worst " in output
    # One run decides nothing, however far it lies from the bound.
    assert "Gate rank >= 1000 of bolt-mini: undecided: " in output
    assert "undecided: 1 series: a gate needs at least 5 series; " in output
    assert audit(tmp_path, *data, "--gate", "rank >= 1000", "--undecided", "pass") == 0
    assert audit(tmp_path, *data, "--gate", "rank >= 1000", "--undecided", "fail") == 1
    capsys.readouterr()
    assert audit(tmp_path, *data, "--gate", "parity <= 1e-5", "--gate", "g_margin >= 10", "--json") == 4
    gates = json.loads(capsys.readouterr().out)["gates"]
    assert [(one["model"], one["gate"], one["outcome"]) for one in gates] == [
        ("bolt-mini", "parity <= 1e-5", "passed"), ("bolt-mini", "g_margin >= 10", "undecided"),
    ]  # fmt: skip
    (record,) = read(tmp_path / "out" / "ledger.db").to_dict("records")
    assert gates[1]["scope"] == f"over {record['beats_naive']} of 1 run: those that beat naive"
    assert audit(tmp_path, *data, "--gate", "g_margin > 10") == 2
    assert "The gate 'g_margin > 10' is not valid" in capsys.readouterr().err


SAMPLED = """
import torch

from hrx.adapters import from_module


def make():
    return from_module(lambda x: x[:, :12] + 0.1 * torch.randn(len(x), 12), name="sampled")
"""


def test_a_model_that_fails_admission_exits_1_from_verify_audit_and_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sampled.py").write_text(SAMPLED)
    model, data = f"module:{tmp_path / 'sampled.py'}:make", ["--data", "sample:elnino/M"]
    assert main(["verify", model, *data, "--settings", "48x12"]) == 1
    assert audit(tmp_path, model, *data) == 1
    assert "FINDING   Not audited." in capsys.readouterr().out
    ledger = str(tmp_path / "out" / "ledger.db")
    assert main(["compare", ledger, ledger, "--undecided", "pass"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "Verdict: failed: base fails equivalence: " in shown
    assert "against 1e-05" in shown
    assert "at 48x12 (1 run excluded)" in shown
