"""Backbones that `hrx train` knows, how each is built, fitted and saved, and the recipe of a training.

Linear and CNN are hrx's own. The others are classes of neuralforecast, under the arguments that the class defaults to;
they are trained by the same loop as all others, that of a calibration too, and saved by the library, whose public call
stays their official one.

Adam by mean squared error. Where there are validation windows, the error on all of them is measured after each epoch,
epochs without a lower one end the training, and the weights of the best epoch are kept.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hrx.adapters.families import families
from hrx.adapters.formats import backbones as own
from hrx.adapters.formats.trained import NEURALFORECAST
from hrx.adapters.inputs import Window
from hrx.adapters.registry import require
from hrx.errors import HrxError, describe_error, unknown

VALIDATION_BATCH = 512
DEPTH_ARGUMENT: Mapping[str, str] = MappingProxyType(
    {
        "DLinear": "", "NLinear": "", "NHITS": "", "NBEATS": "", "RMoK": "", "XLinear": "",
        "MLP": "num_layers", "KAN": "n_hidden_layers", "TiDE": "num_encoder_layers", "TSMixer": "n_block",
        "PatchTST": "encoder_layers", "TimesNet": "encoder_layers", "VanillaTransformer": "encoder_layers",
        "Informer": "encoder_layers", "Autoformer": "encoder_layers", "FEDformer": "encoder_layers",
        "iTransformer": "e_layers", "TimeXer": "e_layers", "SOFTS": "e_layers", "TimeMixer": "e_layers",
    }
)  # fmt: skip
"""Classes of neuralforecast, each with the argument that is its depth; empty where it has none."""
NAMES = (*own.OWN, *DEPTH_ARGUMENT)


def check_backbone(name: str, depths: tuple[int, ...]) -> None:
    """Raises on an unknown backbone, on one whose library is not installed, and on a depth that it does not have."""
    if name not in NAMES:
        raise HrxError(unknown("backbone", name, NAMES))
    if name not in own.OWN:
        require(families()[NEURALFORECAST], name)
    if depths and not (name == "CNN" or DEPTH_ARGUMENT.get(name)):
        raise HrxError(f"{name} has no depth. Drop --depth, or train {name} by a command of its own.")


class LibraryBackbone(nn.Module):
    """A class of neuralforecast as `(B, L) -> (B, H)`, with its window scaler."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        from hrx.adapters.formats.neuralforecast import run_network

        return run_network(self.model, Window(x[..., None]))[..., 0, 0]


def build(
    name: str, lookback: int, horizon: int, depth: int | None, seed: int, arguments: Mapping[str, Any]
) -> nn.Module:
    """An untrained backbone, `(B, L) -> (B, H)`; the seed decides its weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if name in own.OWN:
            return own.build({"backbone": name, "lookback": lookback, "horizon": horizon, "depth": depth})
        from neuralforecast import models
        from neuralforecast.losses.pytorch import MSE

        from hrx.adapters.formats.neuralforecast import TRAINER, quiet

        kind, given = getattr(models, name), {"h": horizon, "input_size": lookback, **arguments}
        given |= {DEPTH_ARGUMENT[name]: depth} if depth else {}
        given |= {"n_series": 1} if kind.MULTIVARIATE else {}
        try:
            with quiet():
                return LibraryBackbone(kind(loss=MSE(), max_steps=1, random_seed=seed, **given, **TRAINER))
        except Exception as error:
            raise HrxError(
                f"neuralforecast cannot build {name} at {lookback}x{horizon}: {describe_error(error)}. "
                "Give other --settings."
            ) from error


def save(module: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """Writes a trained backbone in the format that its family opens.

    `NeuralForecast.save` needs a fitted object: one step on noise, whose weights are then replaced.
    """
    if not isinstance(module, LibraryBackbone):
        folder.mkdir()
        stated = json.dumps({"hrx_trained": 1, **config}, indent=1) + "\n"
        (folder / "config.json").write_text(stated, encoding="utf-8")
        save_file(module.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
        return
    import pandas as pd
    from neuralforecast import NeuralForecast
    from pytorch_lightning.utilities.seed import isolate_rng

    from hrx.adapters.formats.neuralforecast import quiet

    model = module.model
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.windows_batch_size = 2  # of that step; the file states the argument, by default up to 1024 windows
    rows = 2 * (int(model.input_size) + int(model.h))
    noise = np.random.default_rng(0).standard_normal(rows)
    with quiet(), isolate_rng():
        library = NeuralForecast([model], freq=1)
        library.fit(pd.DataFrame({"unique_id": "noise", "ds": np.arange(rows), "y": noise}))
        library.models[0].load_state_dict(weights)
        library.save(str(folder), save_dataset=False, overwrite=True)


@dataclass(frozen=True)
class Recipe:
    """How long and how fast a backbone is trained; the values are the defaults of the Time-Series-Library."""

    learning_rate: float = 1e-4
    batch: int = 32
    epochs: int = 10
    patience: int = 3
    """Epochs without a lower error on the validation windows that end the training."""
    batches: int | None = None
    """Batches of an epoch, of windows that are drawn anew for each; None: every training window once."""
    schedule: Literal["halved", "constant", "one cycle"] = "halved"
    """Learning rate: halved after every epoch from the second on, the library's `type1`; constant; or one cycle
    of all batches, with a rise over the first tenth."""

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 1; the highest one of a cycle."""
        return self.learning_rate * (0.5 ** max(epoch - 2, 0) if self.schedule == "halved" else 1.0)


