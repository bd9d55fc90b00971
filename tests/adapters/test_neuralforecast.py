"""Models that neuralforecast saved: every class against `NeuralForecast.predict`, its scalers and losses, refusals."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.mutated import mutated_class
from helpers.tiny import forecast_and_gradient, hard_windows, series
from helpers.tiny_neuralforecast import HORIZON, LOOKBACK, MODELS, build, save

import hrx
from hrx.adapters import Forecaster, ModelError, load, locate, locate_each, trained_setting
from hrx.adapters.formats.trained import saved_models
from hrx.adapters.gradients import relative_difference
from hrx.audit.admission import EQUIVALENCE_LIMIT, Check, admit, parity
from hrx.audit.attribution.gradients import jacobian
from hrx.audit.runner.run import in_units
from hrx.cli.main import main
from hrx.gift_eval import Series, cut
from hrx.gift_eval.series import OfficialSplit
from hrx.records.ledger import Ledger
from hrx.reports import read

pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
COUPLED_OR_DETACHED = ("TimesNet", "TSMixer")
"""In-place normalisation and windows that depend on each other; detached statistics."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model of every class."""
    return save(tmp_path_factory.mktemp("saved") / "every", [build(name) for name in MODELS])


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model."""
    return save(tmp_path_factory.mktemp("saved") / "one", [build("NLinear")])


def slope_error(model: Any, x: torch.Tensor) -> float:
    """Gradient of the summed forecast along a direction, against a central difference of the official call."""
    twin, step, x = model.double(), 1e-6, x.double()
    direction = series(len(x), x.shape[1], seed=5).to(x)
    _, gradient = forecast_and_gradient(twin, x, HORIZON)
    ahead, behind = (twin.official(x + sign * step * direction, HORIZON).sum() for sign in (1, -1))
    slope = (gradient * direction).sum()
    return float((slope - (ahead - behind) / (2 * step)).abs() / slope.abs())


@pytest.mark.parametrize("name", MODELS)
def test_a_class_forecasts_as_predict_does_and_has_its_derivative(saved: Path, name: str) -> None:
    model = load(f"neuralforecast:{saved}:{name}")
    x = 2 * series(3, LOOKBACK) + 4
    assert parity(model, x, HORIZON) <= 1e-6
    assert relative_difference(model.forward(x[1:2], HORIZON), model.official(x, HORIZON)[1:2]) <= 1e-6
    assert slope_error(model, x[:2]) <= 1e-6
    assert model.unloaded() == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", COUPLED_OR_DETACHED)
def test_every_check_admits_a_class_that_detaches_writes_in_place_or_couples_windows(saved: Path, name: str) -> None:
    checks = admit(load(f"neuralforecast:{saved}:{name}"), series(1, LOOKBACK), HORIZON)
    assert [check for check in checks if not check.passed] == []
    assert "float64" in checks[-1].note


def determinism(model: Forecaster, x: torch.Tensor) -> Check:
    return next(check for check in admit(model, x, HORIZON) if check.check == "determinism")


def test_the_stored_seed_decides_the_keys_of_an_informer_and_a_sampled_forecast_is_found(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuralforecast import NeuralForecast

    import hrx.adapters.formats.neuralforecast as adapter

    x = series(2, LOOKBACK)
    model = load(f"neuralforecast:{saved}:Informer")
    assert determinism(model, x).passed
    library = NeuralForecast.load(str(saved))  # as a user calls it, whatever the state of torch's generator
    library.models = [one for one in library.models if repr(one) == "Informer"]
    torch.manual_seed(99)
    frame = pd.DataFrame({"unique_id": 0, "ds": np.arange(LOOKBACK), "y": x[0].numpy()})
    expected = torch.as_tensor(library.predict(frame)["Informer"].to_numpy(copy=True))
    torch.testing.assert_close(model.forward(x, HORIZON)[0], expected, rtol=0, atol=1e-6)
    library.models[0].random_seed = 2
    other = torch.as_tensor(library.predict(frame)["Informer"].to_numpy(copy=True))
    assert (other - expected).abs().max() > 1e-3
    monkeypatch.setattr(adapter, "_SEEDED", ())
    check = determinism(load(f"neuralforecast:{saved}:Informer"), x)
    assert not check.passed
    assert "the forecast is sampled" in check.note


@pytest.mark.parametrize("scaler", ["standard", "robust", "minmax", "minmax1", "invariant", "revin"])
def test_a_window_scaler_is_part_of_the_forecast(tmp_path: Path, scaler: str) -> None:
    model = load(str(save(tmp_path / "scaled", [build("MLP", scaler_type=scaler)])))
    x = 3 * series(2, LOOKBACK) + 7
    assert parity(model, x, HORIZON) <= 1e-6
    assert slope_error(model, x) <= 1e-6


@pytest.mark.parametrize("scaler", ["standard", "robust", "robust-iqr", "minmax"])
def test_a_local_scaler_is_fitted_to_the_window_as_predict_fits_it(tmp_path: Path, scaler: str) -> None:
    model = load(str(save(tmp_path / "local", [build("DLinear")], local_scaler=scaler)))
    for name, x in {"wave": 3 * series(2, LOOKBACK) + 7, **hard_windows(LOOKBACK)}.items():
        limit = 1e-4 if name == "far from zero" else 1e-6  # the mean of large numbers in float32
        assert parity(model, x, HORIZON) <= limit, name
        assert forecast_and_gradient(model, x, HORIZON)[1].isfinite().all(), name
    assert slope_error(model, 3 * series(2, LOOKBACK) + 7) <= 1e-6


@pytest.mark.parametrize(
    ("loss", "arguments"),
    [("MQLoss", {"level": [80, 90]}), ("HuberMQLoss", {"quantiles": [0.1, 0.5, 0.9]}), ("QuantileLoss", {"q": 0.5}),
     ("IQLoss", {})],
)  # fmt: skip
def test_the_point_forecast_of_a_loss_is_its_median_or_its_only_output(
    tmp_path: Path, loss: str, arguments: dict[str, Any]
) -> None:
    from neuralforecast.losses import pytorch as losses

    trained = build("MLP", loss=getattr(losses, loss)(**arguments), scaler_type="standard")
    model = load(str(save(tmp_path / "loss", [trained])))
    x = series(2, LOOKBACK) + 3
    assert parity(model, x, HORIZON) <= 1e-6
    assert slope_error(model, x) <= 1e-6


def test_a_model_of_several_series_reads_them_together(tmp_path: Path) -> None:
    path = save(tmp_path / "several", [build("iTransformer", n_series=3)], series=3)
    model = load(str(path))
    x = torch.stack([series(1, LOOKBACK, seed) for seed in range(3)], dim=2)
    assert model.forward(x, HORIZON).shape == (1, HORIZON, 3)
    assert parity(model, x, HORIZON) <= 1e-6
    with pytest.raises(ModelError, match="reads 3 variates together, not one"):
        model.forward(x[..., 0], HORIZON)


def refused_models() -> dict[str, tuple[Callable[[], Any], dict[str, Any], str]]:
    """A model, what its training needs beside it, and the reason."""
    from neuralforecast.losses import pytorch as losses

    wave = torch.arange(120).numpy()
    return {
        "sampling loss": (
            lambda: build("MLP", loss=losses.DistributionLoss("Normal", level=[80])), {},
            "was trained with DistributionLoss and samples its forecast",
        ),
        "exogenous": (
            lambda: build("MLP", hist_exog_list=["price"], futr_exog_list=["holiday"]),
            {"price": wave, "holiday": wave},
            "reads the exogenous variables price, holiday, which a series alone does not hold",
        ),
        "recurrent": (lambda: build("LSTM", recurrent=True), {}, "forecasts step by step from its own forecasts"),
        "boxcox": (lambda: build("MLP"), {"local_scaler": "boxcox"}, "has the local scaler boxcox"),
        "no median": (
            lambda: build("MLP", loss=losses.MQLoss(quantiles=[0.1, 0.9])), {}, "MQLoss and forecasts no median",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", ["sampling loss", "exogenous", "recurrent", "boxcox", "no median"])
def test_a_model_that_cannot_be_audited_is_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    make, training, reason = refused_models()[case]
    model = load(str(save(tmp_path / "refused", [make()], **training)))
    with pytest.raises(ModelError, match=reason):
        model.forward(series(1, LOOKBACK), HORIZON)
    assert reason in str(model.limits.refusal(LOOKBACK, HORIZON))


def test_a_directory_gives_all_its_models_and_a_verb_for_one_asks_for_a_name(saved: Path) -> None:
    found = locate_each(f"neuralforecast:{saved}", [(96, 24)], as_trained=True)
    assert sorted(choice.located.identity.model for choice in found) == sorted(f"every:{name}" for name in MODELS)
    assert {tuple(choice.settings) for choice in found} == {((LOOKBACK, HORIZON),)}
    assert len({choice.located.identity.fingerprint for choice in found}) == len(MODELS)
    assert locate_each(str(saved), [(96, 24)])[0].settings == [(96, 24)]
    with pytest.raises(ModelError, match=f"holds {len(MODELS)} models: Autoformer, .* neuralforecast:DIR:ALIAS"):
        locate(str(saved))
    with pytest.raises(ModelError, match=r"Unknown model 'NHIT'\. Did you mean 'NHITS'"):
        locate(f"neuralforecast:{saved}:NHIT")


def test_models_of_one_alias_are_named_by_their_files(one: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(one, tmp_path / "two")
    shutil.copy(copy / "NLinear_0.safetensors", copy / "NLinear_1.safetensors")
    assert locate(f"neuralforecast:{copy}:NLinear_1").identity.model == "two:NLinear_1"


@pytest.mark.parametrize(
    ("name", "depth"),
    [("DLinear", None), ("NHITS", None), ("LSTM", 2), ("MLP", 2), ("PatchTST", 1), ("TiDE", 1), ("TimeMixer", 1),
     ("TSMixer", 2), ("VanillaTransformer", 1)],
)  # fmt: skip
def test_the_identity_has_the_class_the_depth_and_the_training_seed(saved: Path, name: str, depth: int | None) -> None:
    identity = locate(f"neuralforecast:{saved}:{name}").identity
    assert (identity.backbone, identity.depth, identity.training_seed) == (name, depth, 1)


def test_a_setting_other_than_the_trained_one_is_refused(one: Path) -> None:
    located = locate(str(one))
    assert trained_setting(located) == (LOOKBACK, HORIZON)
    model = located.load()
    assert model.limits.refusal(96, HORIZON) == "takes a lookback of 32 only, not 96"
    assert model.limits.refusal(LOOKBACK, 9) == "forecasts at most 8 steps, not 9"
    x = series(2, LOOKBACK)
    assert torch.equal(model.forward(x, 3), model.forward(x, HORIZON)[:, :3])


@pytest.mark.parametrize("existing", [False, True])
def test_a_refused_audit_leaves_no_ledger_behind_and_removes_none(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], existing: bool
) -> None:
    ledger = tmp_path / "out" / "ledger.db"
    if existing:
        with Ledger.open(ledger):
            pass
    where = ["--data", "sample:elnino", "--settings", "96x8", "--workers", "0", "--out", str(tmp_path / "out")]
    assert main(["audit", f"neuralforecast:{one}", *where]) == 2
    assert "takes a lookback of 32 only, not 96" in capsys.readouterr().err
    assert ledger.exists() == existing


def test_loading_and_forecasting_leave_the_random_state_and_the_terminal_alone(
    one: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    load(str(one)).official(series(2, LOOKBACK), HORIZON)
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


def test_the_scaler_of_the_directory_is_part_of_the_fingerprint(one: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(one, tmp_path / "one")
    assert locate(str(copy)).identity == locate(str(one)).identity
    content = json.loads((copy / "configuration.json").read_text())
    content["configuration"]["local_scaler_type"] = "standard"
    (copy / "configuration.json").write_text(json.dumps(content))
    assert locate(str(copy)).identity.fingerprint != locate(str(one)).identity.fingerprint


def test_the_order_of_the_metadata_is_not_part_of_the_fingerprint_and_its_content_is(one: Path, tmp_path: Path) -> None:
    for name, change in (("reversed", False), ("changed", True)):
        other = Path(shutil.copytree(one, tmp_path / name))
        file = other / "NLinear_0.safetensors"
        content = file.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end])
        metadata = dict(reversed(header.pop("__metadata__").items()))
        if change:
            metadata["nf_format"] = "2 "
        text = json.dumps({"__metadata__": metadata, **header}).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    first, same, changed = (saved_models(str(path))[0] for path in (one, tmp_path / "reversed", tmp_path / "changed"))
    assert first.weights[0].read_bytes() != same.weights[0].read_bytes()
    assert first.fingerprint == same.fingerprint != changed.fingerprint


def test_the_facts_of_a_training_are_those_of_the_files_and_its_rows_stay_unknown(saved: Path) -> None:
    found = next(one for one in saved_models(str(saved)) if one.name.endswith(":PatchTST"))
    facts, model = json.loads(found.architecture.training), build("PatchTST")
    assert facts["by"] == "neuralforecast"
    assert facts["training_rows"] == "unknown"
    assert facts["loss"] == type(model.loss).__name__
    assert facts["local_scaler_type"] == "none"
    for name in ("learning_rate", "max_steps", "windows_batch_size", "scaler_type"):
        assert facts[name] == model.hparams[name]
    assert facts["arguments"]["encoder_layers"] == model.hparams["encoder_layers"]
    assert "random_seed" not in {*facts, *facts["arguments"]}


def damage(path: Path, how: str) -> None:
    configuration, weights = path / "configuration.json", path / "NLinear_0.safetensors"
    if how == "pickled":
        configuration.unlink()
        weights.rename(path / "NLinear_0.ckpt")
    elif how == "not json":
        configuration.write_text("{")
    elif how == "format":
        configuration.write_text(json.dumps({"nf_format": "3", "configuration": {}}))
    elif how == "empty":
        weights.unlink()
    elif how == "cut":
        weights.write_bytes(weights.read_bytes()[:-40])
    elif how == "no configuration":
        configuration.unlink()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("pickled", "older format, which holds pickles"),
        ("not json", "is not a configuration of neuralforecast"),
        ("format", "has the format '3', not '2'"),
        ("empty", "and no model"),
        ("cut", "is damaged"),
        ("no configuration", "has no configuration.json"),
        ("gone", "is not a directory"),
    ],
)
def test_a_damaged_directory_gets_a_sentence(one: Path, tmp_path: Path, how: str, sentence: str) -> None:
    copy = shutil.copytree(one, tmp_path / "damaged") if how != "gone" else tmp_path / "damaged"
    damage(copy, how)
    with pytest.raises(ModelError, match=sentence):
        load(f"neuralforecast:{copy}")


MUTATIONS = {
    "window scaler left out": (
        "scaled = model.scaler.transform(x=together, mask=observed[:, :, None])",
        "scaled = (model.scaler.transform(x=together, mask=observed[:, :, None]), together)[1]",
    ),
    "inverse of the window scaler left out": (
        "return cast(Tensor, model.scaler.inverse_transform(output, shift, scale))", "return output",
    ),
    "scaler sees the horizon": ("torch.zeros_like(values[", "torch.ones_like(values["),
    "local scaler left out": ("scaled = replace(window, **", "_ = replace(window, **"),
    "local shift not restored": ("y * scale + shift", "y * scale"),
    "unbiased local deviation": ("correction=0", "correction=1"),
    "quantile off by one": ("(trained - level).abs()))", "(trained - level).abs())) - 1"),
    "step off by one": ("self._run(window)[:, :horizon]", "self._run(window)[:, 1 : horizon + 1]"),
    "keys drawn by another seed": ("(self._second.random_seed)", "(self._second.random_seed + 1)"),
}  # fmt: skip
"""A mistake in the forward: what stands there, and what stands there instead."""


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models behind a local scaler and a window scaler, one with several quantiles."""
    from neuralforecast.losses.pytorch import MQLoss

    models = [
        build("MLP", scaler_type="robust", loss=MQLoss(level=[80])),
        build("MLP", alias="plain"),
        build("TimesNet", scaler_type="robust"),
        build("Informer"),
    ]
    return save(tmp_path_factory.mktemp("saved") / "scaled", models, local_scaler="standard")


