"""Training loop of every backbone, of `hrx train` and of a calibration, and its recipe.

Adam by mean squared error. Where there are validation windows, the error on all of them is measured after each epoch,
epochs without a lower one end the training, and the weights of the best epoch are kept.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from hrx.errors import HrxError

VALIDATION_BATCH = 512


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
