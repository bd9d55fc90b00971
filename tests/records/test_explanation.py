"""`Explanation`: its signs, scores, figures and file, what a notebook shows, and the names of `import hrx`."""

from __future__ import annotations

import html
import inspect
import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import hrx
from hrx.errors import HrxError
from hrx.records.reading import lag_profile

LOOKBACK, HORIZON = 32, 8


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(LOOKBACK, HORIZON))


@pytest.fixture(scope="module")
def model(weights) -> Any:
    """Linear: the derivative of step h is the column h of its weights."""
    matrix = torch.as_tensor(weights).float()
    return hrx.from_module(lambda x: x @ matrix.to(x), name="linear")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    index = pd.date_range("2024-01-01", periods=50, freq="D", tz="Europe/Paris")
    return pd.DataFrame(rng.normal(size=(50, 2)), index=index, columns=["a", "b"])


@pytest.fixture(scope="module")
def explained(model, frame) -> hrx.Explanation:
    return hrx.explain(model, frame, HORIZON, lookback=LOOKBACK)


def test_the_sign_is_that_of_the_derivative_and_a_contribution_adds_up_to_the_forecast(
    explained, model, frame, weights
):
    np.testing.assert_allclose(explained.signed, np.broadcast_to(weights.T, (2, HORIZON, LOOKBACK)), rtol=1e-5)
    parts = hrx.explain(model, frame, HORIZON, lookback=LOOKBACK, estimator="integrated_gradients", steps=[2, 8])
    flat = np.broadcast_to(parts.x.mean(axis=1, keepdims=True), parts.x.shape) @ weights
    np.testing.assert_allclose(parts.signed.sum(axis=2), (parts.forecast - flat)[:, [1, 7]], atol=1e-4)
    assert parts.steps == (2, 8)
    unsigned = hrx.explain(model, frame, HORIZON, lookback=LOOKBACK, estimator="occlusion")
    assert unsigned.signed is None
    assert "signed" not in unsigned.to_frame()
    with pytest.raises(HrxError, match=r"needs contributions with a sign, and occlusion has none"):
        unsigned.plot_waterfall(1)


def test_the_frame_holds_every_entry_once_under_its_series_step_and_position(explained):
    frame = explained.to_frame()
    assert len(frame) == 2 * HORIZON * LOOKBACK
    for row in frame.sample(20, random_state=0).itertuples():
        number = explained.items.index(row.item)
        assert row.importance == explained.matrix[number, row.step - 1, LOOKBACK + row.position]
        assert row.signed == explained.signed[number, row.step - 1, LOOKBACK + row.position]
        assert row.value == explained.x[number, LOOKBACK + row.position]
        assert row.forecast_time - row.input_time == pd.Timedelta(days=row.lag)


def test_scores_are_those_of_the_measurement_on_tensors_one_series_at_a_time(explained, model, frame, weights):
    protocol = hrx.Protocol(draws=4)
    window = torch.as_tensor(frame["b"].to_numpy()[None, -LOOKBACK:]).float()
    # The last fifth of 50 values has three starts with eight known steps.
    past = np.stack([frame["b"].to_numpy()[start - LOOKBACK : start] for start in (40, 41, 42)])
    variance = float(np.var(past @ weights))
    expected = hrx.audit.score(model, window, HORIZON, protocol=protocol, variance=variance)
    found = explained["b"].score(protocol=protocol)
    assert found.normalised == pytest.approx(expected.normalised, rel=1e-4)
    assert (found.variance_of, found.variance_windows, found.variance_span) == ("series", 3, 0.25)
    assert "These start within 0.2 horizons, less than 5" in str(found)
    of_frame = hrx.score(model, frame["b"], HORIZON, lookback=LOOKBACK, protocol=protocol)
    assert of_frame.error == pytest.approx(expected.error, rel=1e-4)
    windows = torch.as_tensor(frame.to_numpy().T[:, -LOOKBACK:].copy()).float()
    together = hrx.score(model, windows, HORIZON, protocol=protocol)
    assert together.normalised == hrx.audit.score(model, windows, HORIZON, protocol=protocol).normalised
    assert together.variance_of == "windows"
    assert "so they cannot be compared with an audit's" in str(together)
    with pytest.raises(HrxError, match=r"holds 2 series.*x\['a'\].score\(\)"):
        explained.score()
    with pytest.raises(HrxError, match=r"Step 2 is scored and has no row"):
        hrx.explain(model, frame["a"], HORIZON, lookback=LOOKBACK, steps=[1, 8]).score()
    other = hrx.from_module(lambda x: x[:, :8] * 1.0, name="other")
    with pytest.raises(HrxError, match=r"other has other weights than the model of this explanation, linear"):
        explained["a"].score(other)


