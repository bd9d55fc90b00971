"""What is special about PatchTST-FM, FlowState and TTM-r3: limits, time scale, point forecast, threads, classes."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny, tiny_granite
from helpers.tiny import forecast_and_gradient, series

from hrx.adapters import ModelError, load, locate, model_card, registry
from hrx.audit.admission import admit
from hrx.gift_eval import frequency

if "patchtst-fm" not in tiny.families():
    pytest.skip("runs in the main environment", allow_module_level=True)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("granite")
    return {name: build(root / name) for name, build in tiny_granite.FAMILIES.items()}


@pytest.fixture(scope="module")
def patchtst(paths: dict[str, Path]) -> Any:
    return load(str(paths["patchtst-fm"]))


@pytest.fixture(scope="module")
def flowstate(paths: dict[str, Path]) -> Any:
    return load(str(paths["flowstate"]))


@torch.no_grad()
def library_forecast(model: Any, x: torch.Tensor, horizon: int) -> torch.Tensor:
    """`(B, ≤ H)`: the model call of the library, past every limit of hrx."""
    scale = {"scale_factor": model.limits.scale_factor} if hasattr(model.limits, "scale_factor") else {}
    return model.module(past_values=x[..., None], prediction_length=horizon, **scale).prediction_outputs[..., 0]


@pytest.mark.parametrize("season", [24, 7, 59])  # at 59 rounding makes the library's two patch lengths differ
def test_flowstate_refuses_exactly_the_horizons_at_which_its_library_returns_fewer_steps(
    flowstate: Any, season: int
) -> None:
    model, x = flowstate.for_season(season), series(1, 32)
    refused = [h for h in range(1, 125) if model.limits.refusal(32, h)]
    assert refused == [h for h in range(1, 125) if library_forecast(model, x, h).shape[1] < h]
    if season == 24:
        assert refused == [47, 71, 95, 119]
        with pytest.raises(
            ModelError, match="returns 24 steps where 47 are asked for: its library joins patches of 24"
        ):
            model.forward(x, 47)


def test_a_window_beyond_the_room_beside_the_horizon_is_refused_because_its_library_does_not_read_it(
    patchtst: Any, flowstate: Any
) -> None:
    for model, horizon, room in ((patchtst, 24, 896), (patchtst, 200, 824), (flowstate, 96, 1024 - 72)):
        assert model.limits.refusal(room, horizon) is None
        assert f"lookback of at most {room}, not {room + 1}" in model.limits.refusal(room + 1, horizon)
        x = series(1, room + 8)
        other = torch.cat([x[:, :8] + 1, x[:, 8:]], dim=1)
        assert torch.equal(library_forecast(model, x, horizon), library_forecast(model, other, horizon))
        inside = torch.cat([x[:, :8], x[:, 8:9] + 1, x[:, 9:]], dim=1)
        assert not torch.equal(library_forecast(model, x, horizon), library_forecast(model, inside, horizon))
    assert patchtst.limits.refusal(1, 1024) == "forecasts at most 1023 steps, not 1024"


@pytest.mark.parametrize("step", ["T", "5T", "15T", "H", "6H", "M", "Q"])
def test_the_scale_factor_of_a_season_is_the_librarys_own_for_that_frequency(flowstate: Any, step: str) -> None:
    from tsfm_public.models.flowstate.utils.utils import get_fixed_factor

    model = flowstate.for_season(frequency.season(step))
    assert model.limits.scale_factor == pytest.approx(get_fixed_factor(step), rel=1e-12)
    assert model.official_call == f"TimeSeriesForecastingPipeline(scale_factor={get_fixed_factor(step):.4g})"
    assert model.reload().limits == model.limits


def test_flowstate_forecasts_on_the_time_scale_of_the_season(flowstate: Any) -> None:
    x, monthly = series(2, 96), flowstate.for_season(12)
    assert flowstate.for_season(1) is flowstate.for_season(24) is flowstate
    assert monthly.for_season(1).limits == flowstate.limits
    y, _ = forecast_and_gradient(monthly, x, 24)
    assert torch.equal(y, monthly.official(x, 24))
    assert not torch.allclose(y, flowstate.official(x, 24), rtol=0.01)
    with pytest.raises(ModelError, match=r"was given a season of 0\. It is at least 1"):
        flowstate.for_season(0)


def test_the_point_forecast_is_a_mean_over_the_quantiles(patchtst: Any, flowstate: Any) -> None:
    x = series(2, 96)
    levels = np.arange(1, 10) / 10
    with torch.no_grad():
        predicted = [
            m.module(x[..., None], prediction_length=24).quantile_outputs[..., 0].numpy() for m in (patchtst, flowstate)
        ]
    # PatchTST-FM integrates the quantile function, constant beyond its outermost levels.
    integral = np.trapezoid(predicted[0], levels, axis=1) + 0.1 * predicted[0][:, 0] + 0.1 * predicted[0][:, -1]
    np.testing.assert_allclose(patchtst.official(x, 24).numpy(), integral, rtol=1e-4, atol=1e-6)
    # FlowState weights a quantile by its distance from the nearest tail.
    weights = np.minimum(levels, 1 - levels)
    weighted = np.einsum("bqh,q->bh", predicted[1], weights / weights.sum())
    np.testing.assert_allclose(flowstate.official(x, 24).numpy(), weighted, rtol=1e-4, atol=1e-6)


def forecasts(model: Any, x: torch.Tensor) -> torch.Tensor:
    """`(2, 8)`: by the forward with gradients, and by the official call."""
    return torch.cat([forecast_and_gradient(model, x, 8)[0], model.official(x, 8)])


def test_two_threads_get_the_forecasts_of_one_and_the_model_can_be_copied_afterwards(
    patchtst: Any, flowstate: Any
) -> None:
    for model in (patchtst, flowstate):
        windows = [series(1, 48 + 8 * seed, seed) for seed in range(6)] * 2
        expected = [forecasts(model, x) for x in windows]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(partial(forecasts, model), windows))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert model.double().official(windows[0].double(), 8).dtype == torch.float64


def test_a_decomposed_ttm_loads_by_its_own_class_and_not_by_the_plain_one(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    model: Any = load(str(paths["ttm-decomposed"]))
    assert (type(model.module).__name__, model.unloaded()) == ("TinyTimeMixerForDecomposedPrediction", ())
    copy = shutil.copytree(paths["ttm-decomposed"], tmp_path / "renamed")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"architectures": ["TinyTimeMixerForPrediction"]}))
    with pytest.raises(ModelError, match=r"holds tensors that the model does not use \(\d{2,}, first residual_fore"):
        load(str(copy))


def test_auto_selects_a_release_of_ttm_r3_that_its_own_class_loads(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_download", lambda hub_id, revision: paths["ttm-decomposed"])
    (selection,) = registry.locate_each("ttm-r3@auto", [(512, 96)])
    assert selection.located.identity.model == "ttm-r3@512-96-dec-512-r3"
    model: Any = selection.located.load()
    assert type(model.module).__name__ == "TinyTimeMixerForDecomposedPrediction"


@pytest.mark.slow
@pytest.mark.parametrize(("build", "horizon"), [(tiny_granite.patchtst_fm, 24), (tiny_granite.ttm_r3, 100)])
def test_the_other_architectures_are_admitted(build: Callable[[Path], Path], horizon: int, tmp_path: Path) -> None:
    checks = admit(load(str(build(tmp_path / "model"))), series(1, 96), horizon)
    assert [check for check in checks if not check.passed] == []


def test_the_stated_padding_of_a_short_window_is_what_the_model_reads(tmp_path: Path) -> None:
    model = load(str(tiny.ttm(tmp_path / "ttm")))
    x = series(2, 96)
    zeros = model.limits.padding(96)
    assert (zeros, model.limits.padding(512)) == (416, 0)
    padded = torch.cat([torch.zeros(2, zeros), x], dim=1)
    # As observed values: with the library's mask of the padding the forecast is another one.
    assert torch.equal(model.forward(x, 96), model.forward(padded, 96))
    observed = (torch.arange(512) >= zeros).expand(2, 512)[..., None]
    with torch.no_grad():
        masked = model.module(past_values=padded[..., None], past_observed_mask=observed).prediction_outputs[..., 0]  # type: ignore[attr-defined]
    assert not torch.allclose(model.forward(x, 96), masked, rtol=0.01)


def test_the_branch_of_a_release_has_its_own_card() -> None:
    from hrx.adapters import Identity

    def card(model: str, hub_id: str) -> Any:
        return model_card(Identity(model, "", hub_id, "0" * 64, ""))

    flowstate = "ibm-granite/granite-timeseries-flowstate-r1"
    assert (card("flowstate-r1", flowstate).parameters, card("flowstate-r1", flowstate).native_lookback) == (
        9_070_000,
        2048,
    )
    assert card("flowstate-r1@r1.1", flowstate).parameters == 18_500_000
    ttm = card("ttm-r3@1024-48-dec-512-r3", "ibm-granite/granite-timeseries-ttm-r3")
    assert (ttm.native_lookback, ttm.native_horizon, ttm.seen) == (1024, 48, None)


def test_sundial_and_tabpfn_ts_are_recognised_and_refused_with_the_reason(tmp_path: Path) -> None:
    sundial, tabpfn = tmp_path / "sundial", tmp_path / "tabpfn"
    sundial.mkdir()
    (sundial / "config.json").write_text('{"architectures": ["SundialForPrediction"]}')
    tabpfn.mkdir()
    (tabpfn / "tabpfn-v2-regressor-2noar4o2.ckpt").write_bytes(b"")
    with pytest.raises(ModelError, match="is a Sundial checkpoint, which hrx cannot audit: it samples its forecast"):
        locate(str(sundial))
    with pytest.raises(ModelError, match="is a TabPFN-TS checkpoint, which hrx cannot audit: it fits a tabular"):
        locate(str(tabpfn))
