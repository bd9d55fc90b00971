"""`hrx.score`, on the objects that people hold; `hrx.audit.score` is the same measurement on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hrx.api.explain import Model, Names, explain
from hrx.audit.protocol import Protocol

if TYPE_CHECKING:
    from hrx.records.quantities import Quantities


def score(
    model: Model,
    data: Any,
    horizon: int,
    *,
    lookback: int | None = None,
    protocol: Protocol | None = None,
    date: str = "",
    id: Names = (),
    value: Names = (),
    frequency: str = "",
    season: int | None = None,
) -> Quantities:
    """Return the quantities of one run: of one series, or of windows `(W, L)`. Arguments as those of `explain`.

    It scores the window before the end of a series, or all rows of an array together.

        q = hrx.score("bolt-mini", "sample:elnino/M", horizon=12, lookback=96)
        q.g_margin, q.plus_minus("g_margin")    # the gain, and half of its 95 % interval over draws
    """
    protocol = protocol or Protocol()
    explained = explain(
        model,
        data,
        horizon,
        lookback=lookback,
        estimator=protocol.estimator,
        settings=protocol.estimator_settings,
        seed=protocol.seed,
        date=date,
        id=id,
        value=value,
        frequency=frequency,
        season=season,
    )
    return explained.score(protocol=protocol)