@pytest.mark.parametrize("mistake", MUTATIONS)
def test_a_mistake_in_the_forward_is_refused(scaled: Path, tmp_path: Path, mistake: str) -> None:
    named = {"keys": "Informer", "deviation": "plain"}
    name = next((name for word, name in named.items() if word in mistake), "MLP")
    located: Any = locate(f"neuralforecast:{scaled}:{name}")
    model = mutated_class(*MUTATIONS[mistake], located.family.loader, tmp_path)(located.checkpoint, located.identity)
    horizon = HORIZON - 1 if "step" in mistake else HORIZON
    time = torch.arange(LOOKBACK) * torch.tensor([[0.2], [0.9], [1.7], [2.6]])
    x = (series(4, LOOKBACK) + 3 * time.sin()) * torch.linspace(0.2, 2, LOOKBACK) + 7
    assert parity(located.load(), x, horizon) <= EQUIVALENCE_LIMIT
    assert not parity(model, x, horizon) <= EQUIVALENCE_LIMIT


def test_a_model_that_couples_the_windows_of_a_batch_gets_one_per_call_and_says_so(scaled: Path) -> None:
    model: Any = load(f"neuralforecast:{scaled}:TimesNet")
    assert model.official_call == "NeuralForecast.predict, one window per call"
    assert model.checkpoint.setting == (LOOKBACK, HORIZON)
    time = torch.arange(LOOKBACK) * torch.tensor([[0.2], [0.9], [1.7], [2.6]])
    x = series(4, LOOKBACK) + 3 * time.sin()
    apart = torch.cat([model.official(row, HORIZON) for row in x.split(1)])
    assert relative_difference(model.official(x, HORIZON), apart) <= 1e-6
    assert relative_difference(model.forward(x, HORIZON), apart) <= EQUIVALENCE_LIMIT
    assert relative_difference(model._base.official(x, HORIZON), apart) > 1e-3


