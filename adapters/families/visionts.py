"""VisionTS (`visionts`): a masked image autoencoder that paints the series' future beside its past.

A checkpoint is a directory with one of the autoencoder's released files, `mae_visualize_vit_base.pth` (or large, huge),
without a `config.json`. The library runs with random weights if it cannot read the file, and downloads one if it is
missing, so the file is read here as well and compared. A call stores its lengths in the object: `predict` has a second
one on the same weights.
"""

import copy
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import Any, Self, cast

import torch
from torch import Tensor
from visionts.model import MAE_ARCH, VisionTS

from hrx.adapters.checkpoint import CheckpointForecaster, differing_tensors, read_state, second_module
from hrx.adapters.contract import Limits, ModelError
from hrx.adapters.families import Family, ModelCard

FAMILY = Family(
    "visionts", f"{__name__}:VisionTSModel", "visionts", "visionts", files="mae_visualize_vit_*.pth",
    released=(
        ModelCard(
            "visionts-base", "https://dl.fbaipublicfiles.com/mae/visualize/mae_visualize_vit_base.pth",
            "CC-BY-NC-4.0", 112_000_000, pretraining="images of ImageNet-1k",
            sources=("github.com/facebookresearch/mae, README.md", "github.com/Keytoyze/VisionTS, README.md"),
        ),
    ),
)  # fmt: skip

NO_PERIOD = 1
"""Periodicity of the library if none is known: the series is one row, stretched to the image's full height.

The row is narrowed without smoothing: of 512 steps at horizon 96, `mae_base` reads 128; the others count only through
the window's mean and standard deviation. With the season as periodicity each period is a column, and all of them are
read. An audit therefore passes the season of each dataset, as the library's examples do, through `for_season`.
"""


@dataclass(frozen=True)
class ImageLimits(Limits):
    """At least one column of patches is the past, so the future has room in the others only."""

    periodicity: int = NO_PERIOD
    patch_columns: int = 14

    def refusal(self, lookback: int, horizon: int) -> str | None:
        padded = lookback + -lookback % self.periodicity
        room = padded * (self.patch_columns - 1)
        if horizon > room:
            return f"has room for at most {room} steps after a lookback of {lookback}, not {horizon}"
        return super().refusal(lookback, horizon)


class VisionTSModel(CheckpointForecaster):
    """Point forecast of a masked autoencoder whose image is `limits.periodicity` steps high."""

    limits: ImageLimits
    official_call = "VisionTS.forward"

    def open_library(self) -> Any:
        path, weights = self.checkpoint.path, self.checkpoint.weights
        architectures = {file: name for name, (_, file) in MAE_ARCH.items()}
        known = [file for file in weights if file.name in architectures]
        if not known:
            raise ModelError(
                f"{path} has none of the files that VisionTS reads ({', '.join(architectures)}). "
                "Download one from https://dl.fbaipublicfiles.com/mae/visualize/ and keep its name."
            )
        if len(weights) > 1:
            names = ", ".join(file.name for file in weights)
            raise ModelError(f"{path} has several weight files ({names}). Give each a directory of its own.")
        state, architecture = read_state(known[0]), architectures[known[0].name]
        with redirect_stdout(None):  # the library prints that it could not load, and goes on
            model = VisionTS(architecture, ckpt_dir=str(path))
        if wrong := differing_tensors(model.vision_model, state.items()):
            raise ModelError(
                f"{known[0]} does not hold the weights of {architecture}: {shorten(', '.join(wrong), 200)} could not "
                "be loaded. Download it again, or restore its original name."
            )
        return model

    def prepare(self) -> None:
        self._second: Any = second_module(self.module)

    def read_limits(self) -> ImageLimits:
        return ImageLimits(patch_columns=self.module.vision_model.patch_embed.grid_size[1])

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        self._second.update_config(context_len=x.shape[1], pred_len=horizon, periodicity=self.limits.periodicity)
        return cast(Tensor, self._second(x[..., None])[..., 0])

    def official(self, x: Tensor, horizon: int) -> Tensor:
        self.check(x, horizon)
        self.library.update_config(x.shape[1], horizon, self.limits.periodicity)
        with torch.no_grad():
            return cast(Tensor, self.library(x.unsqueeze(2)).squeeze(2))

    def for_season(self, season: int) -> Self:
        """Return the same network with an image `season` steps high, as the official call takes it as an argument."""
        if season < 1:
            raise ModelError(f"{self.identity.model} was given a periodicity of {season}. It is at least 1.")
        if season == self.limits.periodicity:
            return self
        other = copy.copy(self)
        other.limits = replace(self.limits, periodicity=season)
        return other

    @property
    def stored_module(self) -> Any:
        return self.module.vision_model
