"""Admission, with a model that violates each check."""

import copy
from pathlib import Path

import pytest
import torch
from helpers.tiny import series

from hrx.adapters import Forecaster, from_module, load
from hrx.adapters.contract import Limits
from hrx.adapters.formats.module import held_model
from hrx.audit.admission import Check, admit, parameters, parity
from hrx.audit.memory import MemoryBudget


def failed(model: Forecaster, lookback: int = 40, horizon: int = 12) -> set[str]:
    return {check.check for check in admit(model, series(2, lookback), horizon) if not check.passed}


def figure_of(model: Forecaster, name: str, lookback: int = 40, horizon: int = 12) -> Check:
    return next(check for check in admit(model, series(2, lookback), horizon) if check.check == name)


class Honest(torch.nn.Module):
    """Instance normalisation around a small network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(40, 16), torch.nn.Tanh(), torch.nn.Linear(16, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, scale = self.mean(x), x.std(dim=1, keepdim=True)
        return self.net((x - mean) / scale) * scale + mean

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm"])
def test_a_genuine_checkpoint_passes_all_six_checks(checkpoints: dict[str, Path], family: str) -> None:
    checks = admit(load(str(checkpoints[family])), series(2, 96), 24)
    assert [check.check for check in checks] == [
        "equivalence",
        "isolation",
        "determinism",
        "gradient path",
        "trained head",
        "derivative",
    ]
    assert all(check.passed for check in checks)
    assert all(check.setting == "96x24" for check in checks)
    assert "float64" in checks[-1].note


def test_an_honest_module_passes_in_float64() -> None:
    assert failed(from_module(Honest())) == set()
    assert figure_of(from_module(Honest()), "derivative").figure <= 1e-6


def test_a_window_on_a_kink_is_checked_beside_it_and_a_wrong_gradient_fails_there_too() -> None:
    class Maximum(torch.nn.Module):
        cut = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.cut:  # a constant where a value of the path should be
                x = x + torch.tensor(x.tolist()).mean(dim=1, keepdim=True)
            return torch.nn.functional.max_pool1d(x[:, None], 2)[:, 0, :12]

    x = series(2, 40).repeat_interleave(2, dim=1)[:, :40]  # pairs of equal values: every maximum has a kink
    right, wrong = Maximum(), Maximum()
    wrong.cut = True
    check = admit(from_module(right), x, 12)[-1]
    assert check.passed
    assert "at windows moved by 0.001: they lie on a kink" in check.note
    check = admit(from_module(wrong), x, 12)[-1]
    assert not check.passed
    assert "kink" not in check.note


def test_a_kink_beside_the_window_is_not_a_wrong_gradient() -> None:
    # Multiples of 1/16: products and sums are exact in fp32, so both precisions are on the same side of the corner.
    x = (series(2, 40) * 16).round() / 16

    class Kinked(torch.nn.Module):
        """Rectified, with the first window less than a millionth from the corner."""

        def __init__(self) -> None:
            super().__init__()
            weight = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
            self.weight = torch.nn.Parameter((weight * 4).round() / 16)
            self.register_buffer("corner", x[0] @ self.weight.detach() - 5e-7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x @ self.weight
            return y + torch.relu(y - self.corner)

    assert all(check.passed for check in admit(from_module(Kinked()), x, 12))


def test_a_wrong_forward_fails_equivalence() -> None:
    model = from_module(Honest())
    genuine = model.official
    model.official = lambda x, horizon: genuine(x, horizon) * (1 + 3e-5)  # type: ignore[method-assign]
    assert "equivalence" in failed(model)
    assert parity(model, series(2, 40), 12) == pytest.approx(3e-5, rel=0.1)


def test_the_figure_of_a_passed_equivalence_check_is_the_parity_that_each_run_stores() -> None:
    model = from_module(Honest())
    genuine = model.official
    model.official = lambda x, horizon: genuine(x, horizon) * (1 + 3e-6)  # type: ignore[method-assign]
    check = figure_of(model, "equivalence")
    assert check.passed
    assert check.figure == parity(model, series(2, 40), 12) == pytest.approx(3e-6, rel=0.2)


def test_a_forecast_that_depends_on_the_windows_beside_it_fails_isolation() -> None:
    class Mixing(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y + 0.01 * y.mean(dim=0)

    check = figure_of(from_module(Mixing()), "isolation")
    assert not check.passed
    assert "depends on its batch: state Limits(alone=True)" in check.note
    alone = held_model(from_module(Mixing(), limits=Limits(alone=True)))
    assert failed(alone) == set()
    assert alone.official_call == "the module without gradients, one window per call"


@pytest.mark.parametrize("call", ["official", "forward"])
def test_a_call_that_is_wrong_in_large_batches_only_fails_isolation_alone(call: str) -> None:
    model = from_module(Honest())
    genuine = getattr(model, call)
    setattr(model, call, lambda x, horizon: genuine(x, horizon) * (1.001 if len(x) > 64 else 1.0))
    assert failed(model) == {"isolation"}
    assert figure_of(model, "isolation").figure == pytest.approx(1e-3, rel=0.01)


def test_isolation_is_checked_in_the_largest_batch_that_the_memory_allows() -> None:
    sizes = []

    class Counting(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x)

    model, x = from_module(Counting()), series(2, 40)
    budget = MemoryBudget(2**18)
    rows = budget.fastest(model, x[0], 12, 512)
    assert 8 < rows < 512
    sizes.clear()
    admit(model, x, 12, budget)
    assert max(sizes) == rows


def test_a_forecast_that_depends_on_its_place_in_the_batch_fails_isolation_even_for_one_window() -> None:
    model = from_module(lambda x: x[:, :12] + 0.1 * torch.arange(len(x))[:, None])
    check = next(c for c in admit(model, series(1, 40), 12) if c.check == "isolation")
    assert not check.passed


def test_a_forecast_that_depends_on_earlier_calls_fails_determinism() -> None:
    class Remembering(Honest):
        scale: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            self.seen = 0.9 * getattr(self, "seen", 0.0) + float(x.detach().abs().max())
            return y * (1 + 0.01 * self.seen)

    assert "determinism" in failed(from_module(Remembering()))


def test_a_gradient_that_is_right_in_float64_only_fails_the_derivative_check() -> None:
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.flip(-1)

    class TwoFaced(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if x.dtype == torch.float64 else Reversed.apply(x))

    check = figure_of(from_module(TwoFaced()), "derivative")
    assert not check.passed
    assert "in fp32 against that of the same code in float64" in check.note


def test_a_model_that_cannot_be_copied_is_checked_in_fp32() -> None:
    class Keeping(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = super().forward(x)
            return self.last

    assert failed(from_module(Keeping())) == set()


def test_a_wrong_gradient_of_one_weak_step_is_not_hidden_by_strong_ones() -> None:
    class Frozen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y: torch.Tensor) -> torch.Tensor:
            return y.clone()

        @staticmethod
        def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
            return torch.cat([-gradient[:, :1], gradient[:, 1:]], dim=1)

    weight = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
    weight[:, 0] *= 0.02
    model = from_module(lambda x: Frozen.apply(x @ weight))
    assert not figure_of(model, "derivative").passed


def test_a_sampled_forecast_fails_determinism() -> None:
    class Sampled(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 0.01 * torch.randn(len(x), 12).to(x)

    assert "determinism" in failed(from_module(Sampled()))


def test_a_detached_statistic_is_undone_and_passes() -> None:
    class Detached(Honest):
        def mean(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim=1, keepdim=True).detach()

    assert failed(from_module(Detached())) == set()


def test_a_path_detached_beyond_repair_fails_the_derivative_check() -> None:
    class Constants(Honest):
        def mean(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[row.mean().item()] for row in x]).to(x)

    check = figure_of(from_module(Constants()), "derivative")
    assert not check.passed
    assert check.figure > 0.1
    assert failed(from_module(Constants())) == {"derivative"}


def test_a_path_detached_altogether_has_no_gradient() -> None:
    class Severed(Honest):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.tensor(x.tolist(), dtype=x.dtype))

    assert {"gradient path", "derivative"} <= failed(from_module(Severed()))


def test_a_head_initialised_anew_after_loading_fails_the_trained_head_check() -> None:
    def loaded() -> Forecaster:
        return from_module(Honest())

    def loaded_with_a_new_head() -> Forecaster:
        seed = torch.initial_seed()
        module = Honest()
        torch.manual_seed(seed)
        torch.nn.init.normal_(module.net[2].weight)
        return from_module(module)

    for again, expected in ((loaded, set()), (loaded_with_a_new_head, {"trained head"})):
        model = from_module(Honest())
        model.reload = again  # type: ignore[method-assign]
        assert failed(model) == expected


def test_weights_changed_after_loading_fail_the_trained_head_check(checkpoints: dict[str, Path]) -> None:
    model = copy.deepcopy(load(str(checkpoints["ttm"])))
    with torch.no_grad():
        parameters(model)[0].add_(1e-3)
    check = next(c for c in admit(model, series(2, 96), 24) if c.check == "trained head")
    assert not check.passed


def test_a_gradient_of_constant_magnitude_fails_the_gradient_path_check() -> None:
    class Quantised(torch.nn.Module):
        """Uses tokens, which have no derivative, and a scale with the same derivative at every position."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = x.abs().mean(dim=1, keepdim=True)
            tokens = torch.round(x / scale * 4)
            return scale * torch.tanh(tokens[:, :12] + tokens.flip(1)[:, :12])

    check = figure_of(from_module(Quantised()), "gradient path")
    assert not check.passed
    assert "same magnitude" in check.note


def test_a_model_that_ignores_its_input_fails_the_gradient_path_check() -> None:
    model = from_module(lambda x: torch.linspace(0, 1, 12).expand(len(x), -1) + 0 * x[:, :12])
    check = figure_of(model, "gradient path")
    assert not check.passed
    assert "ignores its input" in check.note


def test_a_gradient_that_is_not_finite_fails_the_gradient_path_check() -> None:
    model = from_module(lambda x: (x[:, :12] - x[:, :12]).abs().pow(0.5).log().clamp(-1, 1) + torch.log(x[:, :12] * 0))
    assert "gradient path" in failed(model)
