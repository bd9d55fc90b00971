"""The matrix of another explainer: read from an array, a frame, a file or an object of its library, and checked.

A matrix that cannot be scored gets a sentence. What it says of itself (its model, its window, its steps) is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hrx.errors import HrxError, unknown
from hrx.files import user_path
from hrx.gift_eval.table_files import read_table
from hrx.records.explanation import ExplainedModel, Explanation
from hrx.records.quantities import Floats

SHAPES = "(rows, lookback) or (windows, rows, lookback)"
_COLUMNS = ("step", "position", "importance")


@dataclass(frozen=True)
class GivenMatrix:
    """A matrix as somebody gave it."""

    values: Floats
    """`(R, L)` or `(B, R, L)`, in any order of axes that the library of the explainer has, with signs."""
    steps: tuple[int, ...] = ()
    """Forecast steps of the rows, where the source names them."""
    x: Floats | None = None
    """`(B, L)`: the windows that it explains, where the source holds them."""
    model: ExplainedModel | str | None = None
    """Its model, or the name of it, where the source says so."""
    source: str = "matrix"

    def lookback(self, horizon: int, scored: int) -> int:
        """Return how many inputs it is of."""
        shape = (1, *_one_output(self.values).shape)
        rows, inputs = int(shape[-2]), int(shape[-1])
        counts = (len(self.steps),) if self.steps else (horizon, scored)
        return inputs if rows in counts or inputs not in counts else rows


def read_matrix(given: Any) -> GivenMatrix:
    """Return the matrix of an array, a tensor, a frame of `to_frame()`, a file, or an object of another library."""
    if isinstance(given, str | Path):
        return _read_file(user_path(given))
    if isinstance(given, Explanation):
        return GivenMatrix(given.matrix, given.steps, given.x, given.model)
    if isinstance(given, pd.DataFrame):
        return _of_frame(given, "matrix")
    if isinstance(given, Mapping):  # explanations of neuralforecast, by model
        found = [one for one in ([given] if "insample" in given else given.values()) if isinstance(one, Mapping)]
        if len(found) != 1 or "insample" not in found[0]:
            raise HrxError(
                f"matrix is a {type(given).__name__} with {list(given)[:5]}, not the explanations of one model."
            )
        return read_matrix(found[0]["insample"])
    if hasattr(given, "values") and hasattr(given, "base_values"):  # shap's Explanation: (windows, lookback, steps)
        values = np.asarray(given.values)
        return GivenMatrix(np.swapaxes(values, 1, 2) if values.ndim == 3 else values)
    values = given.detach().cpu().numpy() if hasattr(given, "detach") else given
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise HrxError(
            f"matrix is a {type(given).__name__}, not an array of numbers. Give one of shape {SHAPES}, a frame or a "
            "file."
        ) from error
    return GivenMatrix(array)


def _read_file(path: Path) -> GivenMatrix:
    if path.suffix == ".npz":
        return _read_arrays(path)
    if path.suffix in (".csv", ".parquet"):
        table = read_table(path, path.suffix[1:])
        return _of_frame(pd.DataFrame(table.columns), path.name)
    raise HrxError(f"{path} has the suffix {path.suffix!r}. Give a matrix as .npz, .csv or .parquet.")


def _read_arrays(path: Path) -> GivenMatrix:
    """Return the matrix of a file of `Explanation.save`, or of the only array of an npz."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = list(stored.files)
            if "about" not in names:
                chosen = "matrix" if "matrix" in names else names[0] if len(names) == 1 else None
                if chosen is None:
                    raise HrxError(unknown("array", "matrix", names, f"{path} holds several."))
                return GivenMatrix(np.asarray(stored[chosen], dtype=np.float64), source=path.name)
    except (OSError, ValueError, EOFError) as error:
        raise HrxError(f"{path} is not a valid npz file of numbers: {error}.") from error
    x = Explanation.load(path)
    return GivenMatrix(x.matrix, x.steps, x.x, x.model, path.name)


