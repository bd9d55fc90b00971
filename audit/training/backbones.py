"""Backbones that `hrx train` knows: how each is built, and how it is saved.

Linear and CNN are hrx's own. The others are classes of neuralforecast, under the arguments that the class defaults to;
they are trained by the same loop as all others and saved by the library, whose public call stays their official one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hrx.adapters.families import families
from hrx.adapters.formats import backbones as own
from hrx.adapters.formats.neuralforecast_directory import FAMILY as NEURALFORECAST
from hrx.adapters.registry import require
from hrx.errors import HrxError, describe_error, unknown

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

        return run_network(self.model, x[..., None])[..., 0]


def build(
    name: str, lookback: int, horizon: int, depth: int | None, seed: int, arguments: Mapping[str, Any]
) -> nn.Module:
    """An untrained backbone, `(B, L) -> (B, H)`; the seed decides its weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if name in own.OWN:
            return own.build({"backbone": name, "lookback": lookback, "horizon": horizon, "depth": depth})
        return LibraryBackbone(_library_model(name, lookback, horizon, depth, seed, arguments))


def _library_model(
    name: str, lookback: int, horizon: int, depth: int | None, seed: int, arguments: Mapping[str, Any]
) -> Any:
    from neuralforecast import models
    from neuralforecast.losses.pytorch import MSE

    from hrx.adapters.formats.neuralforecast import TRAINER, quiet

    kind = getattr(models, name)
    more = (
        dict(arguments)
        | ({DEPTH_ARGUMENT[name]: depth} if depth else {})
        | ({"n_series": 1} if kind.MULTIVARIATE else {})
    )
    try:
        with quiet():
            return kind(h=horizon, input_size=lookback, loss=MSE(), max_steps=1, random_seed=seed, **more, **TRAINER)
    except Exception as error:
        raise HrxError(
            f"neuralforecast cannot build {name} at {lookback}x{horizon}: {describe_error(error)}. "
            "Give other --settings."
        ) from error


def save(module: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """Writes a trained backbone in the format that its family opens."""
    if isinstance(module, LibraryBackbone):
        _save_library(module.model, folder)
        return
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hrx_trained": 1, **config}, indent=1) + "\n", encoding="utf-8")
    save_file(module.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def _save_library(model: Any, folder: Path) -> None:
    """By `NeuralForecast.save`, which needs a fitted object: one step on noise, whose weights are then replaced."""
    import pandas as pd
    from neuralforecast import NeuralForecast
    from pytorch_lightning.utilities.seed import isolate_rng

    from hrx.adapters.formats.neuralforecast import quiet

    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.windows_batch_size = 2  # of that step; the file states the argument, by default up to 1024 windows
    rows = 2 * (int(model.input_size) + int(model.h))
    noise = np.random.default_rng(0).standard_normal(rows)
    with quiet(), isolate_rng():
        library = NeuralForecast([model], freq=1)
        library.fit(pd.DataFrame({"unique_id": "noise", "ds": np.arange(rows), "y": noise}))
        library.models[0].load_state_dict(weights)
        library.save(str(folder), save_dataset=False, overwrite=True)
