"""`hrx.score`, on the objects that people hold; `hrx.audit.score` is the same measurement on tensors.

The matrix of another explainer is scored as one of ours: it becomes an explanation of the same windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
import torch

from hrx.adapters.contract import library_errors
from hrx.api.explain import Model, Names, common_lookback, explain, find_readers, last_windows, reading_options
from hrx.api.explanation import Explanation, as_forecaster, reads_own_unit
from hrx.api.matrix import GivenMatrix, fitted, read_matrix
from hrx.audit.attribution import find_estimator
from hrx.audit.attribution.explanation import estimate
from hrx.audit.protocol import Protocol, scored_steps
from hrx.errors import HrxError
from hrx.gift_eval import cut, read_series
from hrx.records.explanation import ExplainedModel, Method

if TYPE_CHECKING:
    from hrx.adapters.contract import Identity
    from hrx.gift_eval.sources import SeriesInput
    from hrx.records.quantities import Floats, Quantities


class Reading(TypedDict, total=False):
    """How `explain` reads data: its keywords for columns, frequency and season, roles and output."""

    date: str
    id: Names
    value: Names
    frequency: str
    season: int | None
    target: Names
    past: Names
    future: Names
    static: Names
    future_data: Any
    unused: Literal["", "error", "ignore"]
    output: str | float | tuple[float, float]


@torch.inference_mode(False)  # which has no gradients; the caller may be inside it
def score(
    model: Model,
    data: Any,
    horizon: int,
    *,
    matrix: Any = None,
    steps: Sequence[int] | None = None,
    windows: int | None = None,
    lookback: int | None = None,
    protocol: Protocol | None = None,
    **reading: Unpack[Reading],
) -> Quantities:
    """Return the quantities of one run: of one series, or of windows `(W, L)`. Other arguments as those of `explain`.

    It scores the window before the end of a series, or all rows of an array together; with `windows=16` so many windows
    of the last fifth of the series, as an audit does; with covariates, the positions of all channels in one ordering.

    `matrix` is that of any other explainer: an array `(R, L)` or `(B, R, L)`, a frame as `to_frame()` writes it, a file
    of either (`.npz`, `.csv`, `.parquet`), the explanations of neuralforecast or shap, or a function of the windows
    `(B, L)` that returns one. Signs are dropped. Its rows explain all steps, the scored ones, or `steps`; one matrix
    stands for each of several windows. Without it the estimator of the protocol makes one.

        q = hrx.score("bolt-mini", "sample:elnino/M", horizon=12, lookback=96)
        q.g_margin, q.plus_minus("g_margin")    # the gain, and half of its 95 % interval over draws
        x = hrx.explain("bolt-mini", "sample:elnino/M", horizon=12, lookback=96)
        hrx.score("bolt-mini", "sample:elnino/M", horizon=12, matrix=x.matrix).p_margin
    """
    protocol = protocol or Protocol()
    if matrix is None and windows is None:
        if steps is not None:
            raise HrxError("steps= names the rows of a matrix. Give matrix= too, or drop it.")
        explained = explain(
            model,
            data,
            horizon,
            lookback=lookback,
            estimator=protocol.estimator,
            settings=protocol.estimator_settings,
            seed=protocol.seed,
            **reading,
        )
        return explained.score(protocol=protocol)
    own = {name: value for name, value in reading.items() if name in ("date", "id", "value", "frequency", "season")}
    if len(own) < len(reading):
        raise HrxError("matrix= and windows= are of one series and its point forecast. Drop roles and output.")
    given = read_series(data, reading_options(**own))  # type: ignore[arg-type]
    if len(given.series) > 1 and not given.windows:
        names = ", ".join(one.series.item for one in given.series[:8])
        raise HrxError(f"The data hold {len(given.series)} series: {names}. A matrix is of one: give that one.")
    known = None if matrix is None or callable(matrix) else read_matrix(matrix)
    if lookback is None and known is not None:
        lookback = known.lookback(horizon, min(horizon, protocol.scored))
    return _explanation(model, given, horizon, known, matrix, steps, windows, lookback, protocol).score(
        protocol=protocol
    )


def _explanation(
    model: Model,
    given: SeriesInput,
    horizon: int,
    known: GivenMatrix | None,
    matrix: Any,
    steps: Sequence[int] | None,
    windows: int | None,
    lookback: int | None,
    protocol: Protocol,
) -> Explanation:
    """Windows of one series, or those of an array, with the given matrix, or that of the protocol's estimator."""
    if windows is not None and given.windows:
        raise HrxError("windows= cuts windows of one series, and the data are windows already. Drop it.")
    forecaster = as_forecaster(model)
    reader, series = find_readers(forecaster, given, horizon)[0], given.series[0].series
    read, identity = reads_own_unit(forecaster, *reader), forecaster.identity
    length = common_lookback([read], given, horizon, lookback, windows is not None)
    x = last_windows(given, length, protocol.max_missing)
    if windows is not None:
        starts = cut(series, length, horizon, windows, protocol.seed).starts
        x = torch.as_tensor(np.stack([series.values[at - length : at] for at in starts]), dtype=torch.float32)
    scored = (scored_steps(horizon, protocol.scored) + 1).tolist()
    if known is not None:
        _refuse_another(known, identity, x.numpy(), series.values)
    elif callable(matrix):
        known = read_matrix(matrix(x.numpy().copy()))
    with library_errors(identity.model, identity.library):
        with torch.no_grad():
            forecast = read.forward(x, horizon)
        if known is not None:
            values, rows = fitted(known, len(x), length, horizon, steps, scored)
        else:
            found = estimate(read, x, horizon, protocol)
            values, rows = found.matrix.numpy(), found.steps
    content = partial(getattr, identity, "fingerprint")
    return Explanation(
        matrix=values,
        signed=None,
        forecast=forecast.float().numpy(),
        x=x.numpy(),
        observed=np.ones(x.shape, dtype=bool),
        steps=rows,
        items=tuple(map(str, range(len(x)))) if len(x) > 1 else (series.item,),
        times=(None,) * len(x),
        seasons=(reader.season,) * len(x),
        scales=(reader.scale,) * len(x),
        model=ExplainedModel(identity.model, identity.checkpoint, content, identity.library),
        method=Method(
            protocol.estimator, protocol.estimator_settings, find_estimator(protocol.estimator).sign, protocol.seed
        ),
        windows=True,
        forecaster=forecaster,
        series=() if given.windows else (series,),
    )