def test_an_audit_gives_a_model_the_units_of_the_series_except_where_the_library_standardises(scaled: Path) -> None:
    model = load(f"neuralforecast:{scaled}:plain")
    values = 40 + 3 * series(1, 200)[0].double().numpy()
    one = Series("d", "i", "H", 24, "", values, 0)
    windows = cut(one, LOOKBACK, HORIZON, windows=2, seed=0)
    x = torch.as_tensor(windows.x, dtype=torch.float32)
    raw = torch.stack([torch.as_tensor(values[start - LOOKBACK : start]).float() for start in windows.starts])
    mean, std = values[:160].mean(), values[:160].std()
    wrapped = in_units(model, one, HORIZON)
    expected = (model.official(raw, HORIZON) - mean) / std
    torch.testing.assert_close(wrapped.official(x, HORIZON), expected, rtol=0, atol=1e-5)
    assert parity(wrapped, x, HORIZON) <= EQUIVALENCE_LIMIT
    assert slope_error(wrapped, x) <= 1e-6
    assert wrapped.official_call == "NeuralForecast.predict, in the units of the series"
    assert in_units(model, replace(one, official=OfficialSplit(100, 150, 200)), HORIZON) is model


def test_an_audit_measures_every_model_of_a_directory_at_its_own_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = save(tmp_path / "some", [build("DLinear"), build("LSTM", recurrent=True)])
    request = ["audit", str(some), "--data", "sample:elnino", "--seeds", "1", "--out", str(tmp_path / "out")]
    assert main(request) == 0
    frame = read(tmp_path / "out" / "ledger.db").set_index("model")
    assert frame.loc["some:DLinear", "backbone"] == "DLinear"
    assert frame.loc["some:LSTM", "depth"] == 2
    assert (frame["training_seed"] == 1).all()
    assert list(frame.loc["some:DLinear", ["status", "lookback", "horizon"]]) == ["done", LOOKBACK, HORIZON]
    assert frame.loc["some:DLinear", "official_call"] == "NeuralForecast.predict, in the units of the series"
    assert frame.loc["some:LSTM", "status"] == "excluded"
    assert "forecasts step by step from its own forecasts" in frame.loc["some:LSTM", "reason"]
    capsys.readouterr()


