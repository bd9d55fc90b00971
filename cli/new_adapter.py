"""`hrx new-adapter NAME`: the skeleton of a model family, an adapter and its test.

docs/add-a-model.md fills it in for T0.
"""

import argparse
import re
from keyword import iskeyword, kwlist
from pathlib import Path
from string import Template
from typing import NamedTuple

from hrx.cli.terminal import show
from hrx.errors import Exit, HrxError
from hrx.files import reason, shown_path

ADAPTER = Template('''\
"""$title (`DISTRIBUTION`): what kind of model it is, in one sentence.

What the official call does around the model, and `predict` repeats: paddings, adjustments, sorted quantiles.
"""

from typing import Any

from torch import Tensor

from hrx.adapters.checkpoint import CheckpointForecaster
from hrx.adapters.contract import Limits


class $title(CheckpointForecaster):
    """The median of a $title checkpoint."""

    official_call = "Library.forecast"

    def open_library(self) -> Any:
        raise NotImplementedError("open_library: load self.checkpoint.path with the library's own loader, on the CPU")

    def read_limits(self) -> Limits:
        raise NotImplementedError("read_limits: Limits() with the lookbacks and horizons that the library handles")

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        raise NotImplementedError("predict: the library's computation (B, L) -> (B, horizon), below inference_mode")

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        raise NotImplementedError("official: the library's public call, unchanged, sharing no code with predict")
''')

TEST = Template('''\
"""A tiny checkpoint of $name: parity, gradients, and the five checks of admission."""

from pathlib import Path

import pytest
import torch

$imports

NAME = "$name"


def build(path: Path) -> Path:
    """A tiny model with random weights, made by the library's classes and saved in its official format."""
    raise NotImplementedError("build: construct a tiny model with the library's own classes and save it to path")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> $title:
    path = build(tmp_path_factory.mktemp("tiny") / NAME)
    return $title(Checkpoint(path, NAME, NAME), Identity(NAME, NAME, NAME, "tiny", "DISTRIBUTION"))


def waves(windows: int, lookback: int) -> torch.Tensor:
    """`(W, L)`: seasonal windows with noise."""
    generator = torch.Generator().manual_seed(0)
    time, phase = torch.arange(lookback), torch.rand(windows, 1, generator=generator)
    return torch.sin(time / 4 + 6 * phase) + 0.3 * torch.randn(windows, lookback, generator=generator) + phase


@pytest.mark.parametrize(("lookback", "horizon"), [(96, 24), (100, 30), (17, 5), (512, 192)])
def test_forward_equals_the_official_call(model: $title, lookback: int, horizon: int) -> None:
    if refusal := model.limits.refusal(lookback, horizon):
        pytest.skip(refusal)
    x = waves(3, lookback)
    before = x.clone()
    assert parity(model, x, horizon) <= EQUIVALENCE_LIMIT
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", ["flat", "flat in part", "far from zero", "huge"])
def test_gradients_of_hard_windows_are_finite(model: $title, kind: str) -> None:
    x = waves(2, 96)
    part = torch.cat([x[:, :40], torch.full((2, 32), 0.5), x[:, 72:]], dim=1)
    window = {"flat": torch.full_like(x, 3.0), "flat in part": part, "far from zero": x + 1e4, "huge": x * 1e6}[kind]
    assert parity(model, window, 24) <= EQUIVALENCE_LIMIT
    with GradientPath():
        leaf, working = differentiable_input(window)
        (slope,) = torch.autograd.grad(model.forward(working, 24).sum(), leaf)
    assert slope.isfinite().all()


def test_all_five_checks_admit_it_in_float64(model: $title) -> None:
    checks = admit(model, waves(2, 96), 24)
    assert [check for check in checks if not check.passed] == []
    assert "float64" in checks[-1].note
''')


IMPORTS = (
    "from hrx.adapters import GradientPath, Identity",
    "from hrx.adapters.checkpoint import Checkpoint",
    "from hrx.adapters.gradients import differentiable_input",
    "from hrx.audit.admission.checks import EQUIVALENCE_LIMIT, admit, parity",
)
"""Of the test; that of the adapter comes to them."""
LONGEST_NAME = 24