def _refuse_another(known: GivenMatrix, identity: Identity, x: Floats, values: Floats) -> None:
    """Raise where a matrix says that it is of another model, or of values that are not scored."""
    model, name = known.model, identity.model
    if isinstance(model, ExplainedModel) and model.fingerprint != identity.fingerprint:
        raise HrxError(
            f"{known.source} is of {model.name} (sha256 {model.fingerprint[:12]}), and {name} has other weights. Give "
            "its model, or explain again."
        )
    if isinstance(model, str) and model != name:
        raise HrxError(f"{known.source} is of the model {model}, not of {name}. Give its model, or explain again.")
    if known.x is None or known.x.shape[1] != x.shape[1]:
        return
    theirs, within = np.asarray(known.x, dtype=np.float32), 1e-6 * float(np.abs(x).max())
    if len(theirs) == 1 < len(x):  # one matrix for several windows of its series
        every = np.lib.stride_tricks.sliding_window_view(values, x.shape[1])
        right = bool((np.abs(every - theirs) <= within + 1e-5 * np.abs(theirs)).all(axis=1).any())
    else:
        right = theirs.shape == x.shape and np.allclose(theirs, x, rtol=1e-5, atol=within)
    if not right:
        raise HrxError(
            f"{known.source} is of other values than the windows that are scored: it holds {len(theirs)} that end with "
            f"{theirs[0, -1]:.6g}, and {len(x)} that end with {float(x[0, -1]):.6g} are scored. Give its series, or "
            "explain again."
        )
