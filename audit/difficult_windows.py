"""Properties of a forecaster on windows that are not like others: ordinary ones of every kind, extreme ones, gaps.

Each is a function as in `properties`.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hrx.adapters.gradients import relative_difference
from hrx.audit.official_call import OfficialCall, kept_globals, seed_generators
from hrx.audit.properties import IN_BATCH, Outcome, judged, spread_of, windows


def ordinary_windows(x: Tensor) -> dict[str, Tensor]:
    """`(1, L)` by name: what series of a business look like."""
    length = x.shape[1]
    draw = torch.Generator().manual_seed(0)
    steps = torch.randn(1, length, generator=draw).to(x)
    rising = torch.arange(length).to(x)[None]
    return {
        "seasonal": x[:1],
        "a random walk": steps.cumsum(dim=1),
        "counts": torch.poisson(torch.full((1, length), 2.0), generator=draw).to(x),
        "mostly zero": (steps > 1).to(x) * 7,
        "a rising line": rising,
        "a falling line": -rising,
        "large values": 1e4 + 100 * x[:1],
    }


def extreme_windows(x: Tensor) -> dict[str, Tensor]:
    """`(1, L)` by name: windows with a statistic of zero, or a scale far from one."""
    spike = x[:1].clone()
    spike[0, x.shape[1] // 2] = 1e6
    constant = torch.full_like(x[:1], 3.0)
    return {
        "constant": constant,
        "all zero": constant * 0,
        "nearly constant": constant + 1e-6 * x[:1],
        "with a spike of 1e6": spike,
        "of size 1e-12": x[:1] * 1e-12,
        "of size 1e12": x[:1] * 1e12,
    }


def _not_finite(f: OfficialCall, named: Mapping[str, Tensor], horizon: int) -> tuple[list[str], list[str]]:
    """Names of windows whose forecast is not finite, and of those that are refused."""
    bad, refused = [], []
    for name, window in named.items():
        y = f.attempt(window, horizon)
        if isinstance(y, str):
            refused.append(name)
        elif not y.isfinite().all():
            bad.append(name)
    return bad, refused


def finite(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    bad, refused = _not_finite(f, ordinary_windows(x), horizon)
    says = f"No finite forecast of windows that are {', '.join([*bad, *refused])}."
    return judged(len(bad + refused), 0, "Ordinary windows have a finite forecast.", says)


def extremes(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    length, limits = x.shape[1], f.limits
    named = extreme_windows(x)
    longest = min(limits.longest_lookback or 8 * length, 8 * length)
    for kind, other in (("short", max(limits.shortest_lookback, 1)), ("short", 2), ("longest", longest)):
        if limits.refusal(other, horizon) is None and other != length:
            named[f"{kind} ({other} values)"] = windows(other)[:1].to(x)
    bad, refused = _not_finite(f, named, horizon)
    more = f" Refused: {', '.join(refused)}." if refused else ""
    says = f"NaN or infinite for windows that are {', '.join(bad)}: check such series before.{more}"
    return judged(len(bad), 0, f"Constant, spiky, tiny, huge, short and long windows do no harm.{more}", says)


def missing(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    length = x.shape[1]
    x = x[:1] + 5 * spread_of(x[:1])  # zero is far from every value
    gaps = {
        "leading": slice(0, length // 4),
        "inner": slice(length // 2, length // 2 + max(length // 8, 1)),
        "trailing": slice(length - max(length // 8, 1), length),
        "all": slice(0, length),
    }
    found = {name: _gap(f, x, gap, horizon) for name, gap in gaps.items()}
    zeroed = [name for name in ("leading", "inner", "trailing") if found[name] == "read as zero"]
    kinds = dict.fromkeys(found.values())
    by_kind = "; ".join(f"{', '.join(n for n in found if found[n] == kind)}: {kind}" for kind in kinds)
    says = f"Missing values, {by_kind}."
    return judged(len(zeroed), 0, says, f"{says} Fill such gaps before: zero is a value like any other.")


def _gap(f: OfficialCall, x: Tensor, gap: slice, horizon: int) -> str:
    """What a call makes of missing values, by the forecasts of windows in which they are filled."""
    holed = x.clone()
    holed[:, gap] = torch.nan
    y = f.attempt(holed, horizon)
    if isinstance(y, str):
        return "refused"
    if not y.isfinite().all():
        return "NaN forecast"
    known = holed.isfinite()
    if not known.any():
        return "a forecast all the same"
    places, positions = known[0].nonzero()[:, 0], np.arange(x.shape[1])
    at = places[(torch.searchsorted(places, torch.arange(x.shape[1]), right=True) - 1).clamp_min(0)]
    straight = np.interp(positions, places.numpy(), x[0, places].numpy())
    fills = {
        "read as zero": torch.zeros_like(x),
        "filled with the mean": x[known].mean().expand_as(x),
        "filled with the last value": x[:, at],
        "filled by a straight line": torch.from_numpy(straight).to(x)[None],
    }
    forecasts = {name: f(torch.where(known, x, fill), horizon) for name, fill in fills.items()}
    same = [name for name, forecast in forecasts.items() if relative_difference(y, forecast) <= IN_BATCH]
    if gap.start == 0 and not same:
        shorter = f.attempt(x[:, gap.stop :], horizon)
        same = ["cut off"] if isinstance(shorter, Tensor) and relative_difference(y, shorter) <= IN_BATCH else []
    return "not read" if {"read as zero", "filled with the mean"} <= set(same) else (same or ["masked"])[0]


def quantiles(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    if f.quantiles is None:
        return Outcome("does not apply", math.nan, "The call gives one number per step.")
    hard = torch.cat([x, *ordinary_windows(x).values()])
    with kept_globals(), torch.no_grad():
        seed_generators(0)
        rows = torch.split(hard.clone(), 1 if f.alone else len(hard))
        levels = torch.cat([torch.as_tensor(f.quantiles(row, horizon)) for row in rows])
    point = f(hard, horizon)
    crossing = float((levels.diff(dim=-1) < 0).any(dim=-1).double().mean())
    outside = float(((point < levels[..., 0]) | (point > levels[..., -1])).double().mean())
    bad = (
        f"{crossing:.0%} of the steps have crossing quantiles, in {outside:.0%} the point forecast "
        "lies outside of them: sort them, and distrust narrow intervals."
    )
    return judged(max(crossing, outside), 0, "Quantiles rise with their level and enclose the point forecast.", bad)
