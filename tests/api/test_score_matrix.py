"""`hrx.score(matrix=…)` and `hrx score`: the matrix of another explainer, in every form that it may have."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import hrx
from hrx.cli import main
from hrx.errors import HrxError

LOOKBACK, HORIZON = 24, 12
DAYS = pd.date_range("2024-01-01", periods=300, freq="D")
MODEL = """
import torch

class Bent(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x[:, -12:] + 0.5 * x.mean(dim=1, keepdim=True))

def make():
    return Bent()
"""


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    values = np.sin(np.arange(300) / 4) + 0.3 * np.random.default_rng(0).normal(size=300)
    return pd.DataFrame({"ds": DAYS, "y": values})


@pytest.fixture(scope="module")
def model() -> hrx.adapters.Forecaster:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(LOOKBACK, 32), torch.nn.Tanh(), torch.nn.Linear(32, HORIZON))
    return hrx.from_module(module, name="small", limits=hrx.adapters.Limits(lookbacks=(LOOKBACK,)))


@pytest.fixture(scope="module")
def explained(model, frame) -> hrx.Explanation:
    return hrx.explain(model, frame, HORIZON)


def same(one, other) -> bool:
    return (one.raw, one.error, one.p_margin, one.rank, one.variance) == (
        other.raw, other.error, other.p_margin, other.rank, other.variance,
    ) and (one.shared_rows, one.variance_of) == (other.shared_rows, other.variance_of)  # fmt: skip


def test_the_input_gradient_scores_the_same_by_name_and_in_every_form(model, frame, explained, tmp_path) -> None:
    by_name = hrx.score(model, frame, HORIZON)
    assert by_name.variance_of == "series"
    table = explained.to_frame()
    table.to_csv(tmp_path / "x.csv", index=False)
    table.to_parquet(tmp_path / "x.parquet")
    explained.save(tmp_path / "x.npz")
    np.savez(tmp_path / "plain.npz", explained.matrix)
    matrix = explained.matrix
    neural = np.zeros((1, HORIZON, 1, 1, LOOKBACK, 2))
    neural[:, :, 0, 0, :, 0] = explained.signed
    shap = SimpleNamespace(values=explained.signed.swapaxes(1, 2), base_values=np.zeros(HORIZON))
    for given in (
        matrix, matrix[0], matrix[0].tolist(), torch.as_tensor(matrix), explained.signed, table,
        table.sample(frac=1, random_state=0), explained, tmp_path / "x.csv", str(tmp_path / "x.parquet"),
        tmp_path / "x.npz", tmp_path / "plain.npz", neural, {"DLinear": {"insample": torch.as_tensor(neural)}}, shap,
        matrix.swapaxes(1, 2), lambda x: matrix,
    ):  # fmt: skip
        found = hrx.score(model, frame, HORIZON, matrix=given)
        assert same(found, by_name), type(given)


def test_rows_of_the_scored_steps_are_scored_by_the_mean_of_these(model, frame, explained) -> None:
    scored = [1, 3, 4, 6, 7, 9, 10, 12]
    at = np.array(scored) - 1
    found = hrx.score(model, frame, HORIZON, matrix=explained.matrix[:, at])
    by_name = hrx.score(model, frame, HORIZON, protocol=hrx.Protocol(estimator="saliency"))
    assert same(found, by_name)
    assert found.shared_rows == 8
    more = [*scored[:2], 5, *scored[3:]]
    with pytest.raises(HrxError, match="has no row for step 4, which is scored"):
        hrx.score(model, frame, HORIZON, matrix=explained.matrix[:, at], steps=more)
    nine = sorted({*scored, 2})
    assert hrx.score(model, frame, HORIZON, matrix=explained.matrix[:, np.array(nine) - 1], steps=nine).shared_rows == 9


def test_windows_of_the_held_out_part_are_those_of_explain(model, frame, explained) -> None:
    by_name = hrx.score(model, frame, HORIZON, windows=4)
    held_out = hrx.explain(model, frame, HORIZON, held_out=True).held_out[0].quantities
    assert by_name.windows == held_out.windows == 4
    np.testing.assert_allclose(by_name.normalised, held_out.normalised, rtol=1e-3, atol=1e-4)
    seen = []

    def gradients(x):
        seen.append(x)
        rows = [
            torch.autograd.functional.jacobian(lambda w: model.forward(w[None], HORIZON)[0], torch.tensor(one))
            for one in x
        ]
        return torch.stack(rows)

    own = hrx.score(model, frame, HORIZON, windows=4, matrix=gradients, lookback=LOOKBACK)
    np.testing.assert_allclose(own.normalised, by_name.normalised, rtol=1e-4, atol=1e-5)
    assert seen[0].shape == (4, LOOKBACK)
    one_for_all = hrx.score(model, frame, HORIZON, windows=4, matrix=explained.matrix[0])
    assert one_for_all.windows == 4
    assert one_for_all.rank == pytest.approx(hrx.score(model, frame, HORIZON, matrix=explained.matrix[0]).rank)


@pytest.mark.slow
def test_matrices_of_random_numbers_are_seldom_called_faithful(model, frame) -> None:
    small = frame[-60:]
    found = []
    for seed in range(200):
        noise = np.random.default_rng(seed).random((HORIZON, LOOKBACK))
        found.append(hrx.score(model, small, HORIZON, matrix=noise, protocol=hrx.Protocol(draws=2, seed=seed)).p_margin)
    assert np.mean(np.array(found) < 0.05) <= 0.07
    true = hrx.score(model, small, HORIZON)
    assert true.p_margin < 0.05  # and the gradient is


def altered(x: hrx.Explanation, at: tuple[int, ...], value: float) -> np.ndarray:
    matrix = x.matrix.copy()
    matrix[at] = value
    return matrix


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x: x.matrix[0, 0], r"matrix of shape \(24,\) is one vector .* its gains are zero by definition"),
        (lambda x: x.matrix[:, :1], "is one vector for the whole forecast"),
        (lambda x: x.matrix[:, :5], "matrix has 5 rows, and the horizon has 12 steps, 8 of them scored"),
        (lambda x: x.matrix[:, :, :20], "takes a lookback of 24 only, not 20"),
        (lambda x: np.tile(x.matrix, (3, 1, 1)), "matrix explains 3 windows, but 1 are scored"),
        (lambda x: altered(x, (0, 2, 23), np.nan), "are NaN or infinite, the first at window 1, step 3, position -1"),
        (lambda x: 0 * x.matrix, "matrix is zero everywhere"),
        (lambda x: "steps", "has the suffix ''. Give a matrix as .npz, .csv or .parquet"),
        (lambda x: object(), "matrix is a object, not an array of numbers"),
        (lambda x: x.to_frame().drop(columns="position"), "matrix has no column 'position'"),
        (lambda x: x.to_frame().query("position != -3"), "matrix lacks entries"),
        (lambda x: pd.concat([x.to_frame()] * 2), "matrix has two rows for step 1 and position -24"),
        (lambda x: x.to_frame().assign(model="other"), "matrix is of the model other, not of small"),
        (lambda x: x.to_frame().assign(value=0.0), "matrix is of other values than the windows that are scored"),
        (lambda x: {"a": {"insample": 1}, "b": {"insample": 1}}, "not the explanations of one model"),
    ],
)  # fmt: skip
def test_a_matrix_that_cannot_be_scored_gets_a_sentence(model, frame, explained, make, sentence) -> None:
    with pytest.raises(HrxError, match=sentence):
        hrx.score(model, frame, HORIZON, matrix=make(explained))


def test_a_matrix_of_another_model_or_series_is_refused(model, frame, explained) -> None:
    torch.manual_seed(5)
    other = hrx.from_module(torch.nn.Linear(LOOKBACK, HORIZON), name="other")
    with pytest.raises(HrxError, match=r"matrix is of small .* and other has other weights"):
        hrx.score(other, frame, HORIZON, matrix=explained)
    with pytest.raises(HrxError, match="is of other values than the windows that are scored: it holds 1 that end with"):
        hrx.score(model, frame[:-1], HORIZON, matrix=explained)
    with pytest.raises(HrxError, match="The data hold 2 series: a, b"):
        hrx.score(model, frame.assign(a=frame.y, b=frame.y)[["ds", "a", "b"]], HORIZON, matrix=explained)
    with pytest.raises(HrxError, match="steps= names the rows of a matrix"):
        hrx.score(model, frame, HORIZON, steps=[1, 2])
    with pytest.raises(HrxError, match="windows= cuts windows of one series"):
        hrx.score(model, np.random.default_rng(0).normal(size=(3, LOOKBACK)), HORIZON, windows=2)


def test_the_command_scores_a_file(tmp_path, frame, capsys) -> None:
    frame.to_csv(tmp_path / "sales.csv", index=False)
    (tmp_path / "bent.py").write_text(MODEL)
    name = f"module:{tmp_path}/bent.py:make"
    x = hrx.explain(name, str(tmp_path / "sales.csv"), HORIZON, lookback=LOOKBACK)
    x.to_frame().to_csv(tmp_path / "x.csv", index=False)
    words = ["score", name, "--matrix", f"{tmp_path}/x.csv", "--series", f"{tmp_path}/sales.csv", "--horizon", "12"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = x.score(protocol=hrx.Protocol(draws=16))
    assert found["g_margin"]["value"] == pytest.approx(expected.g_margin)
    assert found["p_margin"] == expected.p_margin
    assert main([*words, "--windows", "3"]) == 0
    assert "p_margin" in capsys.readouterr().out
    assert main([*words[:3], f"{tmp_path}/none.csv", *words[4:]]) == 2
    assert "none.csv" in capsys.readouterr().err
