"""`hrx train` with every class of neuralforecast: what is saved is what was trained, by the library's own gradient."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.small import train
from helpers.tiny_neuralforecast import HORIZON, LOOKBACK, MODELS

from hrx.adapters import load
from hrx.audit.admission import EQUIVALENCE_LIMIT, admit
from hrx.audit.runner.plan import Setting
from hrx.audit.training import DEPTH_ARGUMENT, LibraryBackbone, Recipe, build
from hrx.audit.training.train import TrainingTask, cut_splits
from hrx.gift_eval import Series
from hrx.gift_eval.series import OfficialSplit

pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
CPU = torch.device("cpu")
BATCH_DECIDES = ("TimesNet", "Informer")
"""Windows of a batch share what the first derives from them and what the second draws; an audit has them one by one."""
ADMITTED = ("FEDformer", "Informer", "TimeXer")
"""Complex weights, keys that are drawn, in-place normalisation."""


@pytest.fixture(scope="module")
def series() -> Series:
    """A noisy wave with a short official split."""
    values = np.sin(np.arange(400) / 3) + 0.3 * np.random.default_rng(3).standard_normal(400) + 7
    return Series("Toy", "OT", "H", 24, "", values, 0, official=OfficialSplit(train=240, test=320, end=400))


@pytest.mark.parametrize("name", DEPTH_ARGUMENT)
def test_a_saved_class_forecasts_with_the_trained_weights_at_its_depth(
    tmp_path: Path, series: Series, name: str
) -> None:
    depth = 2 if DEPTH_ARGUMENT[name] else None
    recipe = Recipe(1e-3, epochs=1, batches=2)
    task = TrainingTask(name, series, False, Setting(LOOKBACK, HORIZON), depth, 1, recipe, MODELS[name])
    train(task, tmp_path)
    model = load(str(tmp_path / task.name))
    assert (model.identity.backbone, model.identity.depth, model.identity.training_seed) == (name, depth, 1)
    first = build(name, LOOKBACK, HORIZON, depth, 1, MODELS[name])
    assert isinstance(first, LibraryBackbone)
    stored: Any = getattr(getattr(model, "_base", model), "module")  # noqa: B009 (some get one window per call)
    shapes = {key: tensor.shape for key, tensor in first.model.state_dict().items()}
    assert {key: tensor.shape for key, tensor in stored.state_dict().items()} == shapes
    moved = [key for key, weight in first.model.named_parameters() if not torch.equal(weight, stored.state_dict()[key])]
    assert moved, "training changed no weight"
    windows = cut_splits(series, LOOKBACK, HORIZON).validation
    if name not in BATCH_DECIDES:  # dropout or statistics of a batch in validation would move the error
        error = (model.official(windows.x, HORIZON).double() - windows.y.double()).square().mean()
        stated = json.loads((tmp_path / task.name / "training.json").read_text())["validation_mse"]
        assert stated == [pytest.approx(float(error), rel=1e-5)]
    checks = admit(model, windows.x[:1], HORIZON) if name in ADMITTED else ()
    assert [check for check in checks if not check.passed] == []
    assert all("float64" in check.note for check in checks if check.check == "derivative")
    together = model.forward(windows.x[:3], HORIZON)
    alone = torch.cat([model.official(x, HORIZON) for x in windows.x[:3, None]])
    assert float((together - alone).abs().max() / alone.abs().max()) <= EQUIVALENCE_LIMIT


@pytest.mark.parametrize("name", ["PatchTST", "TSMixer", "VanillaTransformer"])
def test_the_gradient_of_a_step_is_that_of_the_librarys_own_training_step(series: Series, name: str) -> None:
    """Its statistics of a window are detached in training; dropout and batch statistics are those of training mode."""
    from neuralforecast.tsdataset import TimeSeriesDataset, TimeSeriesLoader

    every = MODELS[name] | {"windows_batch_size": None}  # each window once, in order
    ours, theirs = (build(name, LOOKBACK, HORIZON, None, 4, every) for _ in range(2))
    library: Any = theirs.model
    library.min_outsample_fraction = 1.0  # else windows with a part of a horizon too
    values = np.asarray(series.values[:120] - 7, dtype=np.float32)
    frame = pd.DataFrame({"unique_id": 0, "ds": np.arange(len(values)), "y": values})
    dataset, *_ = TimeSeriesDataset.from_df(frame)
    batch = next(iter(TimeSeriesLoader(dataset, batch_size=1)))
    library.log = lambda *_, **__: None
    library.val_size = library.test_size = 0
    library.train()
    torch.manual_seed(0)
    expected = library.training_step(batch, 0)
    expected.backward()

    windows = torch.as_tensor(values).unfold(0, LOOKBACK + HORIZON, 1)
    ours.train()
    torch.manual_seed(0)
    loss = (ours(windows[:, :LOOKBACK]) - windows[:, LOOKBACK:]).square().mean()
    loss.backward()
    torch.testing.assert_close(loss, expected)
    compared = dict(library.named_parameters())
    for key, weight in ours.model.named_parameters():  # type: ignore[union-attr]
        torch.testing.assert_close(weight.grad, compared[key].grad, msg=lambda text, key=key: f"{key}: {text}")
    assert any(weight.grad is not None for weight in compared.values())
