"""Checkpoints and data that several rooms' tests share."""

import gc
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from helpers import tiny

# The models here are tiny: a second thread would only wait for the first.
torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _collections_skip_what_is_imported() -> None:
    """Keeps the million objects of the imported libraries out of garbage collections.

    Libraries ask for full collections, `timesfm3` after each forecast, and a full one takes half a second here.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # so that the interpreter frees everything when it exits: bindings report what it keeps


@pytest.fixture(scope="session", autouse=True)
def workers_are_forked_from_imported_libraries() -> None:
    """Starts the server that audits fork their workers from; it lives as long as the tests and imports once."""
    if sys.platform == "linux":
        from hrx.audit.runner.processes import signals_blocked

        modules = ["hrx.audit.runner.processes", "torch._dynamo", "chronos"]
        multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
        with signals_blocked():
            forkserver.ensure_running()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of every family, by family name."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: make(root / name) for name, make in tiny.FAMILIES.items()}


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real datasets and a real checkpoint, where HRX_TEST_DATA names one."""
    folder = os.environ.get("HRX_TEST_DATA")
    if not folder:
        pytest.skip("HRX_TEST_DATA is not set: it names a folder with gift_eval/ and checkpoints/ for these checks")
    return Path(folder)
