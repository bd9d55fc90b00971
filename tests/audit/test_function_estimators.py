"""A function of a user as an estimator: as an object, and as FILE.py:FUNCTION on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import from_module
from hrx.audit import Protocol, explain, score
from hrx.audit.attribution import as_estimator, find_estimator, stored_name
from hrx.cli.main import main
from hrx.errors import ProtocolError
from hrx.reports import read

HORIZON, LOOKBACK = 6, 24
GRADIENT = """
raised = None

def gradient(forward, x, step):
    x = x.requires_grad_()
    y = forward(x)
    (y.sum() if step is None else y[:, step - 1].sum()).backward()
    return x.grad
"""


def model() -> Any:
    torch.manual_seed(0)
    return from_module(torch.nn.Sequential(torch.nn.Linear(LOOKBACK, 8), torch.nn.Tanh(), torch.nn.Linear(8, HORIZON)))


def gradient(forward: Any, x: Tensor, step: int | None) -> Tensor:
    x = x.requires_grad_()
    y = forward(x)
    (y.sum() if step is None else y[:, step - 1].sum()).backward()
    return x.grad


@pytest.mark.parametrize("axis", ["step", "whole"])
def test_a_function_that_computes_the_gradient_is_saliency(axis: str) -> None:
    x = series(2, LOOKBACK)
    ours = explain(model(), x, HORIZON, estimator=gradient, axis=axis)
    torch.testing.assert_close(ours, explain(model(), x, HORIZON, estimator="saliency", axis=axis))


def test_a_function_is_scored_like_any_estimator() -> None:
    x, protocol = series(2, LOOKBACK), Protocol(estimator=as_estimator(gradient))
    assert protocol.estimator == "callable:gradient" == as_estimator(gradient)
    assert score(model(), x, HORIZON, protocol=protocol).normalised == pytest.approx(
        score(model(), x, HORIZON, protocol=Protocol(estimator="saliency")).normalised
    )


def test_a_function_draws_the_same_numbers_at_every_step_and_leaves_the_global_generators_alone() -> None:
    def noise(forward: Any, x: Tensor, step: int | None) -> Any:
        return np.random.rand(*x.shape) + torch.rand(x.shape).numpy()  # noqa: NPY002

    before = torch.get_rng_state()
    matrix = explain(model(), series(2, LOOKBACK), HORIZON, estimator=noise)
    assert torch.equal(torch.get_rng_state(), before)
    assert (matrix == matrix[:, :1]).all()
    assert torch.equal(explain(model(), series(2, LOOKBACK), HORIZON, estimator=noise), matrix)
    assert not torch.equal(explain(model(), series(2, LOOKBACK), HORIZON, estimator=noise, seed=1), matrix)


def test_a_function_sees_the_steps_that_are_asked_for_counted_from_1() -> None:
    seen = []
    explain(model(), series(1, LOOKBACK), HORIZON, estimator=lambda forward, x, step: seen.append(step) or x)
    explain(model(), series(1, LOOKBACK), HORIZON, estimator=lambda forward, x, step: seen.append(step) or x, steps=[6])
    assert seen == [1, 2, 3, 4, 5, 6, 6]


def test_two_functions_of_one_name_are_two_estimators() -> None:
    first, second = (lambda forward, x, step: x), (lambda forward, x, step: 2 * x)
    names = [as_estimator(one) for one in (first, second)]
    assert len(set(names)) == 2
    x = series(1, LOOKBACK)
    both = [explain(model(), x, HORIZON, estimator=one) for one in (first, second)]
    assert torch.equal(both[1], 2 * both[0])


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda forward, x, step: x[0], r"returned shape \(24,\) for windows of shape \(2, 24\)"),
        (lambda forward, x, step: 1 / 0, "raised ZeroDivisionError: division by zero. It is called as"),
        (lambda forward, x: x, "raised TypeError"),
        (lambda forward, x, step: "much", "raised TypeError"),
    ],
)
def test_a_function_that_fails_or_returns_another_shape_gets_a_sentence(function: Any, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        explain(model(), series(2, LOOKBACK), HORIZON, estimator=function)


def test_a_function_of_another_process_is_refused_with_the_form_that_a_worker_can_load() -> None:
    with pytest.raises(ProtocolError, match=r"another Python process.*FILE\.py:FUNCTION"):
        Protocol(estimator="callable:elsewhere")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mine.py:gradien", "Unknown function of mine.py 'gradien'. Did you mean 'gradient'"),
        ("absent.py:gradient", "names a file that does not exist"),
        ("broken.py:gradient", "cannot be read: SyntaxError"),
    ],
)
def test_a_wrong_file_is_refused_before_it_is_executed(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("raise SystemExit('executed')\ndef gradient(): ...", encoding="utf-8")
    Path("broken.py").write_text("def gradient(:", encoding="utf-8")
    with pytest.raises(ProtocolError, match=sentence):
        Protocol(estimator=name)


def test_a_file_is_identified_by_its_content_and_its_directory_is_not_stored(tmp_path: Path) -> None:
    names = [str(tmp_path / folder / "mine.py") + ":gradient" for folder in ("a", "b", "c")]
    for name, text in zip(names, (GRADIENT, GRADIENT, GRADIENT + "\n"), strict=True):
        file = Path(name.rpartition(":")[0])
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
    assert [stored_name(name) for name in names] == ["mine.py:gradient"] * 3
    assert Protocol(estimator=names[0]).decisive()["estimator"] == "mine.py:gradient"
    packages = [find_estimator(name).package for name in names]
    assert packages[0] == packages[1] != packages[2]


@pytest.mark.slow
def test_an_audit_with_a_function_of_a_file_gives_the_records_of_saliency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("private").mkdir()
    Path("private/mine.py").write_text(GRADIENT, encoding="utf-8")
    common = ["--data", "sample:co2", "--settings", "96x24", "--series", "1", "--seeds", "1", "--json"]
    for name in ("private/mine.py:gradient", "saliency", "captum:Saliency"):
        assert main(["audit", "bolt-mini", *common, "--estimator", name, "--out", "out"]) == 0
        assert json.loads(capsys.readouterr().out)["models"][0]["runs"] > 0
    records = read(Path("out/ledger.db")).set_index("estimator")
    assert sorted(records.index) == ["captum:Saliency", "mine.py:gradient", "saliency"]
    assert set(records.status) == {"done"}
    for name in ("g_own", "g_margin", "rank"):
        assert records[name].to_numpy() == pytest.approx(records.loc["saliency", name], rel=1e-4)
    assert records.loc["mine.py:gradient", "estimator_package"].startswith("mine.py sha256 ")
    assert records.loc["captum:Saliency", "estimator_package"].startswith("captum ")
    assert b"private/" not in Path("out/ledger.db").read_bytes()
