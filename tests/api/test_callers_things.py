"""`hrx.explain` and `hrx.score` leave model, data and torch's state as they were, whatever state that is."""

import contextlib
import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import hrx

LOOKBACK, HORIZON = 24, 4
VALUES = np.sin(np.arange(60) / 3) + 5


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (
        torch.nn.Linear(LOOKBACK, 16),
        torch.nn.Dropout(0.5),
        torch.nn.BatchNorm1d(16),
        torch.nn.Linear(16, HORIZON),
    )
    module = torch.nn.Sequential(*layers).to(dtype).train()
    module[1].eval()
    module[0].bias.requires_grad_(False)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("call", [hrx.explain, hrx.score])
def test_a_module_in_training_goes_on_training(call: Any, dtype: torch.dtype) -> None:
    module, calls = network(dtype), list[int]()
    module[3].register_forward_hook(lambda *_: calls.append(1))
    x, y = torch.randn(8, LOOKBACK, dtype=dtype), torch.randn(8, HORIZON, dtype=dtype)
    (module(x) - y).square().mean().backward()
    state, gradient = copy.deepcopy(module.state_dict()), module[3].weight.grad.clone()
    modes = [part.training for part in module.modules()]
    hooks = len(module[3]._forward_hooks)
    loss = (module(x) - y).square().mean()  # a graph that is open while hrx explains
    kept = copy.deepcopy(module.state_dict())
    call(module, VALUES, HORIZON, lookback=LOOKBACK)
    assert [part.training for part in module.modules()] == modes
    assert {tensor.dtype for tensor in module.parameters()} == {dtype}
    assert [tensor.requires_grad for tensor in module.parameters()] == [True, False, True, True, True, True]
    assert torch.equal(module[3].weight.grad, gradient)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in module.state_dict().items())
    assert set(state) == set(module.state_dict())
    assert len(module[3]._forward_hooks) == hooks
    loss.backward()
    assert not torch.equal(module[3].weight.grad, gradient)


@pytest.mark.parametrize("scope", [torch.no_grad, torch.inference_mode])
def test_a_matrix_without_gradients_enabled_is_the_same(scope: Any) -> None:
    module = network()
    x = hrx.explain(module, VALUES, HORIZON, lookback=LOOKBACK)
    q = hrx.score(module, VALUES, HORIZON, lookback=LOOKBACK)
    with scope():
        inside = hrx.explain(module, VALUES, HORIZON, lookback=LOOKBACK, held_out=True)
        scored = hrx.score(module, VALUES, HORIZON, lookback=LOOKBACK)
    np.testing.assert_array_equal(inside.matrix, x.matrix)
    assert inside.matrix.any()
    assert scored.normalised == q.normalised
    assert not inside.held_out[0].failed
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("kind", ["array", "tensor", "list", "frame", "series", "inference tensor"])
def test_data_are_never_written(kind: str) -> None:
    def destructive(x: torch.Tensor) -> torch.Tensor:
        x /= x.abs().mean(dim=1, keepdim=True)
        return x[:, :HORIZON]

    with torch.inference_mode() if kind == "inference tensor" else contextlib.nullcontext():
        tensor = torch.as_tensor(VALUES.copy())
    data = {
        "array": VALUES.copy(), "tensor": tensor, "inference tensor": tensor, "list": VALUES.tolist(),
        "frame": pd.DataFrame({"y": VALUES}), "series": pd.Series(VALUES),
    }[kind]  # fmt: skip
    before = copy.deepcopy(data) if kind != "inference tensor" else None
    state = torch.get_rng_state()
    x = hrx.explain(destructive, data, HORIZON, lookback=LOOKBACK, estimator="occlusion")
    x.score()
    np.testing.assert_array_equal(np.asarray(data if before is None else before).ravel(), np.asarray(data).ravel())
    np.testing.assert_array_equal(np.asarray(data).ravel(), VALUES)
    assert torch.equal(torch.get_rng_state(), state)


def test_series_of_several_seasons_are_explained_together_each_by_the_model_of_its_season() -> None:
    class Seasonal(hrx.adapters.Forecaster):
        """Repeats the last season."""

        identity = hrx.adapters.Identity("seasonal", "test", "seasonal", "0", "none")

        def __init__(self, season: int = 1) -> None:
            self.season = season

        def for_season(self, season: int) -> "Seasonal":
            return self if season == self.season else Seasonal(season)

        def predict(self, x: torch.Tensor, horizon: int) -> torch.Tensor:
            return x[:, -self.season :].repeat(1, horizon)[:, :horizon]

        def official(self, x: torch.Tensor, horizon: int) -> torch.Tensor:
            return self.predict(x, horizon)

    index = {"day": pd.date_range("2024", periods=60), "month": pd.date_range("2020", periods=60, freq="MS")}
    data = [pd.Series(VALUES, index=dates, name=name) for name, dates in index.items()]
    x = hrx.explain(Seasonal(), [*data, VALUES], 12, lookback=LOOKBACK)
    for number, season in enumerate((7, 12, 1)):
        expected = np.zeros((12, LOOKBACK))
        expected[np.arange(12), LOOKBACK - season + np.arange(12) % season] = 1
        np.testing.assert_array_equal(x.matrix[number], expected)
        if season > 1:
            rank = hrx.audit.score(Seasonal(season), torch.as_tensor(x.x[[number]]).float(), 12).rank
            assert x[number].score().rank == rank
