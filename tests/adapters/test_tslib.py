"""Runs of a Time-Series-Library checkout, on a stand-in: the experiment's step, marks, isolation and refusals."""

import json
import math
import os
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.mutated import mutated_class
from helpers.tiny import forecast_and_gradient, hard_windows, series
from helpers.tiny_tslib import HORIZON, LABEL, LOOKBACK, build, checkout, run_name, traces, train

from hrx import explain
from hrx.adapters import ModelError, load, locate, locate_each, trained_setting
from hrx.adapters.formats import tslib as adapter
from hrx.adapters.formats.tslib_run import checkout_run
from hrx.api.audit_plan import family_of
from hrx.audit.admission import EQUIVALENCE_LIMIT, admit, parity
from hrx.cli.main import main
from hrx.reports import read


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("tslib") / "checkout")


@pytest.fixture(scope="module")
def marked(stand_in: Path) -> str:
    """A run of a model that reads marks and decoder input, detaches and writes in place."""
    return train(stand_in, "Marked")


@pytest.fixture(scope="module")
def coupled(stand_in: Path) -> str:
    return train(stand_in, "TimesNet")


def several(count: int, variates: int = 3) -> torch.Tensor:
    return torch.stack([series(count, LOOKBACK, seed) for seed in range(variates)], dim=2)


@pytest.mark.parametrize("which", ["marked", "coupled"])
def test_a_run_passes_every_check(which: str, request: pytest.FixtureRequest) -> None:
    model = load(request.getfixturevalue(which))
    checks = admit(model, series(1, LOOKBACK), HORIZON)
    assert [check for check in checks if not check.passed] == []
    assert "float64" in checks[-1].note
    assert model.unloaded() == ()
    assert ("on the calendar" in model.official_call) == (which == "marked")
    for name, x in hard_windows(LOOKBACK).items():
        assert parity(model, x, HORIZON) <= 1e-6, name