class TrainingWindows(NamedTuple):
    """Inputs `(W, L)` and targets `(W, H)`."""

    x: Tensor
    y: Tensor


class Fitted(NamedTuple):
    """What the training measured; the module has the weights of the best epoch."""

    train_mse: tuple[float, ...]
    """Mean over the batches of each epoch, while the weights move."""
    validation_mse: tuple[float, ...]
    """Over all validation windows, after each epoch; empty where there are none."""
    best_epoch: int
    """Counted from 1; the last one where there are no validation windows."""


def fit(
    module: nn.Module,
    batches: Callable[[], Iterable[TrainingWindows]],
    recipe: Recipe,
    *,
    validation: TrainingWindows | None = None,
    seed: int = 0,
    device: torch.device | None = None,
) -> Fitted:
    """Trains a module `(B, L) -> (B, H)` in place and leaves it on the CPU with the weights of the best epoch.

    `batches` gives those of the next epoch. The seed decides the dropout; the caller decides the first weights.
    """
    device = device or torch.device("cpu")
    module.to(device)
    optimiser = torch.optim.Adam(module.parameters(), lr=recipe.learning_rate)
    cycle = None
    if recipe.schedule == "one cycle":
        steps = recipe.epochs * (recipe.batches or 0)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.learning_rate, total_steps=steps, pct_start=0.1)
    train_mse: list[float] = []
    validation_mse: list[float] = []
    best: dict[str, Tensor] = {}
    best_epoch = 0
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for epoch in range(1, recipe.epochs + 1):
            if cycle is None:
                for group in optimiser.param_groups:
                    group["lr"] = recipe.rate(epoch)
            train_mse.append(_train_epoch(module, batches(), optimiser, cycle, device))
            if validation is None:
                best_epoch = epoch
                continue
            validation_mse.append(mean_squared_error(module, validation, device))
            if not best or validation_mse[-1] <= validation_mse[best_epoch - 1]:
                best_epoch = epoch
                best = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
            elif epoch - best_epoch >= recipe.patience:
                break
    if not torch.tensor(validation_mse).isfinite().all():
        raise HrxError("The error on the validation split is not finite. Give a lower --learning-rate.")
    module.cpu().eval()
    if best:
        module.load_state_dict(best)
    return Fitted(tuple(train_mse), tuple(validation_mse), best_epoch)


def _train_epoch(
    module: nn.Module,
    batches: Iterable[TrainingWindows],
    optimiser: torch.optim.Optimizer,
    cycle: torch.optim.lr_scheduler.LRScheduler | None,
    device: torch.device,
) -> float:
    """One pass over the batches; the mean of their errors."""
    module.train()
    errors = []
    for x, y in batches:
        loss = (module(x.to(device)) - y.to(device)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if cycle is not None:
            cycle.step()
        errors.append(loss.detach())
    return float(torch.stack(errors).mean())


def mean_squared_error(module: nn.Module, windows: TrainingWindows, device: torch.device) -> float:
    """Error over all windows and steps."""
    module.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in zip(*(torch.split(part, VALIDATION_BATCH) for part in windows), strict=True):
            total += float((module(x.to(device)) - y.to(device)).double().square().sum())
    return total / windows.y.numel()