@pytest.mark.parametrize("name", ["DLinear", "PatchTST"])
def test_integrated_gradients_add_up_and_equal_nf_explain_where_that_adds_up_too(saved: Path, name: str) -> None:
    from neuralforecast import NeuralForecast

    model, x = load(f"neuralforecast:{saved}:{name}"), series(1, LOOKBACK) + 4
    points, weights = np.polynomial.legendre.leggauss(50)
    along = torch.tensor((points + 1) / 2, dtype=torch.float32)[:, None] * x
    rows = jacobian(model, along, HORIZON).jacobian
    ours = torch.einsum("phl,p->hl", rows, torch.tensor(weights / 2, dtype=torch.float32)) * x
    change = (model.official(x, HORIZON) - model.official(0 * x, HORIZON))[0]
    torch.testing.assert_close(ours.sum(dim=1), change, rtol=0, atol=2e-4)
    theirs = NeuralForecast.load(str(saved))
    theirs.models = [one for one in theirs.models if repr(one) == name]
    frame = pd.DataFrame({"unique_id": 0, "ds": np.arange(LOOKBACK), "y": x[0].numpy()})
    _, explained = theirs.explain(df=frame, explainer="IntegratedGradients")
    attribution = explained[name]["insample"][0, :, 0, 0, :, 0]
    if name == "DLinear":
        torch.testing.assert_close(ours, attribution, rtol=0, atol=1e-5)
    else:  # its statistics of the window are detached
        assert (attribution.sum(dim=1) - change).abs().max() > 0.01


