"""Whether a checkpoint may be audited: six checks, each with its figure and its limit; and sanity checks of a matrix.

A failure is a result. It is stored and shown, and the runs of that setting are recorded as excluded. The sanity checks
are no part of admission: an explanation depends on the learned parameters (parameter randomisation of Adebayo et al.,
2018, all parameters at once) and hardly on small noise. A model that fails one may be audited, but its matrix is weaker
evidence.
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import isfinite, nan

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.contract import ADAPTER_VERSION, Forecaster, Identity, Limits, ModelError
from hrx.adapters.gradients import relative_difference
from hrx.adapters.wrapped import Bound
from hrx.audit.attribution.explanation import explain
from hrx.audit.attribution.gradients import jacobian
from hrx.audit.memory import MOST_ROWS, MemoryBudget
from hrx.audit.protocol import rearranged
from hrx.audit.scoring.deletion import ranks
from hrx.audit.torch_state import kept_random_state
from hrx.records.ledger import StoredCheck

EQUIVALENCE_LIMIT = 1e-5
AGREEMENT_LIMIT = 1e-6
"""For two calls that should be equal: allows for a device's rounding, not for a sample."""
DERIVATIVE_LIMIT = 1e-2
DERIVATIVE_LIMIT_DOUBLE = 1e-6
LEAST_SPREAD = 1e-6
"""Below this relative spread over the lookback, a gradient does not distinguish positions."""
DOUBLE_LIMIT = 1e-3
"""How far fp32 rounding may move a forecast away from the float64 one of the same code."""
WEAKEST_STEP = 0.05
"""A forecast step that changes less than this share of the strongest is compared with that share."""
DIRECTIONS = 4
STEPS = tuple(10.0**-e for e in (1, 1.5, 2, 2.5, 3, 3.5, 4))
STEPS_DOUBLE = tuple(10.0**-e for e in (3, 4, 5, 6, 7, 8))
"""Short steps are for rectified units that switch within a millionth of a real window."""
RELOAD_SEED = 104_729
"""Under which a model is loaded again: an unlikely one for its first load, which is left as it happens."""
KINK_DISTANCE = 1e-3
"""How far windows are moved, in standard deviations, where they lie on a kink: a maximum over equal values has one."""

CHECK_NAMES = frozenset({"equivalence", "isolation", "determinism", "gradient path", "trained head", "derivative"})
"""Checks of an admission: a model is admitted only where each of them has passed."""


@dataclass(frozen=True)
class Check:
    """Outcome of one check at one setting."""

    check: str
    setting: str
    passed: bool
    figure: float
    limit: float
    note: str
    """What was compared and, on failure, what it means."""


def at_most(check: str, setting: str, figure: float, limit: float, note: str, failure: str) -> Check:
    """A check that passes up to its limit. On failure the note also says what that means."""
    passed = figure <= limit
    return Check(check, setting, passed, figure, limit, note if passed else f"{note}: {failure}")


def admit(model: Forecaster, x: Tensor, horizon: int, budget: MemoryBudget | None = None) -> tuple[Check, ...]:
    """All six checks on real windows `x` `(W, L)` of one setting; `budget` is that of the runs."""
    one = _Admission(model, x, horizon, budget or MemoryBudget())
    if not model.differentiable:
        return one.isolation(), one.determinism(), one.sensitivity()
    checks = one.equivalence, one.isolation, one.determinism, one.gradient_path, one.trained_head, one.derivative
    return tuple(check() for check in checks)


def refuse_misleading(
    model: Forecaster, x: Tensor, forecast: Tensor, matrix: Tensor, *, gradient: bool, least: float = 0.0
) -> None:
    """Raise where the explanation of windows `(B, L)` would mislead: a sampler, another forecast, a detached gradient.

    `forecast` `(B, H)` and `matrix` are those to be shown. Differences are relative to the largest forecast, or to
    `least`. It takes one official call, more only to tell the reason.
    """
    name, horizon = model.identity.model, forecast.shape[1]
    with kept_random_state():
        torch.manual_seed(0)
        official = model.official(x.clone(), horizon)
        apart, largest = relative_difference(forecast, official), float(official.abs().max())
        if least > largest > 0:
            apart *= largest / least
        if not apart <= EQUIVALENCE_LIMIT:
            torch.manual_seed(1)
            if not relative_difference(model.official(x.clone(), horizon), official) <= AGREEMENT_LIMIT:
                raise ModelError(
                    f"{name} gives another forecast of the same window when it is called again: it samples, or it "
                    "depends on earlier calls, so there is no matrix of its forecast. Fix its seed, or give a function "
                    "of windows, horizon and seed: hrx.from_callable(f, seeded=True)."
                )
            raise ModelError(
                f"{name}: the forecast that would be explained differs from {model.official_call} by {apart:.1e} of "
                f"its size; the limit is {EQUIVALENCE_LIMIT:g}. `hrx verify` shows more; check=False explains it all "
                "the same."
            )
    if gradient and not matrix.any():
        with torch.no_grad():
            moved = relative_difference(model.forward(x.flip(1), horizon), forecast)
        if moved > EQUIVALENCE_LIMIT:
            raise ModelError(
                f"{name}: the forecast has no gradient, although it changes with the window: a part of its computation "
                "is detached. Choose an estimator that needs none, such as occlusion."
            )


