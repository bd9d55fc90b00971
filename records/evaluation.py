"""The scores of a model on GIFT-Eval's official windows, as plain data and as one JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from hrx.errors import HrxError, describe_error
from hrx.files import atomic_write, read_json

FORMAT = 1
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Quantile levels of the leaderboard."""
METRICS = (
    "MSE[mean]", "MSE[0.5]", "MAE[0.5]", "MASE[0.5]", "MAPE[0.5]", "sMAPE[0.5]", "MSIS", "RMSE[mean]", "NRMSE[mean]",
    "ND[0.5]", "mean_weighted_sum_quantile_loss",
)  # fmt: skip
"""Metrics of the leaderboard, by the names that gluonts gives them."""
NEED_QUANTILES = ("MSIS", "mean_weighted_sum_quantile_loss")


@dataclass(frozen=True)
class Evaluated:
    """A model on one configuration, `us_births/D/short`."""

    config: str
    domain: str
    num_variates: int
    windows: int
    """Of each series."""
    instances: int
    """Windows of all series."""
    metrics: Mapping[str, float]
    """By the names in `METRICS`; NaN for those that need quantiles, where the model gives none; empty with a `reason`.
    """
    seasonal_mase: float = math.nan
    """MASE of seasonal naive on the same windows."""
    reason: str = ""
    """Why it could not be evaluated."""


@dataclass(frozen=True, repr=False)
class Evaluation:
    """A model on official windows, by its official call."""

    model: str
    checkpoint: str
    fingerprint: str
    library: str
    official_call: str
    dtype: str
    quantiles: bool
    """Whether its official call gives the nine levels."""
    hrx: str
    created: str
    rows: tuple[Evaluated, ...]

    @property
    def done(self) -> tuple[Evaluated, ...]:
        return tuple(row for row in self.rows if not row.reason)

    @property
    def relative_mase(self) -> float:
        """Geometric mean over configurations of MASE over that of seasonal naive, as on the leaderboard."""
        ratios = np.array([row.metrics["MASE[0.5]"] / row.seasonal_mase for row in self.done if row.seasonal_mase > 0])
        return float(np.exp(np.log(ratios).mean())) if ratios.size and (ratios > 0).all() else math.nan

    def __repr__(self) -> str:
        return (
            f"<Evaluation of {self.model} on {len(self.done)} of {len(self.rows)} configurations: MASE "
            f"{self.relative_mase:.3f} of seasonal naive's (geometric mean)>"
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per configuration, with the columns of the leaderboard's `all_results.csv`."""
        rows = []
        for row in self.done:
            metrics = {f"eval_metrics/{name}": row.metrics[name] for name in METRICS}
            about = {"domain": row.domain, "num_variates": row.num_variates}
            rows.append({"dataset": row.config, "model": self.model} | metrics | about)
        columns = ["dataset", "model", *(f"eval_metrics/{name}" for name in METRICS), "domain", "num_variates"]
        return pd.DataFrame(rows, columns=columns)

    def save(self, path: str | Path) -> Path:
        """Write one JSON file, with null for a missing number. Returns its path."""
        value = asdict(self)
        for row in value["rows"]:
            row["metrics"] = {name: _or_none(number) for name, number in row["metrics"].items()}
            row["seasonal_mase"] = _or_none(row["seasonal_mase"])
        with atomic_write(path := Path(path)) as file:
            file.write(json.dumps({"hrx_evaluation": FORMAT} | value, indent=1).encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote."""
        try:
            value = read_json(Path(path))
            if value.pop("hrx_evaluation") != FORMAT:
                raise ValueError(f"this version of hrx reads format {FORMAT}")
            rows = []
            for row in value.pop("rows"):
                metrics = {name: math.nan if one is None else float(one) for name, one in row.pop("metrics").items()}
                seasonal = row.pop("seasonal_mase")
                rows.append(Evaluated(**row, metrics=metrics, seasonal_mase=math.nan if seasonal is None else seasonal))
            return cls(**value, rows=tuple(rows))
        except HrxError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = describe_error(error)
            raise HrxError(f"{path} is not a valid evaluation: {text}. Write one with hrx evaluate.") from error


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
