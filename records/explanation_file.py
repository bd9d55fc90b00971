"""An explanation as one NPZ file: its arrays, and JSON for everything else. Reading it executes nothing."""

import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hrx.errors import HrxError, describe_error
from hrx.files import MOST_TABLE, atomic_write, check_target, read_file
from hrx.records.explanation import ExplainedModel, ExplainedTimes, Explanation, Method

_FORMAT = 1
_ARRAYS = ("matrix", "forecast", "x", "observed")


def write_explanation(explanation: Explanation, path: Path) -> Path:
    """Writes the file, in place of one that is there."""
    check_target(path, "save")
    about = {
        "hrx_explanation": _FORMAT,
        "steps": explanation.steps,
        "items": explanation.items,
        "zones": [None if times is None else _zone(times.inputs) for times in explanation.times],
        "seasons": explanation.seasons,
        "model": asdict(explanation.model),
        "method": explanation.method._asdict(),
        "windows": explanation.windows,
        "notes": explanation.notes,
    }
    arrays: dict[str, Any] = {name: getattr(explanation, name) for name in _ARRAYS}
    if explanation.signed is not None:
        arrays["signed"] = explanation.signed
    for number, times in enumerate(explanation.times):
        if times is not None:
            arrays[f"times_{number}"] = _numbers(times.inputs.append(times.forecasts))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.array(json.dumps(about)), **arrays)
    with atomic_write(path) as file:
        file.write(buffer.getvalue())
    return path


def read_explanation(path: Path) -> Explanation:
    """Reads a file that `write_explanation` wrote."""
    try:
        with np.load(io.BytesIO(read_file(path, MOST_TABLE)), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(str(arrays["about"]))
        if about["hrx_explanation"] != _FORMAT:
            raise HrxError(f"{path} has format {about['hrx_explanation']}; this version of hrx reads {_FORMAT}.")
        return _assembled(arrays, about)
    except HrxError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise HrxError(
            f"{path} is not a valid explanation: {describe_error(error)}. Give a file that Explanation.save wrote."
        ) from error


def _assembled(arrays: dict[str, Any], about: dict[str, Any]) -> Explanation:
    lookback = arrays["x"].shape[1]
    times: list[ExplainedTimes | None] = []
    for number, zone in enumerate(about["zones"]):
        stored = arrays.get(f"times_{number}")
        index = None if stored is None else _index(stored, zone)
        times.append(None if index is None else ExplainedTimes(index[:lookback], index[lookback:]))
    shape = (len(about["items"]), len(about["steps"]), lookback)
    if arrays["matrix"].shape != shape or len(times) != shape[0]:
        raise ValueError(f"its matrix has the shape {arrays['matrix'].shape}, not {shape}")
    return Explanation(
        **{name: arrays[name] for name in _ARRAYS},
        signed=arrays.get("signed"),
        steps=tuple(about["steps"]),
        items=tuple(about["items"]),
        times=tuple(times),
        seasons=tuple(about["seasons"]),
        model=ExplainedModel(**about["model"]),
        method=Method(**about["method"]),
        windows=about["windows"],
        notes=tuple(about["notes"]),
    )


def _zone(index: pd.Index) -> str:
    """The zone of times; `number` for whole numbers, empty for times without a zone."""
    if not isinstance(index, pd.DatetimeIndex):
        return "number"
    return "" if index.tz is None else str(index.tz)


def _numbers(index: pd.Index) -> Any:
    """Times as nanoseconds since 1970, in UTC where they have a zone; whole numbers as they are."""
    if not isinstance(index, pd.DatetimeIndex):
        return index.to_numpy(dtype=np.int64)
    return (index.tz_convert("UTC").tz_localize(None) if index.tz else index).as_unit("ns").to_numpy().astype(np.int64)


def _index(numbers: Any, zone: str) -> pd.Index:
    if zone == "number":
        return pd.Index(np.asarray(numbers, dtype=np.int64))
    times = pd.DatetimeIndex(numbers.astype("datetime64[ns]"))
    return pd.DatetimeIndex(times.tz_localize("UTC").tz_convert(zone)) if zone else times
