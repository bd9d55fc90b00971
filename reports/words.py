"""Numbers and lists the way a sentence has them."""

from __future__ import annotations

import math
from collections.abc import Iterable


def number_or_none(value: float | None) -> float | None:
    """None for anything that JSON has no number for."""
    return float(value) if value is not None and math.isfinite(value) else None


def signed(value: float | None) -> str:
    """`+0.120`, `-0.031`, `0.000`: three decimals, and four digits where three decimals would hide the value."""
    value = number_or_none(value)
    if value is None:
        return "-"
    if value == 0:
        return "0.000"
    return f"{value:+.3f}" if 0.0005 <= abs(value) < 1000 else f"{value:+.1e}"


def percent(share: float | None) -> str:
    """`86 %`; a share that is not whole never rounds to 0 % or 100 %."""
    share = number_or_none(share)
    if share is None:
        return "-"
    rounded = round(100 * share)
    if rounded == 100 and share < 1:
        return ">99 %"
    return "<1 %" if rounded == 0 and share > 0 else f"{rounded} %"


def listed(items: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = [str(item) for item in items] or [""]
    return f"{', '.join(most)} and {last}" if most else last