def test_one_window_of_a_series_is_scored_on_the_scale_of_an_audit(tmp_path):
    """A random walk: the forecasts of one window vary far less than those of the series."""
    values = 50 + np.random.default_rng(5).normal(size=600).cumsum()
    module = torch.nn.Linear(48, 12, bias=False)
    torch.nn.init.constant_(module.weight, 0.01)
    with torch.no_grad():
        module.weight[range(12), range(47, 35, -1)] = 1.0  # each step repeats one of the last values
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=600, freq="h"), "y": values})
    starts = np.unique(np.rint(np.linspace(480, 588, 64)).astype(int))
    x = torch.as_tensor(np.stack([values[start - 48 : start] for start in starts]), dtype=torch.float32)
    with torch.no_grad():
        variance = float(module(x).double().numpy().var())
    q = hrx.score(module, frame, 12, lookback=48)
    assert q.variance == pytest.approx(variance, rel=1e-4)
    assert (q.variance_of, q.variance_windows, q.variance_span) == ("series", 64, 9.0)

    audited = hrx.run_audit(module, data=frame, settings="48x12", seeds=1, draws=32, out=tmp_path / "out", workers=0)
    (record,) = hrx.read(audited.ledger).to_dict("records")
    assert record["variance"] * values[:480].std() ** 2 == pytest.approx(variance, rel=1e-4)
    (start,) = json.loads(record["starts"])
    same = hrx.score(module, frame[:start], 12, lookback=48, protocol=hrx.Protocol(draws=32))
    for name in ("g_own", "g_shuffled", "g_margin"):
        mine = getattr(same.raw, name) / variance
        error = record[f"{name}_se"] + getattr(same.error, name) * same.variance / variance
        assert abs(mine - record[name]) < 4 * error
    assert record["variance_run"] < record["variance"] / 5
    assert not q.sparse
    assert (record["shared_rows"], record["sparse"], record["fine"]) == (12, 0, 0)


def test_a_file_gives_back_everything_but_the_model(explained, model, tmp_path):
    path = explained.save(tmp_path / "x.npz")
    again = hrx.Explanation.load(path)
    pd.testing.assert_frame_equal(again.to_frame(), explained.to_frame())
    for name in ("items", "steps", "seasons", "scales", "model", "method", "windows", "notes"):
        assert getattr(again, name) == getattr(explained, name)
    assert again.model.fingerprint == explained.model.fingerprint
    np.testing.assert_array_equal(again.forecast, explained.forecast)
    with pytest.raises(HrxError, match=r"read from a file, without its model"):
        again["a"].score()
    assert again["a"].score(model).rank == explained["a"].score().rank
    numbered = hrx.explain(model, pd.DataFrame({"unique_id": "u", "ds": range(5, 45), "y": np.arange(40.0)}), HORIZON,
                           lookback=LOOKBACK)  # fmt: skip
    numbered.save(path)
    assert list(hrx.Explanation.load(path).times[0].forecasts) == list(range(45, 45 + HORIZON))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a file", "other"])
def test_a_file_that_is_not_an_explanation_is_a_sentence(content, tmp_path):
    path = tmp_path / "x.npz"
    if content == "other":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("words.txt", "nothing")
    else:
        path.write_bytes(content)
    with pytest.raises(HrxError, match="is not a valid explanation"):
        hrx.Explanation.load(path)
    with pytest.raises(HrxError, match="does not exist"):
        hrx.Explanation.load(tmp_path / "none.npz")


def test_an_importance_by_lag_is_the_mean_share_of_the_rows_that_reach_it():
    matrix, steps = np.random.default_rng(0).uniform(size=(3, 5)), np.array([1, 2, 6])
    expected = []
    for lag in range(1, 6):
        shares = [
            matrix[r, 5 + (h - 1 - lag)] / matrix[r].sum() for r, h in enumerate(steps) if 0 <= 5 + h - 1 - lag < 5
        ]
        expected.append(np.mean(shares) if shares else np.nan)
    np.testing.assert_allclose(lag_profile(matrix, steps), expected)


def test_figures_show_dates_the_season_and_the_contributions(explained, weights):
    heat = explained.plot("b")
    assert "series 2 of 2" in heat.get_suptitle()
    assert heat.axes[2].get_xticklabels()[0].get_text() == str(explained.times[1].inputs[0].date())
    image = heat.axes[1].get_images()[0].get_array()
    np.testing.assert_allclose(image, explained.matrix[1] / explained.matrix[1].max(), rtol=1e-6)
    rows = explained.plot(by_row=True, figsize=(5, 4))
    assert rows.get_size_inches().tolist() == [5, 4]
    np.testing.assert_allclose(rows.axes[1].get_images()[0].get_array().max(axis=1), 1)
    own = Figure().add_subplot()
    assert explained.plot(ax=own) is explained.plot_profile(ax=own) is own.figure
    assert len(own.images) == 1
    steps = explained.plot_steps([1, 8])
    np.testing.assert_allclose(steps.axes[2].patches[0].get_data().values, explained.matrix[0, 7])
    marked = [line.get_xdata()[0] for line in explained.plot_profile().axes[0].lines[1:]]
    assert marked == [7, 14, 21, 28]
    fall = explained.plot_waterfall(3, top=4)
    contributions = weights[:, 2] * (explained.x[0] - explained.x[0].mean())
    largest = sorted(contributions, key=abs, reverse=True)[:4]
    widths = [bar.get_width() for bar in fall.axes[0].patches]
    np.testing.assert_allclose(widths, [*largest, contributions.sum() - sum(largest)], rtol=1e-4)
    lines = [line for line in fall.axes[0].lines if line.get_linestyle() == "--"]
    assert max(line.zorder for line in lines) < min(bar.zorder for bar in fall.axes[0].patches)
    assert all(label.get_bbox_patch().get_facecolor() == (1, 1, 1, 1) for label in fall.axes[0].texts)
    assert heat._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(HrxError, match=r"Step 9 has no row in this explanation. Steps count from 1; it has 1 to 8"):
        explained.plot_steps([9])
    with pytest.raises(HrxError, match=r"Unknown series 'c'"):
        explained.plot("c")


