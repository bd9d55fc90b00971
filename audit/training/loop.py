"""The training loop of every backbone: the defaults of the Time-Series-Library, on its splits where a series has them.

Adam at 1e-4 and batches of 32 windows by mean squared error, at most ten epochs. After each epoch the error on all
validation windows is measured; three epochs without a lower one end the training, and the weights of the best epoch
are kept. The learning rate is halved after every epoch from the second one on. The test region is never read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hrx.errors import HrxError
from hrx.gift_eval import Series, UnusableSeries
from hrx.gift_eval.series import naming
from hrx.gift_eval.windows import scaling_end, standardise, test_start, validation_start

VALIDATION_BATCH = 512


@dataclass(frozen=True)
class Recipe:
    """How long and how fast a backbone is trained; the values are the library's defaults."""

    learning_rate: float = 1e-4
    batch: int = 32
    epochs: int = 10
    patience: int = 3
    batches: int | None = None
    """Batches of an epoch, of windows that are drawn anew for each; None: every training window once."""


class PastRows(NamedTuple):
    """All that a training reads of a series: the values before its test region, and where they are split."""

    values: NDArray[np.float32]
    """(T,), standardised as an audit of the series standardises it."""
    train: int
    """The rows before it are the training split, the others the validation split."""
    lookback_inside: bool
    """Whether a validation window reads no training row before its first forecast step."""


class SplitWindows(NamedTuple):
    """All windows of one split, on the standardised scale: `x` (W, L) and `y` (W, H), views of the values."""

    x: Tensor
    y: Tensor


class Splits(NamedTuple):
    """Training and validation windows of a series at one setting."""

    train: SplitWindows
    validation: SplitWindows


class Fitted(NamedTuple):
    """What the training measured; the module has the weights of the best epoch."""

    train_mse: tuple[float, ...]
    """Mean over the batches of each epoch, while the weights move."""
    validation_mse: tuple[float, ...]
    """Over all validation windows, after each epoch."""
    best_epoch: int
    """Counted from 1."""


def past_rows(series: Series, horizon: int) -> PastRows:
    """The training and validation rows of a series: official ones, else those before the test region of an audit."""
    with naming(series.label):
        scaled = standardise(series.values, scaling_end(series, horizon)).values
    past = scaled[: test_start(series, horizon)].astype(np.float32)
    return PastRows(past, validation_start(series, horizon), bool(series.official and series.official.lookback_inside))


class MissingShares(NamedTuple):
    """Shares of the values of each split that were missing and are filled in."""

    training: float
    validation: float


def missing_shares(series: Series, horizon: int) -> MissingShares:
    """How much of the training and of the validation rows of a series is filled in."""
    if series.observed is None:
        return MissingShares(0.0, 0.0)
    borders = 0, validation_start(series, horizon), test_start(series, horizon)
    parts = (series.observed[first:last] for first, last in pairwise(borders))
    return MissingShares(*(float((~part).mean()) if part.size else 0.0 for part in parts))


def refuse_gaps(series: Series, horizon: int, limit: float) -> None:
    """Raises where more than the share `limit` of the training or validation rows was filled in."""
    for name, share in missing_shares(series, horizon)._asdict().items():
        if share > limit:
            raise UnusableSeries(
                f"{series.label}: {share:.1%} of its {name} rows are missing and would be filled in; the limit is "
                f"{limit:.0%}. Give a series with fewer gaps."
            )


def cut_windows(rows: PastRows, lookback: int, horizon: int) -> Splits:
    """Every training and validation window; raises where a split holds none."""
    values = torch.tensor(rows.values)
    before = 0 if rows.lookback_inside else lookback
    places = {"training": (0, rows.train), "validation": (max(rows.train - before, 0), len(values))}
    parts = []
    for name, (first, last) in places.items():
        if last - first < lookback + horizon:
            raise UnusableSeries(
                f"its {name} split has {last - first} values, too few for {lookback}x{horizon}. "
                "Give shorter --settings."
            )
        windows = values[first:last].unfold(0, lookback + horizon, 1)
        parts.append(SplitWindows(windows[:, :lookback], windows[:, lookback:]))
    return Splits(*parts)


def cut_splits(series: Series, lookback: int, horizon: int) -> Splits:
    """Every training and validation window of a series."""
    rows = past_rows(series, horizon)
    with naming(series.label):
        return cut_windows(rows, lookback, horizon)


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """The rate of an epoch, counted from 1: the library's schedule `type1`, which it applies after an epoch."""
    return recipe.learning_rate * 0.5 ** max(epoch - 2, 0)


def fit(module: nn.Module, splits: Splits, recipe: Recipe, seed: int, device: torch.device) -> Fitted:
    """Trains a module `(B, L) -> (B, H)` in place, and leaves it on the CPU with the weights of the best epoch.

    The seed decides the order of the windows and the dropout; the caller decides the first weights.
    """
    module.to(device)
    optimiser = torch.optim.Adam(module.parameters(), lr=recipe.learning_rate)
    train_mse: list[float] = []
    validation_mse: list[float] = []
    best: dict[str, Tensor] = {}
    best_epoch = 0
    order = torch.Generator().manual_seed(seed)
    with _seeded(seed, device):
        for epoch in range(1, recipe.epochs + 1):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(recipe, epoch)
            train_mse.append(_epoch(module, optimiser, _batches(splits.train, recipe, order), device))
            validation_mse.append(mean_squared_error(module, splits.validation, device))
            if not best or validation_mse[-1] <= validation_mse[best_epoch - 1]:
                best_epoch = epoch
                best = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
            elif epoch - best_epoch >= recipe.patience:
                break
    if not torch.tensor(validation_mse).isfinite().all():
        raise HrxError("The error on the validation split is not finite. Give a lower --learning-rate.")
    module.cpu().load_state_dict(best)
    return Fitted(tuple(train_mse), tuple(validation_mse), best_epoch)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A random state of its own; the caller's is restored."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _batches(windows: SplitWindows, recipe: Recipe, order: torch.Generator) -> Iterator[SplitWindows]:
    """The batches of one epoch, in a random order."""
    places = torch.split(torch.randperm(len(windows.x), generator=order), recipe.batch)
    for place in places[: recipe.batches]:
        yield SplitWindows(windows.x[place], windows.y[place])


def _epoch(
    module: nn.Module, optimiser: torch.optim.Optimizer, batches: Iterator[SplitWindows], device: torch.device
) -> float:
    """One pass over the batches; the mean of their errors."""
    module.train()
    errors = []
    for x, y in batches:
        loss = (module(x.to(device)) - y.to(device)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        errors.append(loss.detach())
    return float(torch.stack(errors).mean())


def mean_squared_error(module: nn.Module, windows: SplitWindows, device: torch.device) -> float:
    """Over all windows and steps of a split."""
    module.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in zip(*(torch.split(part, VALIDATION_BATCH) for part in windows), strict=True):
            total += float((module(x.to(device)) - y.to(device)).double().square().sum())
    return total / windows.y.numel()
