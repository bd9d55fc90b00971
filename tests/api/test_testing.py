"""`hrx.testing`: the contract of any forecaster as pytest cases, with the smallest window that shows a violation."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hrx.testing import check_forecaster, parametrize_with_checks

L, H = 24, 6
QUICK = ["repeatable", "isolation", "units", "missing"]


def last(x: Tensor, horizon: int) -> Tensor:
    return x[:, -1:].expand(-1, horizon)


def leaks(x: Tensor, horizon: int) -> Tensor:
    return last(x, horizon) + 0.01 * (x.mean() - x.mean(dim=1, keepdim=True))


def window_of(message: str) -> Tensor:
    (line,) = (line for line in message.splitlines() if "torch.tensor" in line)
    scope: dict[str, Tensor] = {}
    exec(line.strip(), {"torch": torch}, scope)
    return scope["x"]


@parametrize_with_checks([last], lookback=L, horizon=H)
def test_a_clean_forecaster_passes_every_check(forecaster: object, check: object) -> None:
    assert callable(check)
    check(forecaster)


def test_a_clean_forecaster_gives_a_contract() -> None:
    contract = check_forecaster(last, lookback=L, horizon=H, only=QUICK)
    assert [one.verdict for one in contract.findings] == ["holds"] * 4
    assert contract.model == "last"


def test_a_violation_raises_with_a_small_window_that_shows_it() -> None:
    with pytest.raises(AssertionError, match="isolation does not hold") as error:
        check_forecaster(leaks, lookback=L, horizon=H, only=QUICK)
    x = window_of(str(error.value))
    assert x.shape == (1, 1)
    with pytest.raises(AssertionError):
        check_forecaster(leaks, x=x, horizon=H, only=["isolation"])


def test_the_window_is_as_long_as_the_violation_needs() -> None:
    def old(x: Tensor, horizon: int) -> Tensor:
        if x.shape[1] < 8:
            raise ValueError("too short")
        return last(x, horizon) * (1 + 0.01 * (x[:, :1] > 0))

    with pytest.raises(AssertionError) as error:
        check_forecaster(old, lookback=L, horizon=H, only=["sign"], promises=["sign"])
    x = window_of(str(error.value))
    assert x.shape == (1, 8)
    # The forecast of one sign only is scaled, and only where the last value is not zero.
    assert x[0, 0].abs() == 1
    assert x[0, -1].abs() == 1
    assert not x[0, 1:-1].any()


def test_a_window_without_a_finite_forecast_is_found_for_finite() -> None:
    def divides(x: Tensor, horizon: int) -> Tensor:
        rising = (x.diff(dim=1) > 0).all(dim=1, keepdim=True) & (x.shape[1] > 2)
        return torch.where(rising, torch.nan, last(x, horizon))

    with pytest.raises(AssertionError, match="a rising line") as error:
        check_forecaster(divides, lookback=L, horizon=H, only=["finite"])
    assert (window_of(str(error.value)).diff() > 0).all()


def test_a_promise_is_required_and_a_choice_is_not() -> None:
    def biased(x: Tensor, horizon: int) -> Tensor:
        return last(x, horizon) + 1

    contract = check_forecaster(biased, lookback=L, horizon=H, only=["units"])
    assert contract.findings[0].verdict == "does not hold"
    with pytest.raises(AssertionError, match="units does not hold"):
        check_forecaster(biased, lookback=L, horizon=H, only=["units"], promises=["units"])


def test_functions_of_arrays_are_checked_and_their_writes_are_seen() -> None:
    import numpy as np
    import numpy.typing as npt

    def persists(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.repeat(x[:, -1:], H, axis=1)

    def writes(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        x -= 1
        return persists(x)

    contract = check_forecaster(persists, lookback=L, horizon=H, as_numpy=True)
    assert {one.verdict for one in contract.findings} == {"holds", "does not apply", "not stated"}
    with pytest.raises(AssertionError, match="the caller's windows"):
        check_forecaster(writes, lookback=L, horizon=H, as_numpy=True, only=["untouched"])


@pytest.mark.slow
def test_a_users_test_file_reports_one_case_per_property(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import torch\n"
        "from hrx.testing import parametrize_with_checks\n"
        "torch.manual_seed(0)\n"
        "def leaks(x, horizon):\n"
        "    return x[:, -1:].expand(-1, horizon) + x.mean() - x.mean(dim=1, keepdim=True)\n"
        "line, only = torch.nn.Linear(24, 6), ['isolation', 'units']\n"
        "@parametrize_with_checks([line, leaks], lookback=24, horizon=6, only=only)\n"
        "def test_contract(forecaster, check):\n"
        "    check(forecaster)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 2 passed, 1 skipped" in done.stdout, done.stdout
    assert "FAILED test_mine.py::test_contract[leaks-1-isolation]" in done.stdout
    assert "units does not hold: Another unit gives another forecast" in done.stdout
    assert "x = torch.tensor([[" in done.stdout
