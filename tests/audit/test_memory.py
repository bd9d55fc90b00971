"""What is known of memory before it is used, and the allocator that keeps what is freed."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import from_module, load
from hrx.audit import allocator
from hrx.audit.memory import FASTEST, Budget, allocated, by_window

MANY = 48


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "ttm", "moirai-2"])
def test_the_bytes_of_a_large_batch_follow_from_those_of_small_ones(checkpoints: dict[str, Path], family: str) -> None:
    model, x = load(f"{family}:{checkpoints[family]}"), series(1, 96)
    with torch.no_grad():
        taken = allocated(lambda: model.forward(x.repeat(MANY, 1), 24))
    expected = np.polyval(Budget()._fitted(model, x[0], 24), MANY)
    assert 0.98 * taken <= expected <= 1.05 * taken
    # A budget of these bytes holds that batch, and no larger one.
    assert abs(Budget(taken).rows(model, x[0], 24, 4 * MANY) - MANY) <= 0.05 * MANY


def test_bytes_that_grow_ever_more_slowly_are_not_taken_to_fall() -> None:
    def forecast(x: Tensor) -> Tensor:
        torch.ones(1000 * (len(x) if len(x) < 4 else 3))  # a scratch space that does not grow beyond three windows
        return x[:, :4] * 1.0

    model, x = from_module(forecast), series(1, 16)
    with torch.no_grad():
        taken = allocated(lambda: model.forward(x.repeat(100, 1), 4))
    assert np.polyval(Budget()._fitted(model, x[0], 4), 100) >= taken - 4 * 3000


def test_a_batch_is_as_large_as_the_bytes_of_the_fastest_one_and_never_above_the_memory() -> None:
    bytes_of_a_window = 4 * (2**20 + 2**18)
    model = from_module(lambda x: x.repeat(1, 2**20 // x.shape[1])[:, : 2**18] * 1.0)
    x = torch.randn(4096)
    plenty, little = Budget(), Budget(3 * bytes_of_a_window)
    most = plenty.rows(model, x, 2**18, 1000)
    assert (
        little.rows(model, x, 2**18, 1000)
        == little.fastest(model, x, 2**18, 1000)
        < plenty.fastest(model, x, 2**18, 1000)
    )
    assert plenty.fastest(model, x, 2**18, 1000) == FASTEST // bytes_of_a_window < most
    assert plenty.block(model, x, 2**18, 1000) == FASTEST // bytes_of_a_window
    assert little.block(model, x, 2**18, 1000) == little.rows(model, x, 2**18, 1000) < 16
    assert plenty.fastest(model, x, 2**18, 5) == plenty.rows(model, x, 2**18, 5) == 5


FAULTS = """
import resource, sys, torch
if sys.argv[1] == "kept":
    from hrx.audit.memory import Budget
    Budget()
def batch():
    return [torch.ones(3 * 2**20) for _ in range(12)]
torch.ones(1)
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(which: str, **variables: str) -> int:
    """Pages that the kernel had to clear for a batch of 144 MiB after one of its like."""
    environment = {name: value for name, value in os.environ.items() if name not in allocator._VARIABLES} | variables
    command = [sys.executable, "-c", FAULTS, which]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_what_a_batch_frees_is_kept_for_the_next_unless_the_environment_says_otherwise() -> None:
    pages = 144 * 2**20 // os.sysconf("SC_PAGESIZE")
    assert faults("given back") > 0.75 * pages
    assert faults("kept") < 0.25 * pages
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 0.75 * pages


def test_an_allocator_without_such_a_setting_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    for name in allocator._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not allocator.keep_freed_memory.__wrapped__()


PEAK = """
import torch
from pathlib import Path
from hrx.audit.scoring.distance import effective_lookback
from hrx.audit.memory import Budget
from hrx.audit.scoring.orderings import _with_shared
from hrx.audit.scoring.rank import rank
def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name + ":"))) // 1024
Budget()
matrix = torch.randn(100, 64, 8192)
_with_shared(matrix[:3], [0, 5]), effective_lookback(matrix[:3]), rank(matrix[:3])
before = status("VmRSS")
_with_shared(matrix, [0, 5]), effective_lookback(matrix), rank(matrix)
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no such file")
def test_what_is_had_window_by_window_takes_the_memory_of_one_window_and_the_results() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    # A window is 4 MiB in float64, the results are 100 x 3 x 64 KiB twice and smaller ones; all windows are 400 MiB.
    assert int(done.stdout) < 100


def test_functions_of_windows_are_those_of_each() -> None:
    matrix = torch.randn(5, 3, 4)
    found = by_window(lambda window: window.double().sum(dim=0), matrix, (4,))
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.stack([window.double().sum(dim=0) for window in matrix]))