def parity(model: Forecaster, x: Tensor, horizon: int, forecast: Tensor | None = None) -> float:
    """Return `max|a−b| / max|b|` of forward, with gradients and without, and the official call.

    Every run repeats it on its own windows; `forecast` is the one without gradients, where it has been made already.
    """
    official = model.official(x.clone(), horizon)
    with torch.enable_grad():
        ours = model.forward(x.clone().requires_grad_() * 1.0, horizon)
    if forecast is None:
        with torch.no_grad():
            forecast = model.forward(x, horizon)
    return max(relative_difference(ours.detach(), official), relative_difference(forecast, official))


@dataclass(frozen=True)
class _Admission:
    """A model on windows of one setting; the forecast and the rows that several checks need are computed once."""

    model: Forecaster
    x: Tensor
    horizon: int
    budget: MemoryBudget

    @cached_property
    def setting(self) -> str:
        return f"{self.x.shape[1]}x{self.horizon}"

    def sensitivity(self) -> Check:
        """Whether the forecast of a model without derivatives changes when its window is reversed."""
        figure = relative_difference(self.model.official(self.x.flip(1), self.horizon), self.official)
        note = "forecasts of the windows and of the reversed windows, max|a−b| / max|b|"
        says = note if figure > 0 else f"{note}: it reads nothing"
        return Check("sensitivity", self.setting, figure > 0, figure, 0.0, says)

    @cached_property
    def official(self) -> Tensor:
        """Official forecast under seed 0."""
        torch.manual_seed(0)
        return self.model.official(self.x.clone(), self.horizon)

    @cached_property
    def slopes(self) -> Tensor:
        """`(L,)`: positions with a derivative: of several channels those of numbers that no window lacks."""
        if not isinstance(self.model, Bound):
            return torch.ones(self.x.shape[1], dtype=torch.bool)
        numbers = [channel.has_slope for channel in self.model.layout.channels]
        there = ~self.x.isnan().any(dim=0)
        return torch.tensor(numbers).repeat_interleave(torch.tensor(self.model.layout.sections)) & there

    @cached_property
    def others(self) -> Tensor:
        """`(3 W, L)`: further windows, which differ from those given; of several channels with values of their own."""
        x = self.x
        if isinstance(self.model, Bound):
            return rearranged(x, (0, 0), 0, 3, sections=self.model.layout.sections)[:, 0].transpose(0, 1).flatten(0, 1)
        return torch.cat([x.flip(1), -x, 2 * x.roll(1, 1)])

    @cached_property
    def rows(self) -> Tensor:
        """Jacobian rows `(W, H, L)`, zero where there is no derivative."""
        return self._rows(self.model, self.x)

    def _rows(self, model: Forecaster, x: Tensor) -> Tensor:
        rows = jacobian(model, x, self.horizon).jacobian
        return rows if bool(self.slopes.all()) else rows.masked_fill(~self.slopes, 0)

    def equivalence(self) -> Check:
        note = "forward against the official call, max|a−b| / max|b|"
        failure = "the adapter computes another forecast than the library"
        figure = parity(self.model, self.x, self.horizon)
        return at_most("equivalence", self.setting, figure, EQUIVALENCE_LIMIT, note, failure)

    def isolation(self) -> Check:
        """Windows alone against the same windows in the largest batch of a run, by the official call and by forward."""
        model, x, horizon = self.model, self.x, self.horizon
        different = torch.cat([x, self.others])
        most = 1 if model.limits.alone else MOST_ROWS
        rows = max(self.budget.fastest(model, x[0], horizon, most), len(different))
        window = np.arange(rows) % len(different)
        window[-1] = 0
        alone = np.unique([0, len(different) // 2, len(different) - 1])
        compared = np.isin(window, alone)  # a call for each window would take long
        apart: list[float] = []
        for call in (model.official, model.forward):
            with torch.no_grad():
                expected = torch.cat([call(different[one : one + 1].clone(), horizon) for one in alone])
                found = call(different[window], horizon)[compared]
            apart.append(relative_difference(found, expected[np.searchsorted(alone, window[compared])]))
        note = f"windows alone and in a batch of {rows}, max|a−b| / max|b|: "
        note += f"official {apart[0]:.1e}, forward {apart[1]:.1e}"
        failure = "the forecast of a window depends on its batch: state Limits(alone=True)"
        return at_most("isolation", self.setting, float(np.max(apart)), EQUIVALENCE_LIMIT, note, failure)

    def determinism(self) -> Check:
        figure = self._difference_of_next_call(self.model)
        note = "two official calls under different seeds, with another call in between, max|a−b| / max|b|"
        failure = "the forecast is sampled, so it has no input gradient, or it depends on earlier calls"
        return at_most("determinism", self.setting, figure, AGREEMENT_LIMIT, note, failure)

    def _difference_of_next_call(self, model: Forecaster) -> float:
        """Relative difference from the official forecast under another seed, after a forecast of other windows."""
        expected = self.official
        several = isinstance(self.model, Bound)
        model.official(self.others[: len(self.x)] if several else 3 * self.x.flip(1) + 1, self.horizon)
        torch.manual_seed(1)
        return relative_difference(expected, model.official(self.x.clone(), self.horizon))

    def gradient_path(self) -> Check:
        """`∂ŷ/∂x` exists, is finite, is not zero everywhere, and does not have one magnitude at every position."""
        magnitude = self.rows[..., self.slopes].abs().double()
        largest = magnitude.amax(dim=-1)
        spread = (largest - magnitude.amin(dim=-1)) / largest.clamp_min(torch.finfo(torch.float64).tiny)
        figure = float(spread.max())
        note = "relative spread of |∂ŷ/∂x| over the lookback"
        if not torch.isfinite(magnitude).all():
            figure, note = float("nan"), "the gradient is NaN or infinite"
        elif not largest.any():
            note = "the gradient is zero everywhere: the forecast ignores its input, or the path is detached"
        elif figure <= LEAST_SPREAD:
            note += ": the same magnitude at every position, as if it flowed through a scale only"
        return Check("gradient path", self.setting, figure > LEAST_SPREAD, figure, LEAST_SPREAD, note)

    def trained_head(self) -> Check:
        """No parameter was missing from the checkpoint or re-initialised after loading."""
        name, setting = "trained head", self.setting
        if unloaded := self.model.unloaded():
            note = f"{len(unloaded)} parameters do not hold the checkpoint's values, first {unloaded[0]}"
            return Check(name, setting, False, float(len(unloaded)), AGREEMENT_LIMIT, note)
        torch.manual_seed(RELOAD_SEED)
        again = self.model.reload()
        if again is None:
            return Check(name, setting, True, 0.0, 0.0, "passed in memory: there is no file to compare")
        figure = self._difference_of_next_call(again)
        note = "no parameter differs from its file; two loads under different seeds"
        if figure > 0:
            note = "two loads under different seeds disagree: a part of the model is initialised anew after loading"
        return Check(name, setting, figure == 0, figure, 0.0, note)

    def derivative(self) -> Check:
        """Directional derivatives of the forward against central finite differences of the official call.

        Float64 where the model allows it. A long step suffers from curvature, a short one from rounding, so each
        direction takes the best of several step lengths.
        """
        model, x, rows, steps, limit = self.model, self.x, self.rows, STEPS, DERIVATIVE_LIMIT
        if double := self._double():
            rows = self._rows(double, x.double())
            apart = float(torch.linalg.vector_norm(self.rows - rows) / torch.linalg.vector_norm(rows))
            if not apart <= DERIVATIVE_LIMIT:
                note = "the gradient in fp32 against that of the same code in float64: they disagree"
                return Check("derivative", self.setting, False, apart, DERIVATIVE_LIMIT, note)
            model, x, steps, limit = double, x.double(), STEPS_DOUBLE, DERIVATIVE_LIMIT_DOUBLE
        figure = self._derivative_error(model, x, rows, steps)
        note = f"directional derivatives against finite differences of the official call, {str(x.dtype).split('.')[-1]}"
        if double and not figure <= limit:
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
            x = x + KINK_DISTANCE * noise * self.slopes
            moved = self._derivative_error(model, x, self._rows(model, x), steps)
            if moved <= limit:
                note += f", at windows moved by {KINK_DISTANCE:g}: they lie on a kink, as a maximum has at equal values"
                figure = moved
        failure = "the gradient is not the forecast's derivative, as when a part of the path is detached"
        return at_most("derivative", self.setting, figure, limit, note, failure)

    def _derivative_error(self, model: Forecaster, x: Tensor, rows: Tensor, steps: tuple[float, ...]) -> float:
        """Return the worst relative error of the Jacobian rows `(W, H, L)` along random directions."""
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(DIRECTIONS, x.shape[1], generator=generator, dtype=torch.float64).to(x) * self.slopes
        slope = torch.einsum("whl,dl->dwh", rows, direction)
        given = model, x, self.horizon
        errors = torch.stack([_against_differences(*given, direction * step, slope * step) for step in steps])
        return float(errors.amin(dim=0).max())

    def _double(self) -> Forecaster | None:
        """Return the model in float64, where it computes in float64 and makes the same forecast."""
        try:
            double = self.model.double()
            if double is None:
                return None
            computed = double.official(self.x.double(), self.horizon)
        except Exception:  # a model that cannot be copied, or computes in fp32 only, is checked in fp32
            return None
        same = relative_difference(computed, self.official.double()) <= DOUBLE_LIMIT
        return double if same and computed.dtype == torch.float64 else None


def _against_differences(model: Forecaster, x: Tensor, horizon: int, move: Tensor, slope: Tensor) -> Tensor:
    """`(D,)`: relative error of `slope` `(D, W, H)` as half the change between `x − move` and `x + move`."""

    def moved(sign: float) -> Tensor:
        shifted = (x + sign * move[:, None]).flatten(0, 1)
        return model.official(shifted, horizon).to(x.dtype).reshape(len(move), len(x), horizon)

    change = (moved(1.0) - moved(-1.0)) / 2
    off = torch.linalg.vector_norm(slope - change, dim=1)
    size = torch.linalg.vector_norm(change, dim=1)
    # Per forecast step, so that strong steps do not hide a weak one; the floor excludes rounding in the weakest.
    floor = WEAKEST_STEP * size.amax(dim=1, keepdim=True)
    return torch.where(off == 0, 0.0, off / torch.maximum(size, floor)).nan_to_num(nan=torch.inf).amax(dim=1)


def admit_channels(model: Forecaster, x: Tensor, horizon: int, budget: MemoryBudget | None = None) -> tuple[Check, ...]:
    """Return the six admission checks on multivariate windows `x` `(W, L, C)`: every output against every input."""
    flat = _Flattened(model, x.shape[2])
    checks = admit(flat, x.flatten(1), horizon * flat.forecast_channels, budget)
    return tuple(replace(check, setting=f"{x.shape[1]}x{horizon}") for check in checks)


class _Flattened(Forecaster):
    """A multivariate forecaster with its channels flattened, `(B, L·C) -> (B, H·K)`."""

    def __init__(self, model: Forecaster, channels: int):
        self._model, self._channels = model, channels
        self.identity = model.identity
        self.limits = Limits()
        predicted = model.limits.predicted
        self.forecast_channels = channels if predicted is None else len(predicted)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        return self._model.predict(self._channels_last(x), horizon // self.forecast_channels).flatten(1)

    def official(self, x: Tensor, horizon: int) -> Tensor:
        return self._model.official(self._channels_last(x), horizon // self.forecast_channels).flatten(1)

    def double(self) -> Forecaster | None:
        double = self._model.double()
        return double and _Flattened(double, self._channels)

    def reload(self) -> Forecaster | None:
        loaded = self._model.reload()
        return loaded and _Flattened(loaded, self._channels)

    def unloaded(self) -> tuple[str, ...]:
        return self._model.unloaded()

    def _channels_last(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, self._channels)


def to_stored(identity: Identity, check: Check, digest: str = "") -> StoredCheck:
    """A check with the model and versions it was made with."""
    return StoredCheck(*versions(identity), model=identity.model, windows=digest, **asdict(check))


def versions(identity: Identity) -> tuple[str, str, str, str]:
    """Model and versions that a stored check belongs to, as its first columns."""
    return identity.fingerprint, identity.library, ADAPTER_VERSION, torch.__version__


RANDOMISED_LIMIT = 0.5
"""Upper bound on the rank correlation of the order of positions with that of a randomised model."""
NOISE = 1e-3
"""Standard deviation of the noise, relative to that of the window."""
CHANGE_LIMIT = 0.1
"""Upper bound on the relative change of the matrix under the noise: a hundred times the noise."""
ORDER_LIMIT = 0.95
"""Lower bound on the rank correlation of the order of positions with that of the undisturbed window."""
SEEDS = 3
SEARCH_DEPTH = 6


def sanity(model: Forecaster, x: Tensor, horizon: int) -> tuple[Check, ...]:
    """Return the checks on real windows `x` `(W, L)` of one setting, on the input gradient of the scored steps."""
    matrix, setting = _matrix(model, x, horizon), f"{x.shape[1]}x{horizon}"
    return (_randomisation(model, x, horizon, matrix, setting), *_stable(model, x, horizon, matrix, setting))


def _matrix(model: Forecaster, x: Tensor, horizon: int) -> Tensor:
    # The input gradient of the scored steps.
    return explain(model, x, horizon, estimator="saliency").double()


def _randomisation(model: Forecaster, x: Tensor, horizon: int, matrix: Tensor, setting: str) -> Check:
    name, randomised = "randomised parameters", parameters(model)
    if not randomised:
        note = "no parameters were found in this model, so they cannot be randomised"
        return Check(name, setting, False, nan, RANDOMISED_LIMIT, note)
    figures = []
    for seed in range(SEEDS):
        with _randomised_parameters(randomised, seed):
            figures.append(rank_correlation(matrix, _matrix(model, x, horizon)))
    # A randomised model may overflow: that seed is then left out.
    figure = max((value for value in figures if isfinite(value)), default=nan)
    note = f"rank correlation of the matrix with that of randomised parameters, largest of {SEEDS} seeds, at most"
    failure = "the explanation hardly depends on the learned parameters"
    if not isfinite(figure):
        failure = "the randomised model has no finite gradient"
    return at_most(name, setting, figure, RANDOMISED_LIMIT, note, failure)


def _stable(model: Forecaster, x: Tensor, horizon: int, matrix: Tensor, setting: str) -> tuple[Check, Check]:
    generator = torch.Generator().manual_seed(0)
    noise = NOISE * x.std(dim=1, keepdim=True) * torch.randn(x.shape, generator=generator).to(x)
    moved = _matrix(model, x + noise, horizon)
    change = float(torch.linalg.vector_norm(moved - matrix) / torch.linalg.vector_norm(matrix))
    order = rank_correlation(matrix, moved)
    under = f"under noise of {NOISE:g} of the window's standard deviation"
    size_note = f"relative change of the matrix {under}"
    order_note = f"rank correlation of the matrix with itself {under}, at least"
    return (
        Check("stable size", setting, change <= CHANGE_LIMIT, change, CHANGE_LIMIT, size_note),
        Check("stable order", setting, order >= ORDER_LIMIT, order, ORDER_LIMIT, order_note),
    )


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's, mean over the rows of two matrices `(W, R, L)`; NaN where a matrix is not finite.

    Ties are broken by position, as in every ordering of the protocol.
    """
    if not (torch.isfinite(first).all() and torch.isfinite(second).all()):
        return float("nan")
    a, b = ranks(first).double(), ranks(second).double()
    length = a.shape[-1]
    # The variance of the ranks 0 … L − 1 is (L² − 1) / 12.
    return float(1 - 6 * (a - b).square().sum(dim=-1).mean() / (length * (length**2 - 1)))


@contextmanager
def _randomised_parameters(parameters: list[torch.nn.Parameter], seed: int) -> Iterator[None]:
    """Draws every parameter from a normal distribution of its own mean square, and restores it afterwards."""
    generator = torch.Generator().manual_seed(seed)
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * value.double().square().mean().sqrt())
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


def parameters(model: Forecaster) -> list[torch.nn.Parameter]:
    """Every floating-point parameter of the modules that a forecaster holds in any attribute."""
    every = (parameter for module in _modules(model, set(), SEARCH_DEPTH) for parameter in module.parameters())
    return list({id(parameter): parameter for parameter in every if parameter.is_floating_point()}.values())


def _modules(holder: object, seen: set[int], depth: int) -> Iterator[torch.nn.Module]:
    """Return the modules that are reached from an object through attributes and containers."""
    if id(holder) in seen or depth < 0 or isinstance(holder, str | bytes | type | types.ModuleType | Tensor):
        return
    seen.add(id(holder))
    if isinstance(holder, torch.nn.Module):
        yield holder
        return
    attributes = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    for value in holder if isinstance(holder, list | tuple) else list(attributes.values()):
        yield from _modules(value, seen, depth - 1)
