"""Tiny models of neuralforecast, trained for one step and saved by the library."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

LOOKBACK, HORIZON = 32, 8
_RECURRENT = {"encoder_hidden_size": 8, "decoder_hidden_size": 8}
_TRANSFORMER = {"hidden_size": 8, "n_head": 2, "conv_hidden_size": 8, "encoder_layers": 1}
_INVERTED = {"n_series": 1, "hidden_size": 8, "e_layers": 1, "d_ff": 8}
_BLOCKS = {"mlp_units": [[8, 8]] * 3}

MODELS: dict[str, dict[str, Any]] = {
    "DLinear": {},
    "NLinear": {},
    "NHITS": _BLOCKS,
    "NBEATS": _BLOCKS,
    "NBEATSx": _BLOCKS,
    "MLP": {"hidden_size": 8},
    "KAN": {"hidden_size": 8},
    "LSTM": _RECURRENT,
    "GRU": _RECURRENT,
    "RNN": _RECURRENT,
    "TCN": _RECURRENT,
    "DilatedRNN": _RECURRENT,
    "BiTCN": {"hidden_size": 8},
    "DeepNPTS": {"hidden_size": 8},
    "TFT": {"hidden_size": 8, "n_head": 2},
    "TiDE": {"hidden_size": 8, "decoder_output_dim": 4, "temporal_decoder_dim": 8},
    "PatchTST": {
        "hidden_size": 8, "n_heads": 2, "encoder_layers": 1, "linear_hidden_size": 8, "patch_len": 8, "stride": 4,
    },
    "TimesNet": {"hidden_size": 8, "conv_hidden_size": 8, "encoder_layers": 1},
    "VanillaTransformer": _TRANSFORMER,
    "Autoformer": _TRANSFORMER,
    "FEDformer": _TRANSFORMER | {"n_head": 8, "modes": 4},
    "iTransformer": _INVERTED | {"n_heads": 2},
    "TimeXer": _INVERTED | {"n_heads": 2, "patch_len": 8},
    "SOFTS": _INVERTED | {"d_core": 8},
    "SOFTSSharp": _INVERTED | {"d_core": 8},
    "TimeMixer": {"n_series": 1, "d_model": 8, "d_ff": 8, "e_layers": 1},
    "TSMixer": {"n_series": 1, "ff_dim": 8},
    "TSMixerx": {"n_series": 1, "ff_dim": 8},
    "RMoK": {"n_series": 1},
    "MLPMultivariate": {"n_series": 1, "hidden_size": 8},
    "XLinear": {"n_series": 1, "hidden_size": 8},
    "Informer": _TRANSFORMER,
}  # fmt: skip
"""Every class that forecasts a point from one series, with arguments that make it small."""


def build(class_name: str, **changes: Any) -> Any:
    """A model of 32 past values and 8 forecast steps."""
    from neuralforecast import models
    from neuralforecast.losses.pytorch import MAE

    quiet = {"enable_progress_bar": False, "logger": False, "enable_model_summary": False}
    settings = {"h": HORIZON, "input_size": LOOKBACK, "max_steps": 1, "windows_batch_size": 16, "loss": MAE()}
    return getattr(models, class_name)(**(settings | quiet | MODELS.get(class_name, {}) | changes))


EXOGENOUS = {
    "past, future, static": (
        "BiTCN", "DeepNPTS", "DilatedRNN", "GRU", "KAN", "LSTM", "MLP", "MLPMultivariate", "NBEATSx", "NHITS", "RNN",
        "TCN", "TFT", "TiDE", "TSMixerx", "XLinear",
    ),
    "future": ("Autoformer", "FEDformer", "Informer", "iTransformer", "TimesNet", "VanillaTransformer"),
    "past, static": ("TimeXer",),
}  # fmt: skip
"""Classes by the exogenous inputs that they take; not DeepAR, which samples, and xLSTM, which needs more packages."""


def build_exogenous(class_name: str, roles: str, **changes: Any) -> Any:
    """A model with two variables of each role."""
    lists = {"past": "hist_exog_list", "future": "futr_exog_list", "static": "stat_exog_list"}
    named = {lists[role]: [f"{role}_a", f"{role}_b"] for role in roles.split(", ")}
    # With a point loss TiDE normalises its last layer over one number: then it reads its own skip connection only.
    more = {"layernorm": False} if class_name == "TiDE" else {}
    return build(class_name, **(named | more | changes))


def save_exogenous(path: Path, model: Any, series: int = 2, local_scaler: str | None = None) -> Path:
    """Trains a model of `build_exogenous` and saves it."""
    rng, count = np.random.default_rng(1), 120 * series
    names = [*model.hist_exog_list, *model.futr_exog_list]
    static = {name: rng.standard_normal(series) for name in model.stat_exog_list}
    columns = {name: rng.standard_normal(count) * (1 + 9 * (name[-1] == "b")) for name in names}
    return save(path, [model], series=series, static=static, local_scaler=local_scaler, **columns)


def save(
    path: Path, models: list[Any], *, local_scaler: str | None = None, series: int = 1,
    static: dict[str, Any] | None = None, **columns: Any,
) -> Path:  # fmt: skip
    """Trains the models for one step on a noisy wave and saves them in the library's format."""
    pytest.importorskip("neuralforecast", reason="needs the extra neuralforecast")
    import torch
    from neuralforecast import NeuralForecast

    rng = np.random.default_rng(0)
    time = np.tile(np.arange(120), series)
    values = 5 + np.sin(time / 4) + 0.3 * rng.standard_normal(time.size)
    frame = pd.DataFrame({"unique_id": np.repeat(np.arange(series), 120), "ds": time, "y": values} | columns)
    forecaster = NeuralForecast(models, freq=1, local_scaler_type=local_scaler)
    with torch.random.fork_rng():
        forecaster.fit(frame, static_df=pd.DataFrame({"unique_id": np.arange(series)} | static) if static else None)
        if models[0].loss.is_distribution_output:
            forecaster.predict()  # without it the loss holds a graph, which the library cannot save
    forecaster.save(str(path))
    return path
