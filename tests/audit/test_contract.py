"""Properties of a forecaster: clean models have them all, and each planted violation is found by its property alone."""

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hrx.adapters import ModelError, from_module
from hrx.adapters.contract import Limits
from hrx.audit.contract import CHANNEL_PROPERTIES, PROPERTIES, Examination, fitting_setting
from hrx.audit.official_call import OfficialCall
from hrx.audit.properties import reach_matrix, windows
from hrx.errors import HrxError

L, H, MOST = 24, 6, 30
HELD = {"holds", "does not apply", "not stated"}
WEIGHTS = torch.randn(L, MOST, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / L
WEIGHTS += (1 - WEIGHTS.sum(dim=0)) / L  # a constant window is continued
EVEN = torch.linspace(-0.1, 0.1, 9, dtype=torch.float64)


def line(x: Tensor, horizon: int) -> Tensor:
    """The clean model: each step is a weighted mean of the window, which may be shorter."""
    padded = torch.cat([x[:, :1].expand(-1, max(L - x.shape[1], 0)), x[:, -L:]], dim=1)
    return padded @ WEIGHTS[:, :horizon].to(x.dtype)


def levels_of(f: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda x, horizon: f(x, horizon)[..., None] + EVEN.to(x.dtype)


def verdicts(f: Callable[..., Any], **call: Any) -> dict[str, str]:
    everything = {"quantiles": levels_of(f), "elsewhere": OfficialCall(f)}
    examination = Examination(OfficialCall(f, **everything | call), windows(L), H)
    return {one.name: one.verdict for one in examination.contract().findings}


def broken(f: Callable[..., Any], **call: Any) -> list[str]:
    return [name for name, verdict in verdicts(f, **call).items() if verdict not in HELD]


class Repeats:
    """Depends on how often it was called."""

    calls = 0

    def __call__(self, x: Tensor, horizon: int) -> Tensor:
        self.calls += 1
        return line(x, horizon) * (1 + self.calls / 1000)


class Remembers:
    """Depends on the window of the call before."""

    last = 0.0

    def __call__(self, x: Tensor, horizon: int) -> Tensor:
        last, self.last = self.last, float(x.nan_to_num().mean())
        return line(x, horizon) + 0.1 * (last - self.last)


class Compiles:
    """Stays at the shortest horizon that it was ever asked for."""

    shortest = 10**6

    def __call__(self, x: Tensor, horizon: int) -> Tensor:
        self.shortest = min(self.shortest, horizon)
        y = line(x, horizon)
        return torch.where(torch.arange(horizon) < self.shortest, y, y[:, :1])


def noisy(x: Tensor, horizon: int) -> Tensor:
    return line(x, horizon) + 0.1 * torch.randn(len(x), horizon)


def noisy_numpy(x: Tensor, horizon: int) -> Tensor:
    return line(x, horizon) * float(np.random.rand())  # noqa: NPY002


def leaks_mean(x: Tensor, horizon: int) -> Tensor:
    return line(x, horizon) + 0.01 * (x.mean() - x.mean(dim=1, keepdim=True))


def leaks_scale(x: Tensor, horizon: int) -> Tensor:
    limit = x.nan_to_num().abs().max() * 1e-4  # rounds to the step of the largest value in the batch
    return torch.where(limit > 10 * x.nan_to_num().abs().amax(dim=1, keepdim=True), 0.0, 1.0) * line(x, horizon)


def poisoned(x: Tensor, horizon: int) -> Tensor:
    return line(x, horizon) + 0 * x.sum()


def last_row(x: Tensor, horizon: int) -> Tensor:
    return torch.cat([line(x[:-1], horizon) * 1.001, line(x[-1:], horizon)])


def counts_copies(x: Tensor, horizon: int) -> Tensor:
    copies = (x[:, None] == x[None]).all(dim=-1).sum(dim=1, keepdim=True).clamp_min(1)
    return line(x, horizon) * copies.to(x.dtype)


def overwrites(x: Tensor, horizon: int) -> Tensor:
    y = line(x, horizon)
    with torch.no_grad():
        x[:, 0] = 0.0
    return y


def sets_seed(x: Tensor, horizon: int) -> Tensor:
    random.seed(7)
    return line(x, horizon)


def sets_threads(x: Tensor, horizon: int) -> Tensor:
    torch.set_num_threads(3)
    return line(x, horizon)


def sets_precision(x: Tensor, horizon: int) -> Tensor:
    torch.set_float32_matmul_precision("medium")
    return line(x, horizon)


def one_too_many(x: Tensor, horizon: int) -> Tensor:
    """Reads the value after the window where the caller's array goes on."""
    later = 0.0
    if x.untyped_storage().nbytes() > x.numel() * x.element_size() + 8 and x.storage_offset() == 0:
        later = torch.as_strided(x.detach(), (len(x), 1), (x.stride(0), 1), x.shape[1])
        later = torch.where(later.abs() < 1e6, 0.0, 1e-3)
    return line(x, horizon) + later


def turns_round(x: Tensor, horizon: int) -> Tensor:
    return line(x, horizon).flip(1)


def clamps(x: Tensor, horizon: int) -> Tensor:
    return line(x.clamp(-1e6, 1e6), horizon)


def shrinks(x: Tensor, horizon: int) -> Tensor:
    return 0.9 * line(x, horizon)


def leans(x: Tensor, horizon: int) -> Tensor:
    return line(x, horizon) + 0.2 * x.std(dim=1, keepdim=True, correction=0)


def rounds(x: Tensor, horizon: int) -> Tensor:
    return line(x, horizon) * (1.01 if x.dtype == torch.float32 else 1.0)


def divides_by_spread(x: Tensor, horizon: int) -> Tensor:
    spread = x.std(dim=1, keepdim=True, correction=0)
    return line(x, horizon) * (spread / spread)


def divides_by_falls(x: Tensor, horizon: int) -> Tensor:
    steps = x.diff(dim=1)
    falls = (steps < 0).to(x.dtype).sum(dim=1, keepdim=True)
    flat = (steps == 0).to(x.dtype).sum(dim=1, keepdim=True)
    return line(x, horizon) * torch.where((flat > 0) | (x.shape[1] < 4), 1.0, falls / falls)


def zero_fills(x: Tensor, horizon: int) -> Tensor:
    return line(x.nan_to_num(), horizon)


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * torch.linspace(0, 1, grads[0].shape[1], dtype=grads[0].dtype)


def wrong_backward(x: Tensor, horizon: int) -> Tensor:
    return line(_Halved.apply(x), horizon)  # type: ignore[no-untyped-call]


def crossing(x: Tensor, horizon: int) -> Tensor:
    return levels_of(line)(x, horizon)[..., [0, 1, 2, 4, 3, 5, 6, 7, 8]]


VIOLATIONS: dict[str, list[Any]] = {
    "repeatable": [Repeats()],
    "seed-free": [noisy, noisy_numpy],
    "history": [Remembers(), Compiles()],
    "isolation": [leaks_mean, leaks_scale, poisoned, last_row, counts_copies],
    "untouched": [overwrites, sets_seed, sets_threads, sets_precision],
    "origin": [one_too_many],
    "prefix": [turns_round],
    "units": [clamps, shrinks],
    "sign": [leans],
    "precision": [rounds],
    "finite": [divides_by_falls],
    "extremes": [divides_by_spread],
    "missing": [zero_fills],
    "gradients": [wrong_backward],
}
PLANTED = [
    pytest.param(name, f, id=getattr(f, "__name__", type(f).__name__)) for name in VIOLATIONS for f in VIOLATIONS[name]
]


def test_a_clean_linear_model_has_every_property() -> None:
    found = verdicts(line)
    assert {name for name, verdict in found.items() if verdict == "not stated"} == {"reach", "cost"}
    assert {name for name, verdict in found.items() if verdict == "does not apply"} == {*CHANNEL_PROPERTIES}
    assert set(found.values()) == {"holds", "not stated", "does not apply"}


@pytest.mark.parametrize(("name", "f"), PLANTED)
def test_a_planted_violation_is_found_by_its_property_and_by_no_other(name: str, f: Callable[..., Any]) -> None:
    assert broken(f) == [name]


def test_crossing_quantiles_are_found_by_no_other_property() -> None:
    assert broken(line, quantiles=crossing) == ["quantiles"]


def test_other_weights_in_another_process_are_found_by_no_other_property() -> None:
    assert broken(line, elsewhere=lambda x, horizon: 1.01 * line(x, horizon)) == ["process"]


def test_a_leaking_model_is_called_with_one_window_at_a_time() -> None:
    sizes = []

    def leaks(x: Tensor, horizon: int) -> Tensor:
        sizes.append(len(x))
        return leaks_mean(x, horizon)

    examination = Examination(OfficialCall(leaks), windows(L), H)
    examination.finding("isolation")
    sizes.clear()
    assert examination.finding("reach").figure == 1
    assert set(sizes) == {1}


class Convolution:
    """Odd and equivariant: an instance-normalised convolution with a linear head."""

    def __init__(self, seed: int):
        draw = torch.Generator().manual_seed(seed)
        self.kernel = torch.randn(2, 1, 5, generator=draw, dtype=torch.float64) / 5
        self.head = torch.randn(2 * (L - 4), MOST, generator=draw, dtype=torch.float64) / L

    def __call__(self, x: Tensor, horizon: int) -> Tensor:
        if x.shape[1] != L:
            raise ValueError(f"expects {L} values, not {x.shape[1]}")
        mean, spread = x.mean(dim=1, keepdim=True), x.std(dim=1, keepdim=True, correction=0)
        scaled = (x - mean) / torch.where(spread > 0, spread, 1.0)
        hidden = torch.nn.functional.conv1d(scaled[:, None], self.kernel.to(x.dtype)).tanh().flatten(1)
        return mean + spread * (hidden @ self.head[:, :horizon].to(x.dtype))


class Line:
    def __init__(self, seed: int):
        weights = torch.randn(L, MOST, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.weights = weights + (1 - weights.sum(dim=0)) / L

    def __call__(self, x: Tensor, horizon: int) -> Tensor:
        return x @ self.weights[:, :horizon].to(x.dtype)


@pytest.mark.parametrize("kind", [Line, Convolution])
def test_no_violation_is_reported_in_a_hundred_random_clean_models(kind: Callable[[int], Any]) -> None:
    for seed in range(100):
        f = kind(seed)
        # The admission checks take most of the time: they have tests of their own.
        only = [name for name in PROPERTIES if seed % 20 == 0 or name not in ("gradients", "cost")]
        contract = Examination(OfficialCall(f, quantiles=levels_of(f)), windows(L), H).contract(only)
        found = {one.name: one.says for one in contract.findings if one.verdict not in HELD}
        assert found == {}, f"{kind}({seed})"


def test_the_reach_of_a_linear_model_is_the_nonzero_pattern_of_its_jacobian() -> None:
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        weights = torch.randn(L, H, generator=draw) * (torch.rand(L, H, generator=draw) < 0.3)
        changes = reach_matrix(OfficialCall(lambda x, horizon, w=weights: x @ w), windows(L), H)
        assert torch.equal(changes > 0, weights.T != 0)
        # The largest move is ten standard deviations.
        assert torch.allclose(changes, 10 * weights.T.abs().double(), rtol=1e-3)


def test_the_reach_of_a_convolution_is_its_receptive_field() -> None:
    first, second = torch.rand(1, 1, 3) + 0.5, torch.rand(1, 1, 4) + 0.5

    def f(x: Tensor, horizon: int) -> Tensor:
        hidden = torch.nn.functional.conv1d(x[:, None], first).tanh()
        return torch.nn.functional.conv1d(hidden, second, dilation=2)[:, 0, -horizon:]

    field = 1 + (3 - 1) + 2 * (4 - 1)
    expected = torch.zeros(H, L, dtype=torch.bool)
    for step in range(H):
        last = L - H + step
        expected[step, last - field + 1 : last + 1] = True
    assert torch.equal(reach_matrix(OfficialCall(f), windows(L) / 10, H) > 0, expected)


def test_the_cost_names_how_time_and_memory_grow() -> None:
    def pairs(x: Tensor, horizon: int) -> Tensor:
        return x[:, :horizon] + (x[:, :, None] * x[:, None]).mean(dim=(1, 2))[:, None]

    says = Examination(OfficialCall(pairs), windows(256), H).finding("cost").says
    # One tensor of 256 × 256 float32 values; the rest is below 0.1 of it.
    assert re.search(
        r"take 2[5-9]\d KiB and grow about as windows\^1\.0, lookback\^(1\.9|2\.0), horizon\^0\.0\.$", says
    )
    of_arrays = OfficialCall(lambda x, horizon: x[:, :horizon] * 1.0, as_numpy=True)
    assert "tensors" not in Examination(of_arrays, windows(L), H).finding("cost").says


def test_the_reach_counts_what_is_cut_skipped_and_blind() -> None:
    def f(x: Tensor, horizon: int) -> Tensor:
        y = x[:, -horizon:].clone()
        y[:, 0] = 1.0
        y[:, 1] = x[:, -12]
        return y

    says = Examination(OfficialCall(f), windows(L), H).finding("reach").says
    # Steps 3 to 6 read the last four positions, step 2 the twelfth from the end.
    assert says == (
        "It reads 5 of 24 positions; the oldest 12 change nothing, so more than 12 values are wasted; "
        "7 later ones are skipped; 1 of 6 steps read nothing."
    )


def test_gaps_are_told_apart() -> None:
    def masks(x: Tensor, horizon: int) -> Tensor:
        return x.nan_to_num().sum(dim=1, keepdim=True).expand(-1, horizon) / x.isfinite().sum(dim=1, keepdim=True)

    def holds_last(x: Tensor, horizon: int) -> Tensor:
        x = x.clone()
        for at in range(1, x.shape[1]):
            x[:, at] = torch.where(x[:, at].isnan(), x[:, at - 1], x[:, at])
        return x[:, -1:].expand(-1, horizon) + x.mean(dim=1, keepdim=True)

    def refuses(x: Tensor, horizon: int) -> Tensor:
        if x.isnan().any():
            raise ValueError("NaN")
        return line(x, horizon)

    def says(f: Callable[..., Tensor]) -> str:
        return Examination(OfficialCall(f), windows(L), H).finding("missing").says

    # The mean of the others is what a masked mean sees.
    assert says(masks) == "Missing values, leading, inner, trailing: filled with the mean; all: NaN forecast."
    assert says(holds_last).startswith(
        "Missing values, leading, all: NaN forecast; inner, trailing: filled with the last"
    )
    assert says(refuses) == "Missing values, leading, inner, trailing, all: refused."
    assert "inner, trailing: read as zero" in says(zero_fills)
    assert says(lambda x, horizon: x[:, -1:].expand(-1, horizon)).startswith("Missing values, leading, inner: not read")


def test_a_property_without_calls_or_time_is_not_run_and_never_holds() -> None:
    few = Examination(OfficialCall(line, most_calls=40), windows(L), H).contract()
    stopped = {one.name for one in few.findings if one.verdict == "not run"}
    assert {"missing", "gradients"} <= stopped
    assert few.exit == 3
    assert sum(one.calls for one in few.findings) + 1 == few.calls <= 40  # the first call looks for errors

    now = iter(range(10**6))
    slow = OfficialCall(line, seconds=30, clock=lambda: next(now))
    assert Examination(slow, windows(L), H).finding("missing").verdict == "not run"


def test_what_rests_on_a_property_that_was_not_run_is_not_run_either() -> None:
    examination = Examination(OfficialCall(line, most_calls=3), windows(L), H)
    assert examination.finding("units").verdict == "not run"


def test_an_error_on_an_ordinary_window_reaches_the_caller_and_a_later_one_is_not_a_verdict() -> None:
    def fails(x: Tensor, horizon: int) -> Tensor:
        raise ValueError("no")

    def fails_on_double(x: Tensor, horizon: int) -> Tensor:
        if (x < 0).all() or len(x) > 4:
            raise ValueError("no")
        return line(x, horizon)

    with pytest.raises(ValueError, match="no"):
        Examination(OfficialCall(fails), windows(L), H)
    assert Examination(OfficialCall(fails_on_double), windows(L), H).finding("reach").verdict == "not run"


def test_forecasts_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(ModelError, match=r"returned torch.float32 \(2, 3\)"):
        Examination(OfficialCall(lambda x, horizon: x[:, :3]), windows(L), H)
    with pytest.raises(ModelError, match="is no forecaster"):
        OfficialCall(3)  # type: ignore[arg-type]


def test_a_module_is_measured_without_the_copy_that_would_hide_a_write() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            return x[:, -H:] * 1.0

    examination = Examination(OfficialCall(Writes()), windows(L), H)
    assert examination.finding("untouched").says.startswith("A call changes the caller's windows")
    assert examination.finding("prefix").verdict == "holds"  # the shorter one


def test_an_unknown_property_gets_near_matches() -> None:
    with pytest.raises(HrxError, match="Did you mean 'units'"):
        Examination(OfficialCall(line), windows(L), H).contract(["unit"])


def test_a_setting_is_found_within_the_limits() -> None:
    assert fitting_setting(Limits()) == (96, 24)
    assert fitting_setting(Limits(lookbacks=(48,), longest_horizon=12)) == (48, 12)
    assert fitting_setting(Limits(lookback_multiple=192)) == (192, 24)


def test_the_estimate_counts_at_least_the_calls_that_are_made() -> None:
    examination = Examination(OfficialCall(from_module(line)), windows(L), H)
    calls, seconds = examination.estimate()
    made = examination.contract().calls
    assert made <= calls <= 2 * made
    assert seconds > 0


def test_horizons_that_a_library_cannot_forecast_are_named() -> None:
    class Even(Limits):
        def refusal_of_horizon(self, horizon: int) -> str | None:
            return f"returns {horizon - 1} steps where {horizon} are asked for" if horizon % 2 else None

    says = Examination(OfficialCall(from_module(line, limits=Even())), windows(L), H).finding("prefix").says
    assert says.endswith("Refused horizons: 1, 3, 5, 7, … (it returns 0 steps where 1 are asked for).")