def test_the_forecast_is_that_of_the_module_on_window_decoder_input_and_calendar(stand_in: Path, marked: str) -> None:
    sizes = {"seq_len": LOOKBACK, "label_len": LABEL, "pred_len": HORIZON, "hidden": [6, 5], "bias": True}
    module = build(stand_in, "Marked")(SimpleNamespace(**sizes, embed="timeF", enc_in=1, dec_in=1, c_out=1))
    weights = stand_in / "checkpoints" / run_name("Marked") / "checkpoint.pth"
    module.load_state_dict(torch.load(weights, weights_only=True))
    hours = torch.arange(LOOKBACK + HORIZON)
    marks = torch.stack([hours % 24 / 23 - 0.5, hours // 24 / 6 - 0.5], dim=1)  # Monday at midnight is (-0.5, -0.5)
    x = series(1, LOOKBACK)
    decoder = torch.cat([x[:, -LABEL:], torch.zeros(1, HORIZON)], dim=1)
    expected = module.eval()(
        x[..., None].clone(), marks[None, :LOOKBACK], decoder[..., None], marks[None, LOOKBACK - LABEL :]
    )
    model = load(marked)
    torch.testing.assert_close(model.forward(x, HORIZON), expected[:, -HORIZON:, 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(model.official(x, 3), expected[:, -HORIZON:, 0][:, :3], rtol=0, atol=1e-6)


def test_a_detached_mean_is_part_of_the_gradient(marked: str) -> None:
    model, x = load(marked), series(2, LOOKBACK)
    _, gradient = forecast_and_gradient(model, x, HORIZON)
    step = 1e-2
    moved = [model.official(x + sign * step, HORIZON).sum(dim=1) for sign in (1, -1)]
    torch.testing.assert_close(gradient.sum(dim=1), (moved[0] - moved[1]) / (2 * step), rtol=2e-3, atol=2e-3)


_START = "windows[:, lookback - self._configs.label_len :]"
MUTATIONS = {
    "decoder input left out": (_START, f"0 * {_START}"),
    "decoder starts with the window": (_START, "windows[:, : self._configs.label_len]"),
    "ones in the horizon": ("ahead = windows.new_zeros", "ahead = windows.new_ones"),
    "marks left out": ("(mark.to(windows).expand(", "(0 * mark.to(windows).expand("),
    "step off by one": ("y = output[:, -self._configs.pred_len :]", "y = output[:, -self._configs.pred_len - 1 : -1]"),
    "first variate": ("y = y[..., -1:] if last", "y = y[..., :1] if last"),
}  # fmt: skip
"""A mistake in the forward: what stands there, and what stands there instead."""


@pytest.mark.parametrize("mistake", MUTATIONS)
def test_a_mistake_in_the_forward_is_refused(
    stand_in: Path, marked: str, target: str, tmp_path: Path, mistake: str
) -> None:
    located: Any = locate(target if "variate" in mistake else marked)
    model = mutated_class(*MUTATIONS[mistake], located.family.loader, tmp_path)(located.checkpoint, located.identity)
    x = several(2) if "variate" in mistake else series(2, LOOKBACK) * torch.tensor([[0.5], [3.0]])
    assert parity(located.load(), x, HORIZON) <= EQUIVALENCE_LIMIT
    assert not parity(model, x, HORIZON) <= EQUIVALENCE_LIMIT


def test_a_model_that_couples_the_windows_of_a_batch_gets_one_per_call_and_says_so(coupled: str) -> None:
    model, x = load(coupled), series(3, LOOKBACK) * torch.tensor([[0.5], [3.0], [1.0]])
    assert model.official_call.endswith(", one window per call")
    apart = torch.cat([model.official(row, HORIZON) for row in x.split(1)])
    torch.testing.assert_close(model.official(x, HORIZON), apart, rtol=0, atol=0)
    torch.testing.assert_close(model.forward(x, HORIZON), apart, rtol=1e-5, atol=1e-5)
    together = model._base.official(x, HORIZON)  # type: ignore[attr-defined]
    assert (together - apart).abs().max() > 1e-3


@pytest.fixture(scope="module")
def target(stand_in: Path) -> str:
    """A run that reads three variates and forecasts the last."""
    return train(stand_in, "Marked", features="MS")


def test_a_run_of_several_variates_reads_them_together(stand_in: Path, target: str) -> None:
    x = several(2)
    every, last = load(train(stand_in, "Un_Marked", features="M")), load(target)
    assert every.forward(x, HORIZON).shape == (2, HORIZON, 3)
    assert parity(every, x, HORIZON) <= 1e-6
    assert (last.forward(x, HORIZON).shape, last.limits.predicted) == ((2, HORIZON, 1), (2,))
    assert parity(last, x, HORIZON) <= 1e-6
    with pytest.raises(ModelError, match="reads 3 variates together, not one"):
        last.forward(x[..., 0], HORIZON)


def test_arguments_are_the_defaults_then_the_name_then_the_file(stand_in: Path) -> None:
    name = train(stand_in, "Un_Marked", embed="fixed", arguments={"hidden": [4, 5], "moving_avg": 25})
    arguments = locate(name).checkpoint.arguments  # type: ignore[attr-defined]
    expected = {"model": "Un_Marked", "data": "ETTh1", "freq": "h", "hidden": [4, 5], "bias": True, "use_amp": False}
    expected |= {"seq_len": LOOKBACK, "d_ff": 32, "factor": 3, "embed": "fixed", "enc_in": 1, "moving_avg": 25}
    assert {key: arguments[key] for key in expected} == expected
    assert "workers" not in arguments  # computed in run.py, so its source does not say it
    assert parity(load(name), series(2, LOOKBACK), HORIZON) <= 1e-6  # marks are whole numbers: month, day, …
    file = {"model": "Marked", "task_name": "long_term_forecast", "features": "S", "embed": "timeF"}
    file |= {"seq_len": LOOKBACK, "label_len": LABEL, "pred_len": HORIZON}  # type: ignore[dict-item]
    named = load(train(stand_in, "Marked", "renamed", arguments=file))
    assert parity(named, series(2, LOOKBACK), HORIZON) <= 1e-6


def test_the_facts_of_a_training_are_what_name_and_file_say_and_nothing_is_taken_from_the_defaults(
    stand_in: Path,
) -> None:
    given = {"learning_rate": 0.003, "root_path": "/home/someone/data/ETT", "train_epochs": 7}
    name = train(stand_in, "Marked", run_name("Marked").replace("Exp", "Facts"), arguments=given)
    facts = json.loads(checkout_run(name.removeprefix("tslib:")).architecture.training)
    assert (facts["by"], facts["training_rows"]) == ("Time-Series-Library", "unknown")
    assert (facts["learning_rate"], facts["train_epochs"]) == (0.003, 7)
    assert (facts["batch_size"], facts["patience"], facts["loss"]) == ("unknown",) * 3
    assert facts["arguments"]["root_path"] == "ETT"


def test_python_standardises_the_values_of_a_run_by_the_series_before_its_test_region_and_notes_it(marked: str) -> None:
    values = 5000 + series(1, 3 * LOOKBACK)[0].numpy()
    x = explain(marked, values, HORIZON)
    before = values[: len(values) - max(math.ceil(len(values) / 5), HORIZON)]
    mean, std = before.mean(), before.std()
    assert "mean and std of series" in x.notes[-1]
    assert f"read (value - {mean:.6g}) / {std:.6g}" in x.notes[-1]
    read = torch.as_tensor((x.x - mean) / std).float()
    assert np.allclose(x.forecast, load(marked).official(read, HORIZON).numpy() * std + mean, rtol=1e-5)


def test_a_run_is_audited_at_its_own_setting_only(marked: str) -> None:
    located = locate(marked)
    assert trained_setting(located) == (LOOKBACK, HORIZON)
    assert locate_each(marked, [(96, 24)], as_trained=True)[0].settings == [(LOOKBACK, HORIZON)]
    assert family_of(marked) == located.identity.family == "tslib"
    limits = located.load().limits
    assert limits.refusal(96, HORIZON) == "takes a lookback of 32 only, not 96"
    assert limits.refusal(LOOKBACK, 9) == "forecasts at most 8 steps, not 9"


def test_two_checkouts_and_modules_of_the_user_do_not_mix(marked: str, tmp_path: Path) -> None:
    other = train(checkout(tmp_path / "other", scale="FACTOR = -2.0\n"), "Marked")
    mine = sys.modules["utils"] = ModuleType("utils")
    try:
        before, x, state = traces(), series(2, LOOKBACK), torch.get_rng_state()
        models = [load(name) for name in (marked, other, marked)]
        forecasts = [model.official(x, HORIZON) for model in models]
        assert torch.equal(torch.get_rng_state(), state)
        assert (traces(), sys.modules["utils"]) == (before, mine)
    finally:
        del sys.modules["utils"]
    assert torch.equal(forecasts[0], forecasts[2])
    assert (forecasts[0] - forecasts[1]).abs().max() > 1e-3
    assert max(parity(model, x, HORIZON) for model in models) <= 1e-6


def test_the_fingerprint_follows_code_arguments_and_weights(tmp_path: Path) -> None:
    path = checkout(tmp_path / "checkout")
    name = train(path, "Marked")
    folder, seen = path / "checkpoints" / run_name("Marked"), [locate(name).identity.fingerprint]
    changes = {path / "utils/scale.py": "FACTOR = 0.8\n", folder / "args.json": json.dumps({"freq": "d"})}
    for file, text in changes.items():
        file.write_text(text)
        seen.append(locate(name).identity.fingerprint)
    torch.save({}, folder / "checkpoint.pth")
    seen.append(locate(name).identity.fingerprint)
    (path / "models/TimesNet.py").write_text("")  # not the code of this run
    assert len({*seen, locate(name).identity.fingerprint}) == 4


def test_a_sampled_forecast_is_found_by_admission(stand_in: Path) -> None:
    checks = admit(load(train(stand_in, "Sampled")), series(1, LOOKBACK), HORIZON)
    assert "determinism" in {check.check for check in checks if not check.passed}


def _weights(content: object, **arguments: Any) -> Any:
    def make(path: Path) -> str:
        name = train(checkout(path), "Marked", arguments=arguments)
        if content is not None:
            torch.save(content, path / "checkpoints" / run_name("Marked") / "checkpoint.pth")
        return name

    return make


def _changed(model: str = "Marked", arguments: Any = None, name: str = "", **files: str) -> Any:
    def make(path: Path) -> str:
        folder = checkout(path, **files) / "checkpoints" / (name or run_name(model))
        folder.mkdir(parents=True)
        torch.save({}, folder / "checkpoint.pth")
        if arguments is not None:
            (folder / "args.json").write_text(arguments if isinstance(arguments, str) else json.dumps(arguments))
        return f"tslib:{path}:{folder.name}"

    return make


REFUSALS: dict[str, tuple[Any, str]] = {
    "no checkout": (lambda path: f"tslib:{path}:run", "is not a checkout of the Time-Series-Library"),
    "no runs": (lambda path: f"tslib:{checkout(path)}:run", "has no trained run"),
    "no run named": (lambda path: train(checkout(path), "Marked").rpartition(":")[0], "names no run. Write tslib:"),
    "other name": (lambda path: train(checkout(path), "Marked")[:-1] + "1", "The nearest of its 1 names: long"),
    "unknown layout": (_changed(name="my_run"), "its name does not say which model"),
    "unknown model": (_changed("Nobody"), "its name does not say which model"),
    "other task": (_changed(name="x", arguments={"model": "Marked", "task_name": "imputation", "seq_len": 9}),
                   "a run of the task 'imputation'"),
    "contradiction": (_changed(arguments={"seq_len": 96}), "has seq_len 96, and the folder's name says 32"),
    "not json": (_changed(arguments="{"), "cannot be read as JSON"),
    "a list": (_changed(arguments=[1]), "is not a JSON object of arguments"),
    "no number": (_changed(arguments={"enc_in": "7"}), "the argument enc_in is '7', not a whole number"),
    "no channel": (_changed(arguments={"enc_in": 0}), "enc_in 0 do not fit together"),
    "modes not stored": (_changed("FEDformer"), "FEDformer, which hrx cannot load: it draws the frequencies"),
    "run.py": (_changed(run="def"), "run.py cannot be read as Python"),
    "missing package": (_changed(Marked="import a_missing_package"), "No module named 'a_missing_package'. Install"),
    "ends the program": (_changed(Marked="raise SystemExit(3)"), "cannot be imported for Marked"),
    "missing argument": (_changed(Marked="def Model(configs):\n    configs.top_k"), "no attribute 'top_k'. Write"),
    "no module": (_changed(Marked="def Model(configs):\n    return 1"), "is a int, not a torch.nn.Module"),
    "reads data": (_changed(Marked="from data_provider.data_factory import data_provider as Model"),
                   "reads its training data when it is built"),
    "unknown frequency": (_weights(None, freq="fortnight"), "no time marks of the frequency 'fortnight'"),
    "missing weights": (_weights({}), "encoder.value.weight is absent in the file and shape"),
    "other shape": (_weights({"encoder.value.weight": torch.zeros(9, 1)}),
                    r"encoder.value.weight is shape \(9, 1\) in the file and shape \(6, 1\) in the model"),
    "not a state dict": (_weights(torch.zeros(3)), "not a state dict"),
    "a pickled module": (_weights(torch.nn.Linear(2, 2)), "cannot be read as weights"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_run_that_cannot_be_loaded_gets_a_sentence(tmp_path: Path, case: str) -> None:
    make, sentence = REFUSALS[case]
    with pytest.raises(ModelError, match=sentence):
        load(make(tmp_path / "checkout"))


def test_an_audit_measures_a_run_and_prints_nothing_of_the_checkout(
    marked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ["audit", marked, "--data", "sample:elnino", "--seeds", "1", "--workers", "0"]
    assert main([*request, "--out", str(tmp_path / "out")]) == 0
    (record,) = read(tmp_path / "out" / "ledger.db").to_dict("records")
    assert (record["status"], record["lookback"], record["horizon"]) == ("done", LOOKBACK, HORIZON)
    assert record["model"] == run_name("Marked").removeprefix("long_term_forecast_")
    called = "Exp_Long_Term_Forecast.vali, on the calendar from 2018-01-01"
    assert (record["checkpoint"], record["official_call"]) == (run_name("Marked"), called)
    assert "evaluating" not in capsys.readouterr().out


REAL = ("Autoformer", "DLinear", "LightTS", "PatchTST", "SegRNN", "TiDE", "TimesNet", "Transformer", "iTransformer")


@pytest.mark.parametrize("features", ["S", "M"])
@pytest.mark.parametrize("name", REAL)
def test_a_run_of_a_real_checkout_forecasts_as_its_experiment_does(tmp_path: Path, name: str, features: str) -> None:
    if not (real := os.environ.get("HRX_TSLIB")):
        pytest.skip("HRX_TSLIB is not set: it names a checkout of the Time-Series-Library")
    for entry in Path(real).resolve().iterdir():
        if entry.name != "checkpoints":
            (tmp_path / entry.name).symlink_to(entry)
    folder = tmp_path / "checkpoints" / run_name(name, features)
    folder.mkdir(parents=True)
    arguments = {"seg_len": HORIZON, "patch_len": HORIZON, "moving_avg": 5}
    (folder / "args.json").write_text(json.dumps(arguments))
    torch.save({}, folder / "checkpoint.pth")
    located: Any = locate(f"tslib:{tmp_path}:{folder.name}")
    configs = Namespace(**located.checkpoint.arguments, device="cpu")
    with adapter._isolated(tmp_path):
        module = adapter._build(located.checkpoint, import_module(f"models.{name}").Model, configs)
    torch.manual_seed(1)
    state = module.state_dict()
    noisy = {key: v + 0.05 * torch.randn_like(v) if v.is_floating_point() else v for key, v in state.items()}
    torch.save(noisy, folder / "checkpoint.pth")
    model = load(f"tslib:{tmp_path}:{folder.name}")
    if features == "M":
        assert parity(model, several(3, configs.enc_in), HORIZON) <= 1e-6
        return
    assert [check for check in admit(model, series(1, LOOKBACK), HORIZON) if not check.passed] == []