def test_a_fitted_object_is_explained_and_audited_as_what_it_would_save(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuralforecast import NeuralForecast

    fitted = NeuralForecast.load(str(saved))
    fitted.models = [model for model in fitted.models if repr(model) in ("NLinear", "PatchTST")]
    frame = pd.DataFrame({"unique_id": "a", "ds": np.arange(80), "y": np.sin(np.arange(80) / 3) * 5 + 40})
    with pytest.raises(ModelError, match=r"holds 2 models: NLinear, PatchTST\. Save it with \.save\('DIR'\)"):
        hrx.explain(fitted, frame, HORIZON)
    with pytest.raises(ModelError, match="Give the NeuralForecast that holds it"):
        hrx.explain(fitted.models[0], frame, HORIZON)
    summary = hrx.run_audit(fitted, data="sample:elnino", seeds=1, out=tmp_path / "out")
    runs = read(tmp_path / "out" / "ledger.db").set_index("model")
    assert [model.model for model in summary.models] == list(runs.index) == ["NLinear", "PatchTST"]
    assert set(runs["status"]) == {"done"}
    assert set(zip(runs["lookback"], runs["horizon"], strict=True)) == {(LOOKBACK, HORIZON)}

    fitted.models = fitted.models[1:]
    explained = hrx.explain(fitted, frame, HORIZON)
    again = hrx.explain(f"neuralforecast:{saved}:PatchTST", frame, HORIZON)
    np.testing.assert_array_equal(explained.matrix, again.matrix)
    np.testing.assert_allclose(explained.forecast[0], fitted.predict(frame)["PatchTST"], rtol=1e-5)
    monkeypatch.setattr(fitted, "_fitted", False)
    with pytest.raises(ModelError, match=r"is not fitted\. Call its fit first"):
        hrx.explain(fitted, frame, HORIZON)
