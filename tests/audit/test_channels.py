"""The channel axis, against closed forms, the definitions and a library's multivariate model."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers import by_definition
from helpers.multivariate import MULTIVARIATE, mixing, one_channel_per_step, windows
from helpers.tiny import series

from hrx.adapters import Forecaster, from_module, load
from hrx.audit import Protocol, score
from hrx.audit.admission import admit_channels
from hrx.audit.scoring.deletion import replacements
from hrx.audit.scoring.score import ScoredRun
from hrx.errors import ProtocolError
from hrx.records.quantities import Quantities


class Scores(NamedTuple):
    time: Quantities
    channel: Quantities


def score_channels(model: Forecaster, x: torch.Tensor, horizon: int, protocol: Protocol, stream: int = 0) -> Scores:
    run = ScoredRun.of(model, x, horizon, protocol, stream=stream)
    assert run.channel_quantities
    return Scores(run.quantities, run.channel_quantities)


def test_a_step_that_depends_on_one_channel_has_the_gain_and_the_rank_of_the_closed_form() -> None:
    model, x = one_channel_per_step(), windows(3, 12, 8)
    result = score_channels(model, x, 8, protocol=Protocol(draws=2), stream=5)
    # Own row: the one channel that matters is deleted first of eight, or last. The shared vector is tied and goes by
    # position: channel j after j others, or before them. In areas over the grid of nine this is 7/8 against (7 − 2j)/8.
    drawn = replacements(x, Protocol(draws=2), stream=5, first=0, count=2, variants=1)[:, 0]
    before = model.forward(x, 8)[:, None]
    after = model.forward(drawn.flatten(0, 1), 8).unflatten(0, (3, 2))
    everything = (after - before).square().sum(dim=-1).mean(dim=(0, 1)).double()
    gain = float((everything * 2 * torch.arange(8) / 8).mean()) / result.channel.variance
    assert result.channel.rank == pytest.approx(8, rel=1e-6)
    assert result.channel.g_own == pytest.approx(gain, rel=1e-5)
    assert result.channel.g_own > 0


def test_a_step_independent_choice_of_channels_has_no_gain_and_rank_one() -> None:
    # Every step uses the channels in the same proportions, at times of its own.
    generator = torch.Generator().manual_seed(1)
    time = torch.rand(10, 16, generator=generator)
    share = torch.rand(4, generator=generator)
    weight = torch.einsum("ht,k->htk", time, share)[:, None].expand(-1, 4, -1, -1)
    result = score_channels(mixing(weight), windows(3, 16, 4), 10, protocol=Protocol(draws=2))
    assert result.channel.rank == pytest.approx(1, abs=1e-9)
    assert (result.channel.g_own, result.channel.g_shuffled, result.channel.g_margin) == (0.0, 0.0, 0.0)
    assert result.time.rank > 1
    assert result.time.g_own != 0


def test_both_axes_agree_with_the_definitions() -> None:
    weight = torch.randn(10, 3, 14, 3, generator=torch.Generator().manual_seed(2))
    model, x, protocol = mixing(weight), windows(2, 14, 3), Protocol(draws=2)
    result = score_channels(model, x, 10, protocol=protocol, stream=9)
    importance = weight.sum(dim=1).abs().expand(2, -1, -1, -1).numpy()
    drawn = replacements(x, protocol, stream=9, first=0, count=2, variants=1)[:, 0].numpy()

    def forecast(window: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model.forward(torch.as_tensor(window)[None], 10)[0].numpy()

    for axis, q in ((3, result.time), (2, result.channel)):
        slow = by_definition.Run(forecast, x.numpy(), importance.sum(axis=axis), drawn, 9, channels=axis == 2)
        assert q.variance == pytest.approx(slow.variance, rel=1e-6)
        for name, raw in slow.quantities().items():
            scale = 1 if name == "insertion" else slow.variance
            assert getattr(q.normalised, name) == pytest.approx(raw / scale, rel=1e-5, abs=1e-6), (axis, name)
        ranks = [by_definition.participation_ratio(matrix) for matrix in importance.sum(axis=axis)]
        assert q.rank == pytest.approx(np.mean(ranks), rel=1e-5)


def test_a_single_channel_is_measured_like_a_univariate_window() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(40, 12)
    x = series(3, 40)
    alone = score(from_module(linear), x, 12)
    model = from_module(lambda x: linear(x[..., 0])[..., None], limits=MULTIVARIATE)
    both = score_channels(model, x[..., None], 12, Protocol())
    np.testing.assert_allclose(both.time.normalised, alone.normalised, rtol=1e-6)
    assert both.time.rank == pytest.approx(alone.rank)
    assert (both.channel.g_own, both.channel.rank) == (0.0, pytest.approx(1))


def test_replacements_rearrange_each_channel_separately_and_keep_those_of_a_single_one() -> None:
    x = windows(2, 21, 3)
    drawn = replacements(x, Protocol(), stream=5, first=0, count=4, variants=1)
    assert drawn.shape == (2, 1, 4, 21, 3)
    for w in range(2):
        for one in drawn[w, 0]:
            assert torch.equal(one.sort(dim=0).values, x[w].sort(dim=0).values)
            assert not torch.equal(ranks_of(one[:, 0]), ranks_of(one[:, 1]))
    single = replacements(x[..., :1], Protocol(), stream=5, first=0, count=4, variants=1)[..., 0]
    assert torch.equal(single, replacements(x[..., 0], Protocol(), stream=5, first=0, count=4, variants=1))


def ranks_of(values: torch.Tensor) -> torch.Tensor:
    return values.argsort().argsort()


@pytest.fixture(scope="module")
def chronos_2(checkpoints: dict[str, Path]) -> Forecaster:
    model = load(str(checkpoints["chronos-2"])).multivariate()
    assert model is not None
    return model


@pytest.mark.parametrize("horizon", [24, 160])
def test_the_multivariate_forecast_of_chronos_2_equals_its_official_call(
    chronos_2: Forecaster, checkpoints: dict[str, Path], horizon: int
) -> None:
    x = windows(3, 96, 4)
    ours, theirs = chronos_2.forward(x, horizon), chronos_2.official(x, horizon)
    assert ours.shape == (3, horizon, 4)
    assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()
    single = load(str(checkpoints["chronos-2"]))
    apart = torch.stack([single.forward(x[..., c], horizon) for c in range(4)], dim=-1)
    assert (ours - apart).abs().max() > 1e-3 * apart.abs().max()
    moved = x.clone()
    moved[0, :, 1] += torch.sin(torch.arange(96.0))
    changed = (chronos_2.forward(moved, horizon) - ours).abs().amax(dim=1)
    assert (changed[0] > 0).all()
    assert (changed[1:] == 0).all()


def test_chronos_2_is_scored_along_both_axes(chronos_2: Forecaster) -> None:
    x = windows(2, 96, 3)
    result = score_channels(chronos_2, x, 24, protocol=Protocol(draws=2))
    assert ScoredRun(chronos_2, x, 24).explanation.matrix.shape == (2, 24, 96)
    assert 1 <= result.channel.rank <= 3
    assert result.time.g_own != 0


def test_a_multivariate_model_passes_admission_and_one_with_a_cut_channel_does_not(chronos_2: Forecaster) -> None:
    x = windows(3, 96, 2)
    checks = admit_channels(chronos_2, x, 16)
    assert [(check.setting, check.passed) for check in checks] == [("96x16", True)] * 6
    cut = from_module(
        lambda x: torch.stack([x[:, :16, 0], torch.tensor(x[:, :16, 1].tolist())], -1), limits=MULTIVARIATE
    )
    assert "derivative" in {check.check for check in admit_channels(cut, x, 16) if not check.passed}


def test_the_channel_axis_needs_the_input_gradient_and_multivariate_windows() -> None:
    run = ScoredRun.of(one_channel_per_step(), windows(2, 12, 8), 8, Protocol(estimator="occlusion"))
    with pytest.raises(ProtocolError, match="input_gradient"):
        _ = run.channel_quantities
    assert ScoredRun(from_module(torch.nn.Linear(12, 8)), windows(2, 12, 1)[..., 0], 8).channel_quantities is None