def _of_frame(frame: pd.DataFrame, source: str) -> GivenMatrix:
    """Return the matrix of a tidy frame: one row per series, step and input."""
    if missing := [name for name in _COLUMNS if name not in frame.columns]:
        raise HrxError(
            f"{source} has no column {missing[0]!r}; it has {list(map(str, frame.columns))[:8]}. Give a frame as "
            "to_frame() writes it: step, position (-1 is the last input) and importance."
        )
    numbers = {name: pd.to_numeric(frame[name], errors="coerce") for name in (*_COLUMNS, "value") if name in frame}
    items = frame["item"].astype(str) if "item" in frame else pd.Series("", index=frame.index)
    models = frame["model"].unique() if "model" in frame else [None]
    if len(models) > 1:
        raise HrxError(
            f"{source} holds matrices of {len(models)} models: {', '.join(map(str, models[:5]))}. Give those of one."
        )
    tidy = pd.DataFrame(numbers).assign(item=pd.Categorical(items, items.unique()))
    if tidy.duplicated(["item", "step", "position"]).any():
        step, position = tidy[tidy.duplicated(["item", "step", "position"])][["step", "position"]].iloc[0]
        raise HrxError(f"{source} has two rows for step {step:g} and position {position:g}. Keep one.")
    wide = tidy.pivot(index=["item", "step"], columns="position", values="importance").sort_index()
    steps = tuple(sorted(tidy["step"].dropna().astype(int).unique().tolist()))
    lookback = wide.shape[1]
    count = len(items.unique())
    if wide.columns.tolist() != [*range(-lookback, 0)] or len(wide) != count * len(steps):
        raise HrxError(f"{source} lacks entries: a row for each series, step and position from -L to -1 is expected.")
    x = None
    if "value" in tidy:
        x = (
            tidy.drop_duplicates(["item", "position"])
            .pivot(index="item", columns="position", values="value")
            .to_numpy()
        )
    return GivenMatrix(wide.to_numpy().reshape(count, len(steps), lookback), steps, x, models[0], source)


def fitted(
    given: GivenMatrix, windows: int, lookback: int, horizon: int, steps: Sequence[int] | None, scored: Sequence[int]
) -> tuple[Floats, tuple[int, ...]]:
    """Return the matrix as magnitudes `(B, R, L)`, and the steps of its rows; raise where it cannot be scored.

    A matrix of one window stands for each of several windows.
    """
    values, name = _one_output(np.asarray(given.values)), given.source
    if values.ndim == 1 or (values.ndim == 2 and windows > 1 and values.shape[0] == windows):
        raise _vector(name, values.shape)
    if values.ndim == 2:
        values = values[None]
    rows = steps if steps is not None else given.steps
    counts = (len(rows),) if rows else (horizon, len(scored))
    if values.ndim == 3 and values.shape[2] != lookback and values.shape[1] == lookback and values.shape[2] in counts:
        values = values.swapaxes(1, 2)  # (windows, lookback, outputs), as shap has them
    if values.ndim != 3 or values.shape[2] != lookback:
        raise HrxError(
            f"{name} has the shape {np.shape(given.values)}, which does not fit windows of {lookback} values. Give "
            f"{SHAPES}, or lookback= of its own."
        )
    if values.shape[1] == 1:
        raise _vector(name, np.shape(given.values))
    if values.shape[0] not in (1, windows):
        raise HrxError(
            f"{name} explains {values.shape[0]} windows, but {windows} are scored. Give one matrix for each, or one."
        )
    if values.shape[1] not in counts:
        expected = (
            f"{len(rows)} steps are named" if rows else f"the horizon has {horizon} steps, {len(scored)} of them scored"
        )
        raise HrxError(
            f"{name} has {values.shape[1]} rows, and {expected}. Say which steps its rows explain: steps=[1, …]."
        )
    known = tuple(rows) or tuple(range(1, horizon + 1) if values.shape[1] == horizon else scored)
    if list(known) != sorted(set(known)) or known[0] < 1 or known[-1] > horizon:
        raise HrxError(f"steps={list(known)} are not increasing forecast steps from 1 to {horizon}.")
    if missing := sorted(set(scored) - set(known)):
        raise HrxError(
            f"{name} has no row for step {missing[0]}, which is scored. The scored steps are {list(scored)}."
        )
    if (wrong := ~np.isfinite(values)).any():
        b, r, t = np.argwhere(wrong)[0]
        raise HrxError(
            f"{name}: {wrong.sum()} entries are NaN or infinite, the first at window {b + 1}, step {known[r]}, "
            f"position {t - lookback}. Give 0 where an input is not read."
        )
    values = np.abs(values)
    if not values.any(axis=(1, 2)).all():
        raise HrxError(f"{name} is zero everywhere, so it orders nothing.")
    return np.broadcast_to(values, (windows, *values.shape[1:])).astype(np.float32), known


def _one_output(values: Floats) -> Floats:
    """`(B, H, 1, 1, L, 2) -> (B, H, L)`: explanations of neuralforecast, of the values and not of their mask."""
    if values.ndim == 6 and values.shape[2] == values.shape[3] == 1 and values.shape[5] == 2:
        return np.asarray(values[:, :, 0, 0, :, 0])
    return values


def _vector(name: str, shape: tuple[int, ...]) -> HrxError:
    return HrxError(
        f"{name} of shape {shape} is one vector for the whole forecast: every step has the same row, so its gains are "
        f"zero by definition. Give a row for each step, {SHAPES}."
    )
