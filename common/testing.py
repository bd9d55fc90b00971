"""Checks of any forecaster for a test suite: no trained weights, no data, one test per property.

    from hrx.testing import parametrize_with_checks

    @parametrize_with_checks([my_forecaster])
    def test_contract(forecaster, check):
        check(forecaster)

`my_forecaster` is `hrx.load(…)`, a `torch.nn.Module` or a function of windows `(B, L)` that returns `(B, H)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hrx.records.contract import Contract, Finding

if TYPE_CHECKING:
    from torch import Tensor

    from hrx.adapters.contract import Forecaster
    from hrx.audit.contract import Examination
    from hrx.audit.official_call import OfficialCall

__all__ = ["check_forecaster", "parametrize_with_checks", "smallest_window"]

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 192, 512)
_SEARCH = 20.0
"""Seconds that the search for a small window may take."""


def check_forecaster(
    forecaster: Forecaster | Callable[..., Any],
    *,
    only: Sequence[str] = (),
    lookback: int | None = None,
    horizon: int = 24,
    promises: Sequence[str] = (),
    x: Tensor | None = None,
    **call: Any,
) -> Contract:
    """Measure the contract of a forecaster; raise an AssertionError where something required does not hold.

    Without `lookback` it is 96, or what fits a checkpoint; `x` `(B, L)` are windows to use instead. `promises` names
    properties that are required beside those of every forecaster, such as `units` or `sign`. Further keywords belong
    to the call: `as_numpy=True` for a function of arrays, `quantiles=` a function that returns `(B, H, Q)`,
    `most_calls=`, `seconds=`.

        contract = check_forecaster(hrx.load("bolt-mini"), promises=["units"])
        contract.of("sign").says
    """
    examination = _examination(forecaster, lookback=lookback, horizon=horizon, promises=promises, x=x, **call)
    contract = examination.contract(only)
    if failed := [one for one in contract.findings if one.failed]:
        raise AssertionError("\n".join(_message(examination, one) for one in failed))
    return contract


def parametrize_with_checks(
    forecasters: Sequence[Forecaster | Callable[..., Any]], **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test of `forecaster` and `check`: one test per forecaster and property.

    `settings` are those of `check_forecaster`. A property that does not apply, or that does not hold and is not
    required, is skipped with its sentence, which `pytest -rs` shows.
    """
    import pytest

    from hrx.audit.contract import check_names

    names = check_names(settings.pop("only", ()))
    cases = []
    for number, forecaster in enumerate(forecasters):
        check = _Checks(forecaster, settings)
        label = _label(forecaster) + (f"-{number}" if len(forecasters) > 1 else "")
        cases += [pytest.param(forecaster, check.of(name), id=f"{label}-{name}") for name in names]
    return pytest.mark.parametrize(("forecaster", "check"), cases)


class _Checks:
    """Checks of one forecaster, which share what they measure."""

    def __init__(self, forecaster: Any, settings: dict[str, Any]):
        self._forecaster, self._settings = forecaster, settings
        self._examination: Examination | None = None

    def of(self, name: str) -> Callable[[Any], None]:
        def check(forecaster: Any) -> None:
            import pytest

            if self._examination is None or forecaster is not self._forecaster:  # a test may wrap the forecaster
                self._forecaster, self._examination = forecaster, _examination(forecaster, **self._settings)
            finding = self._examination.finding(name)
            if finding.failed:
                raise AssertionError(_message(self._examination, finding))
            if finding.verdict not in ("holds", "not stated"):
                pytest.skip(f"{name} {finding.verdict}: {finding.says}")

        return check


def _examination(
    forecaster: Any,
    *,
    lookback: int | None = None,
    horizon: int = 24,
    promises: Sequence[str] = (),
    x: Tensor | None = None,
    **call: Any,
) -> Examination:
    from hrx.audit.contract import Examination, fitting_setting
    from hrx.audit.official_call import OfficialCall
    from hrx.audit.properties import windows

    f = OfficialCall(forecaster, **call)
    if x is None:
        fitting, horizon = (lookback, horizon) if lookback else fitting_setting(f.limits, horizon)
        x = windows(fitting)
    return Examination(f, x, horizon, promises)


def _label(forecaster: Any) -> str:
    identity = getattr(forecaster, "identity", None)
    return str(identity.model if identity else getattr(forecaster, "__name__", type(forecaster).__name__))


def _message(examination: Examination, finding: Finding) -> str:
    """What failed, and the smallest window that shows it, to paste into a report."""
    lines = [f"{finding.name} does not hold: {finding.says}", f"Expected: {finding.expectation}."]
    window = smallest_window(examination.f, finding.name, examination.x, examination.horizon)
    values = [float(f"{value:.6g}") for value in window[0].tolist()]
    lines += [
        "Smallest window that was found to show it:",
        f"    x = torch.tensor([{values}])",
        f'    check_forecaster(forecaster, x=x, horizon={examination.horizon}, only=["{finding.name}"])',
    ]
    return "\n".join(lines)


def smallest_window(f: OfficialCall, name: str, x: Tensor, horizon: int) -> Tensor:
    """Return a short window `(1, L)` of small whole numbers at which a property does not hold.

    Without hypothesis, or where it finds none in time, the window that the check used.
    """
    import torch

    from hrx.audit.difficult_windows import extreme_windows, ordinary_windows

    made = {"finite": ordinary_windows, "extremes": extreme_windows}.get(name)
    used = next((one for one in made(x).values() if _shown(f, name, one, horizon)), x[:1]) if made else x[:1]
    try:
        from hypothesis import HealthCheck, find, settings
        from hypothesis import strategies as st
        from hypothesis.errors import NoSuchExample, Unsatisfiable
    except ImportError:
        return used
    length, until = x.shape[1], time.monotonic() + _SEARCH
    chosen = settings(
        max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )

    def shows(values: list[int]) -> bool:
        return time.monotonic() < until and _shown(f, name, torch.tensor([values], dtype=x.dtype), horizon)

    for size in (*(n for n in _LENGTHS if n < length), length):
        if f.limits.refusal(size, horizon) is None:
            with suppress(NoSuchExample, Unsatisfiable):
                values = find(st.lists(st.integers(-9, 9), min_size=size, max_size=size), shows, settings=chosen)
                return torch.tensor([values], dtype=x.dtype)
    return used


def _shown(f: OfficialCall, name: str, x: Tensor, horizon: int) -> bool:
    """Whether a property does not hold at a window `(1, L)`."""
    from hrx.audit.contract import PROPERTIES
    from hrx.audit.official_call import OfficialCall

    fresh = OfficialCall(f.function, quantiles=f.quantiles, as_numpy=f.as_numpy, most_calls=10**9)
    fresh.alone = f.alone and name != "isolation"
    if name in ("finite", "extremes"):  # of the window itself; a constant one is extreme
        y = fresh.attempt(x, horizon) if name == "extremes" or not (x == x[:, :1]).all() else ""
        return not isinstance(y, str) and not bool(y.isfinite().all())
    try:
        return PROPERTIES[name].measure(fresh, x, horizon).verdict == "does not hold"
    except Exception:  # a model may raise anything on a window that it does not expect
        return False
