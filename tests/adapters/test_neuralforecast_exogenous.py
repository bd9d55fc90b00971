"""Models of neuralforecast with exogenous inputs, against `NeuralForecast.predict`."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.covariates import LEVEL, Mistaken, bound, derivative_error, window
from helpers.tiny_neuralforecast import EXOGENOUS, HORIZON, LOOKBACK, build_exogenous, save_exogenous

from hrx.adapters import Forecaster, ModelError, load
from hrx.adapters.gradients import relative_difference
from hrx.adapters.inputs import Window
from hrx.audit.admission import DERIVATIVE_LIMIT, EQUIVALENCE_LIMIT, parity

pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")

ALL = "past, future, static"
QUICK = ("NHITS", "TFT", "TSMixerx")
CLASSES = [
    pytest.param(name, roles, marks=() if name in QUICK else pytest.mark.slow)
    for roles, names in EXOGENOUS.items() for name in names
]  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")


def channels(model: Forecaster, targets: int = 1, seed: int = 0) -> Window:
    """Two windows with the variables that a model was trained with."""
    counts = {role: len(getattr(model.inputs, role).names) for role in ("past", "future")}
    given = window(LOOKBACK, HORIZON, targets=targets, **counts, seed=seed)
    names = {role: getattr(model.inputs, role).names for role in ("past", "future", "static")}
    static = torch.randn(2, 2, generator=torch.Generator().manual_seed(seed)) if names["static"] else None
    named = {"target": tuple(f"y{place}" for place in range(targets))} | {
        role: own for role, own in names.items() if own
    }
    return replace(given, static=static, names=named)


def trained(
    path: Path, name: str, roles: str = ALL, series: int = 1, local: str | None = None, **changes: object
) -> Forecaster:
    several = {"n_series": series} if series > 1 else {}
    return load(str(save_exogenous(path / "saved", build_exogenous(name, roles, **several, **changes), series, local)))


@pytest.mark.parametrize(("name", "roles"), CLASSES)
def test_every_class_with_exogenous_inputs_equals_predict_and_reads_each_role(
    tmp_path: Path, name: str, roles: str
) -> None:
    model = trained(tmp_path, name, roles, scaler_type="robust")
    given = channels(model)
    call, x = bound(model, given, HORIZON)
    assert parity(call, x, HORIZON) <= EQUIVALENCE_LIMIT
    assert derivative_error(call, x, HORIZON) <= 3 * DERIVATIVE_LIMIT
    other = channels(model, seed=5)
    for role in roles.split(", "):
        moved = bound(model, replace(given, **{role: getattr(other, role)}), HORIZON)[1]
        assert relative_difference(call.official(moved, HORIZON), call.official(x, HORIZON)) > EQUIVALENCE_LIMIT, role


def test_quantiles_of_a_loss_equal_those_of_predict(tmp_path: Path) -> None:
    from neuralforecast.losses.pytorch import MQLoss

    model = trained(tmp_path, "NHITS", loss=MQLoss(level=[80, 90]))
    assert model.outputs.levels == (0.05, 0.1, 0.5, 0.9, 0.95)
    given = channels(model)
    for output in ("point", 0.05, 0.9, (0.1, 0.9)):
        call, x = bound(model, given, HORIZON, output)
        assert parity(call, x, HORIZON) <= EQUIVALENCE_LIMIT
    assert derivative_error(call, x, HORIZON) <= 3 * DERIVATIVE_LIMIT
    assert (model.official_window(given, HORIZON, [0.1]) != model.official_window(given, HORIZON, [0.9])).all()


@pytest.mark.parametrize("scaler", [None, "standard"])
def test_several_series_read_the_covariates_of_their_window(tmp_path: Path, scaler: str | None) -> None:
    model = trained(tmp_path, "TSMixerx", series=2, local=scaler)
    call, x = bound(model, channels(model, targets=2), HORIZON)
    assert parity(call, x, HORIZON) <= EQUIVALENCE_LIMIT
    assert derivative_error(call, x, HORIZON) <= 3 * DERIVATIVE_LIMIT


def test_parity_finds_a_mistake_in_a_variable(tmp_path: Path) -> None:
    model = trained(tmp_path, "NHITS", scaler_type="standard")
    given = channels(model)
    lookback = (torch.arange(LOOKBACK + HORIZON) < LOOKBACK)[:, None]
    mistakes = {
        "shifted": lambda one: replace(one, past=one.past.roll(1, 1)),
        "scaled": lambda one: replace(one, static=one.static * 1.01),
        "swapped": lambda one: replace(one, future=one.future.flip(-1)),
        "ahead erased": lambda one: replace(one, future=one.future * lookback),
    }  # fmt: skip
    for name, mistake in mistakes.items():
        assert parity(*bound(Mistaken(model, mistake), given, HORIZON), HORIZON) > EQUIVALENCE_LIMIT, name


def test_a_series_alone_and_other_names_are_refused_with_the_keywords(tmp_path: Path) -> None:
    model = trained(tmp_path, "NHITS")
    with pytest.raises(ModelError, match=r"reads the exogenous variables past_a, .* name their columns with past="):
        model.forward(torch.zeros(1, LOOKBACK) + LEVEL, HORIZON)
    given = channels(model)
    with pytest.raises(ModelError, match="was trained with the past covariates past_a, past_b, not price, past_b"):
        bound(model, replace(given, names={**given.names, "past": ("price", "past_b")}), HORIZON)
    # The names decide, not the order.
    turned = replace(given, past=given.past.flip(-1), names={**given.names, "past": ("past_b", "past_a")})
    a, b = (call.forward(x, HORIZON) for call, x in (bound(model, one, HORIZON) for one in (given, turned)))
    assert torch.equal(a, b)
