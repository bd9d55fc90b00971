"""Families with covariates, several targets and quantiles: each against its library's own call."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.covariates import Mistaken, bound, derivative_error, outputs, rows, window, windows
from helpers.tiny import families

from hrx.adapters import Forecaster
from hrx.adapters.gradients import relative_difference
from hrx.adapters.inputs import POINT, Layout, Output, Window
from hrx.adapters.registry import locate
from hrx.adapters.wrapped import Bound
from hrx.audit.admission import DERIVATIVE_LIMIT, EQUIVALENCE_LIMIT, admit, parity

ALL = ("chronos-2", "timesfm-3", "t0", "tirex-2", "timestral", "toto-2", "moirai-2")
COVARIATES = [name for name in ALL if name in families()]
QUANTILES = [name for name in ("chronos-bolt", "timesfm-2.5", "patchtst-fm", "flowstate") if name in families()]
MASKED = [name for name in COVARIATES if name != "timesfm-3"]
ENCODED = [name for name in ("chronos-2", "timestral") if name in families()]
SETTINGS = [(96, 24), (70, 40), (48, 8)]
"""Whole patches, and lookbacks and horizons that are none."""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forecaster]:
    family = families()[request.param]
    directory: Path = tmp_path_factory.mktemp("tiny") / request.param
    with family.context():
        family.build(directory)
        yield locate(f"{request.param}:{directory}").load()


def several(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", names, indirect=True)


@several(COVARIATES + QUANTILES)
def test_each_output_of_each_combination_of_roles_equals_the_official_call(model: Forecaster) -> None:
    for lookback, horizon in SETTINGS:
        for name, given in windows(model, lookback, horizon).items():
            for output in outputs(model) if name == "everything" else (POINT,):
                figure = parity(*bound(model, given, horizon, output), horizon)
                assert figure <= EQUIVALENCE_LIMIT, (name, str(output), lookback, horizon)


@several(COVARIATES)
def test_a_model_with_covariates_of_every_role_is_admitted(model: Forecaster) -> None:
    given = windows(model, 64, 20)["everything"]
    checks = admit(*bound(model, given, 20), 20)
    assert len(checks) == 6
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]


@several(COVARIATES + QUANTILES)
def test_derivatives_of_each_output_agree_with_differences_of_the_official_call(model: Forecaster) -> None:
    for name, given in windows(model, 48, 20).items():
        for output in ("point", (0.1, 0.9)) if name == "everything" else ("point",):
            figure = derivative_error(*bound(model, given, 20, output), 20)
            assert figure <= DERIVATIVE_LIMIT, (name, output)


def _shifted(given: Window) -> Window:
    return replace(given, past=torch.roll(given.past, 1, dims=1))


def _scaled(given: Window) -> Window:
    factor = 1 + 0.5 * (torch.arange(given.future.shape[1]) % 2)[:, None]  # of a whole row most families take no notice
    return replace(given, future=given.future * factor)


def _swapped(given: Window) -> Window:
    lookback = given.past.shape[1]
    future = torch.cat([given.past, given.future[:, lookback:]], dim=1)
    return replace(given, past=given.future[:, :lookback], future=future)


def _ahead_one_step_late(given: Window) -> Window:
    lookback = given.past.shape[1]
    ahead = torch.roll(given.future[:, lookback:], 1, dims=1)
    return replace(given, future=torch.cat([given.future[:, :lookback], ahead], dim=1))


@several(COVARIATES)
@pytest.mark.parametrize(
    "mistake",
    [
        _shifted, _scaled, _swapped, _ahead_one_step_late,
        lambda given: replace(given, past=None), lambda given: replace(given, future=None),
    ],
    ids=["past shifted", "future scaled", "swapped", "ahead shifted", "past dropped", "future dropped"],
)  # fmt: skip
def test_parity_finds_a_mistake_in_a_covariate(model: Forecaster, mistake: object) -> None:
    horizon = 80 if model.identity.family == "moirai-2" else 40  # which does not read the first 64 steps ahead
    given = window(96, horizon, past=2, future=2)
    assert parity(*bound(Mistaken(model, mistake), given, horizon), horizon) > EQUIVALENCE_LIMIT
    assert parity(*bound(Mistaken(model, lambda one: one), given, horizon), horizon) <= EQUIVALENCE_LIMIT


@several(COVARIATES)
def test_each_role_that_a_family_claims_moves_its_official_call(model: Forecaster) -> None:
    targets = 1 if model.inputs.targets[1] == 1 else 2
    given, other = (window(96, 40, targets=targets, past=1, future=1, seed=seed) for seed in (0, 9))
    ahead = torch.cat([given.future[:, :96], other.future[:, 96:]], dim=1)
    calls = {
        "target": replace(given, target=torch.cat([given.target[..., :-1], other.target[..., -1:]], dim=2)),
        "past": replace(given, past=other.past), "future": replace(given, future=other.future),
        "ahead": replace(given, future=ahead),
    }  # fmt: skip
    before = model.official_window(given, 40, ["point"])[:, :, 0]
    for role, changed in calls.items():
        assert relative_difference(model.official_window(changed, 40, ["point"])[:, :, 0], before) > 1e-4, role


@several([name for name in COVARIATES if name != "moirai-2"])
def test_a_value_known_ahead_moves_the_steps_within_its_reach(model: Forecaster) -> None:
    given = window(96, 40, future=1)
    future = given.future.clone()
    future[:, 96] += 5  # the first step ahead
    y, moved = (model.official_window(one, 40, ["point"])[..., 0, 0] for one in (given, replace(given, future=future)))
    steps = (moved != y).any(dim=0)
    if model.identity.family == "toto-2":  # one patch of 16 steps late
        assert not steps[:16].any()
        assert steps[16:].all()
    else:
        assert steps.all()


@several(["moirai-2"] if "moirai-2" in families() else [])
def test_moirai_2_reads_what_is_known_ahead_from_step_65_on(model: Forecaster) -> None:
    given = window(96, 80, future=1)
    rearranged = torch.cat([given.future[:, :96], given.future[:, 96:].flip(1)], dim=1)
    y, moved = (
        model.official_window(one, 80, ["point"])[..., 0, 0] for one in (given, replace(given, future=rearranged))
    )
    assert relative_difference(moved[:, :64], y[:, :64]) <= 1e-6
    assert (moved != y)[:, 64:].all()


@several(MASKED)
def test_missing_values_of_every_role_equal_the_official_call_and_have_finite_gradients(model: Forecaster) -> None:
    given = window(96, 40, targets=1 if model.inputs.targets[1] == 1 else 2, past=2, future=2)
    for values, places in ((given.target, (5, 30)), (given.past, (0, 50, 95)), (given.future, (7, 95, 100, 135))):
        values[:, list(places), 0] = torch.nan
    given.past[1, :, 1] = torch.nan  # all of a channel
    call, x = bound(model, given, 40)
    assert parity(call, x, 40) <= EQUIVALENCE_LIMIT
    moving = torch.isfinite(x).all(dim=0).float()
    assert derivative_error(call, x.nan_to_num(), 40, moving) <= DERIVATIVE_LIMIT
    assert torch.isfinite(rows(call, x, 40, (0, 39))[:, torch.isfinite(x)]).all()


@several(ENCODED)
@pytest.mark.parametrize("targets", [1, 2])
def test_codes_equal_the_official_call_and_are_encoded_on_the_gradient_path(model: Forecaster, targets: int) -> None:
    given = window(96, 24, targets=targets, past=2, future=2)
    draw = torch.Generator().manual_seed(3)
    given.past[..., 1] = torch.randint(0, 4, (2, 96), generator=draw).float()
    given.future[..., 1] = torch.randint(0, 12, (2, 120), generator=draw).float()  # text would sort 10 before 2
    given.past[0, 3, 1] = given.future[0, 5, 1] = given.future[1, 100, 1] = torch.nan
    given.future[0, 110, 1] = 40.0  # new ahead
    names = {"target": ("y", "z")[:targets], "past": ("price", "shop"), "future": ("temp", "day")}
    given = replace(given, names=names, categorical=frozenset(("shop", "day")))
    call, x = bound(model, given, 24)
    assert call.layout.by_name["day"].kind == "categorical"
    assert parity(call, x, 24) <= EQUIVALENCE_LIMIT
    plain = Bound(model, Layout.of(replace(given, categorical=frozenset()), 24), targets - 1)
    if targets == 1:
        assert relative_difference(plain.official(x, 24), call.official(x, 24)) > EQUIVALENCE_LIMIT
    moving = torch.zeros(x.shape[1])
    moving[: 96 * targets] = 1
    finite = torch.where(x.isnan(), 0.0, x)
    assert derivative_error(call, finite, 24, moving) <= 2 * DERIVATIVE_LIMIT


@several(["chronos-2"] if "chronos-2" in families() else [])
def test_covariates_are_read_beyond_the_native_horizon(model: Forecaster) -> None:
    given = window(64, 150, past=1, future=1)
    call, x = bound(model, given, 150)
    assert parity(call, x, 150) <= EQUIVALENCE_LIMIT
    assert derivative_error(call, x, 150) <= DERIVATIVE_LIMIT


@several(COVARIATES + QUANTILES)
def test_levels_are_those_of_the_checkpoint(model: Forecaster) -> None:
    given = window(64, 24)
    by_level = model.official_window(given, 24, [0.1, 0.5, 0.9])
    median = torch.equal(by_level[..., 1], model.official_window(given, 24, ["point"])[..., 0])
    assert model.outputs.point == ("median" if median else "mean")
    assert (by_level[..., 0] != by_level[..., 2]).all()
    assert model.outputs.refusal(Output.parse(0.999)) is not None


@several(["tirex-2"] if "tirex-2" in families() else [])
def test_bands_of_a_differenced_target_are_those_of_sums(model: Forecaster) -> None:
    given = window(96, 24, targets=2, past=1, future=1)
    given.target[..., 1] += 0.4 * torch.arange(96)  # a trend that the library forecasts in differences
    assert model._trending(given.target.mT.flatten(0, 1)).flatten().tolist() == [False, True, False, True]
    for output in ("point", 0.9, (0.1, 0.9)):
        call, x = bound(model, given, 24, output)
        assert parity(call, x, 24) <= EQUIVALENCE_LIMIT
        assert derivative_error(call, x, 24) <= DERIVATIVE_LIMIT