def test_a_notebook_shows_an_explanation_with_names_escaped(model, frame):
    x = hrx.explain(model, frame[["a"]].rename(columns={"a": "<b>"}), HORIZON, lookback=LOOKBACK)
    shown = x._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>&lt;" not in shown
    assert shown.count("data:image/png;base64,") == 1
    assert "g_margin" in x.score()._repr_html_()
    assert "±" in str(x.score())


def test_importing_hrx_imports_neither_torch_nor_pandas_and_tab_finds_its_names():
    code = "import sys, hrx; print(sorted({'torch', 'pandas', 'matplotlib'} & set(sys.modules)), *dir(hrx))"
    first, *names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert first == "[]"
    public = {"load", "from_module", "explain", "score", "run_audit", "read", "tables", "compare", "Protocol"}
    assert public | {"Explanation", "adapters", "audit", "reports"} <= set(names)
    for name in sorted(public):
        assert callable(getattr(hrx, name))
        assert inspect.getdoc(getattr(hrx, name))
    with pytest.raises(AttributeError, match="no attribute 'explian'"):
        hrx.explian  # noqa: B018


def _example(value: Any) -> str:
    """The indented example of a docstring."""
    lines = inspect.getdoc(value).splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))


@pytest.fixture(scope="module")
def audited(tmp_path_factory) -> Path:
    """A folder in which the example of `run_audit` was run."""
    folder = tmp_path_factory.mktemp("audited")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        namespace: dict[str, Any] = {"hrx": hrx}
        exec(_example(hrx.run_audit), namespace)
        assert namespace["summary"].models[0].verdict
    return folder


@pytest.mark.parametrize(
    "name", ["explain", "score", "Explanation", "read", "tables", "compare", "load", "from_module"]
)
def test_the_example_of_a_docstring_runs(name, audited, monkeypatch):
    monkeypatch.chdir(audited)
    code = _example(getattr(hrx, name))
    assert "hrx." in code
    exec(compile(code, name, "exec"), {"hrx": hrx})


@pytest.mark.slow
def test_an_audit_from_python_is_that_of_the_command(audited, tmp_path, capsys):
    from hrx.cli import main

    again = hrx.run_audit(data="sample:elnino/M", settings=["96x24"], seeds=1, out=audited / "my-audit")
    assert capsys.readouterr().out == ""
    words = ["--data", "sample:elnino/M", "--settings", "96x24", "--seeds", "1", "--out", str(tmp_path)]
    assert main(["audit", "bolt-mini", *words]) == again.exit == 0
    assert str(again).split("\nNEXT")[0] in capsys.readouterr().out
    mine, theirs = again.runs(), hrx.read(tmp_path / "ledger.db")
    assert list(mine["key"]) == list(theirs["key"])
    assert list(mine["g_margin"]) == list(theirs["g_margin"])
    assert html.escape(again.screen.finding[0][0]) in again._repr_html_()
    (table,) = hrx.tables(mine, ["models"])
    assert table.to_html() in table._repr_html_()
    assert html.escape(hrx.compare(mine, theirs).verdict) in hrx.compare(mine, theirs)._repr_html_()


def test_a_model_and_a_frame_in_memory_are_audited(tmp_path, frame):
    class Season(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, -8:] * 1.0

    t = np.arange(300)
    data = pd.DataFrame({"a": np.sin(t / 3) + 0.01 * t, "b": np.cos(t / 5)}, index=pd.date_range("2024", periods=300))
    data.iloc[280, 0] = np.nan
    summary = hrx.run_audit(Season(), data=data, settings=["32x8"], out=tmp_path, seeds=1)
    runs = summary.runs()
    assert sorted(runs["series"]) == ["a", "b"]
    assert set(runs["dataset"]) == {"data/D"}
    assert sorted(runs["missing"]) == [0, 1]
    with pytest.raises(HrxError, match=r"runs in this process only. Drop workers"):
        hrx.run_audit(Season(), data=data, out=tmp_path, workers=1)
    with pytest.raises(HrxError, match=r"Unknown keyword 'nonsense'"):
        hrx.run_audit("bolt-mini", out=tmp_path, nonsense=1)
