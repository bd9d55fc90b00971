"""VisionTS (`visionts`): a masked image autoencoder that paints the series' future beside its past.

A checkpoint is a directory with one of the autoencoder's released files, `mae_visualize_vit_base.pth` (or large, huge),
without a `config.json`. The library runs on with random weights where it cannot read that file, and downloads it where
it is missing; so the file is read here, and the library only builds the network. The forecast's mean is detached and
its spread divided in place in the library: `hrx.adapters.gradients` undoes the first and allows the second.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from visionts.model import MAE_ARCH, VisionTS

from hrx.adapters.checkpoint import Checkpoint
from hrx.adapters.contract import Convert, Forecaster, Identity, Limits, ModelError, freeze

NO_PERIOD = 1
"""The library's own periodicity where none is known: the series is one row, stretched to the image's full height.

The row is narrowed without smoothing: of 512 steps at 96 ahead, `mae_base` reads 128 and knows the others by the
window's mean and spread only. With a season as periodicity, each period is a column, few enough to be read; so an
audit hands over the season of each dataset, as the library's own examples do, by `for_season`.
"""


def load(checkpoint: Checkpoint, identity: Identity) -> Forecaster:
    """Opens a checkpoint directory with the library's own class."""
    return VisionTSModel(checkpoint, identity)


@dataclass(frozen=True)
class ImageLimits(Limits):
    """The past takes at least one column of patches, so the future has room in the others only."""

    periodicity: int = NO_PERIOD
    patch_columns: int = 14

    def refusal(self, lookback: int, horizon: int) -> str | None:
        padded = lookback + -lookback % self.periodicity
        room = padded * (self.patch_columns - 1)
        if horizon > room:
            return f"has room for at most {room} steps after a lookback of {lookback}, not {horizon}"
        return super().refusal(lookback, horizon)


class VisionTSModel(Forecaster):
    """The point forecast of a masked autoencoder, its image `periodicity` steps high."""

    def __init__(self, checkpoint: Checkpoint, identity: Identity, periodicity: int = NO_PERIOD):
        if periodicity < 1:
            raise ModelError(f"{identity.model} was given a periodicity of {periodicity}. It is at least 1.")
        self.identity = identity
        self.periodicity = periodicity
        self._checkpoint = checkpoint
        self._file, architecture = _released_file(checkpoint)
        state = _read(self._file)
        self._model: Any = VisionTS(architecture, load_ckpt=False)
        try:
            self._model.vision_model.load_state_dict(state, strict=True)
        except RuntimeError as error:
            raise ModelError(
                f"{self._file} does not hold the weights of {architecture}: {_in_one_line(error)}. "
                "Download it again, or restore its original name."
            ) from error
        freeze(self._model)
        columns = self._model.vision_model.patch_embed.grid_size[1]
        self.limits: ImageLimits = ImageLimits(periodicity=periodicity, patch_columns=columns)

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        self._model.update_config(context_len=x.shape[1], pred_len=horizon, periodicity=self.periodicity)
        return cast(Tensor, self._model(x[..., None])[..., 0])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        with torch.no_grad():
            return self.predict(x, horizon)

    def for_season(self, season: int) -> Forecaster:
        """The same network with an image as high as the season; the official call takes it as an argument."""
        if season == self.periodicity:
            return self
        other = copy.copy(self)
        other.periodicity = season
        other.limits = replace(self.limits, periodicity=season)
        return other

    def converted(self, convert: Convert) -> Forecaster:
        other = copy.copy(self)
        other._model = convert(copy.deepcopy(self._model))
        return other

    def reload(self) -> Forecaster:
        return VisionTSModel(self._checkpoint, self.identity, self.periodicity)

    def unloaded(self) -> tuple[str, ...]:
        stored = _read(self._file)
        held: dict[str, Tensor] = self._model.vision_model.state_dict()
        return tuple(name for name, value in held.items() if not _equal(value.cpu(), stored.get(name)))


def _released_file(checkpoint: Checkpoint) -> tuple[Path, str]:
    """The one weight file with a name that the library knows, and the architecture this name stands for."""
    architectures = {file: name for name, (_, file) in MAE_ARCH.items()}
    found = [file for file in checkpoint.weights if file.name in architectures]
    if not found:
        raise ModelError(
            f"{checkpoint.path} has none of the files that VisionTS reads ({', '.join(architectures)}). "
            "Download one from https://dl.fbaipublicfiles.com/mae/visualize/ and keep its name."
        )
    if len(checkpoint.weights) > 1:
        names = ", ".join(file.name for file in checkpoint.weights)
        raise ModelError(f"{checkpoint.path} has several weight files ({names}). Give each a directory of its own.")
    return found[0], architectures[found[0].name]


def _read(file: Path) -> dict[str, Tensor]:
    """The autoencoder's tensors by name."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive may fail anywhere in the reader
        raise ModelError(f"{file} is damaged: {_in_one_line(error)}. Download it again.") from error
    state = content.get("model") if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError(f"{file} has no tensors under the key 'model', where the release has them. Download it again.")
    return cast("dict[str, Tensor]", state)


def _equal(held: Tensor, stored: Tensor | None) -> bool:
    return stored is not None and held.shape == stored.shape and torch.equal(held, stored.to(held.dtype))


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]} …"