class Skeleton(NamedTuple):
    """The two files of a family, by path from the working directory."""

    adapter: Path
    adapter_text: str
    test: Path
    test_text: str
    loader: str
    """`module:Class`, as the `Family` names it."""


def skeleton(name: str, *, in_clone: bool) -> Skeleton:
    """The files of a family: in the folders of hrx for a clone, else both in the working directory."""
    stem = re.sub(r"[-.]", "_", name)
    title = class_name(name)
    # A file beside the user's code must not hide the library of the same name.
    file = stem if in_clone else f"{stem}_adapter"
    module = f"hrx.adapters.{file}" if in_clone else file
    imported = f"from {module} import {title}"
    imports = sorted([*IMPORTS, imported], key=str.split) if in_clone else [imported, "", *IMPORTS]
    return Skeleton(
        adapter=Path("adapters" if in_clone else "", f"{file}.py"),
        adapter_text=ADAPTER.substitute(title=title),
        test=Path("tests/adapters" if in_clone else "", f"test_{file}.py"),
        test_text=TEST.substitute(name=name, title=title, imports="\n".join(imports)),
        loader=f"{module}:{title}",
    )


def class_name(name: str) -> str:
    """`MyModel2` for `my-model.2`."""
    return "".join(part.capitalize() for part in re.split(r"[-.]", name))


def new_adapter(options: argparse.Namespace) -> int:
    """Writes the two files, or none; never over a file that exists."""
    name: str = options.name
    _check_name(name)
    in_clone = Path("adapters/families.py").is_file() and Path("tests/adapters").is_dir()
    files = skeleton(name, in_clone=in_clone)
    _write({files.adapter: files.adapter_text, files.test: files.test_text})
    family = f'Family("{name}", "{files.loader}", "DISTRIBUTION", "{name}", config_keys=("KEY", …))'
    register = (
        f"add to BUILT_IN in adapters/families.py: {family}"
        if in_clone
        else f"give your package the entry point `{name}` of the group hrx.adapters: {family}"
    )
    show(f"Wrote {files.adapter} and {files.test}. Next:")
    show("1. Fill in what raises NotImplementedError; docs/add-a-model.md does it for T0.")
    show(f"2. Run python -m pytest {files.test}, which checks it on a tiny checkpoint.")
    show(f"3. Register the family: {register}")
    show("4. Run hrx verify PATH on a checkpoint.")
    return Exit.DONE


def _check_name(name: str) -> None:
    from hrx.adapters import families  # imports torch, which --help does without

    if not re.fullmatch(r"[a-z][a-z0-9]*([-.][a-z0-9]+)*", name) or len(name) > LONGEST_NAME:
        raise HrxError(
            f"{name[:60]!r} is not a name for a family. Use lower-case letters and digits, in parts that a hyphen or a "
            f"point joins, at most {LONGEST_NAME} characters, such as my-model-2."
        )
    if name in families():
        raise HrxError(
            f"{name} is a family of hrx already, run by {families()[name].distribution}. Choose another name."
        )
    used = re.findall(r"\w+", " ".join((ADAPTER.template, TEST.template, *IMPORTS)))
    if iskeyword(name) or class_name(name) in (*kwlist, *used):
        raise HrxError(f"{name} has a meaning in Python or in the file of an adapter. Choose another name.")


def _write(texts: dict[Path, str]) -> None:
    """Creates the files, or leaves none behind."""
    if existing := [shown_path(path) for path in texts if path.exists() or path.is_symlink()]:
        exist = "exist" if len(existing) > 1 else "exists"
        raise HrxError(
            f"{' and '.join(existing)} {exist} and would be overwritten. Choose another name, or move it away."
        )
    written: list[Path] = []
    try:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for created in written:
            created.unlink()
        raise HrxError(
            f"{shown_path(path)} cannot be written: {reason(error)}. Run the command in a writable directory."
        ) from error
