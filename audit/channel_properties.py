"""Properties of a forecaster on windows with covariates and several targets, for those that take them.

Each is a function as in `properties`. The covariates are random numbers under the names that a model was trained with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hrx.adapters.gradients import relative_difference
from hrx.adapters.inputs import Layout, RoleName, Window
from hrx.adapters.wrapped import Bound
from hrx.audit import covariates
from hrx.audit.official_call import OfficialCall, kept_globals, seed_generators
from hrx.audit.properties import EQUIVARIANT, IN_BATCH, Outcome, judged

CHANNELS = 2
"""Covariates of each role, for a model that takes any."""
FAR = 96
"""Steps of the horizon at which the reach of values ahead is measured, where the model takes it."""
SWITCH_NOISE = 1e-6
NONE = Outcome("does not apply", math.nan, "It reads no covariates.")


class _Official(Bound):
    """The official call of a model on packed windows, counted."""

    f: OfficialCall

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        self.f.count(1)
        with kept_globals(), torch.no_grad():
            seed_generators(0)
            return self.official(x.clone(), horizon)


def _bound(f: OfficialCall, window: Window, horizon: int, explained: int = 0) -> _Official:
    assert f.model
    bound = _Official(f.model, Layout.of(window, horizon), explained)
    bound.f = f
    return bound


def _forecast(f: OfficialCall, window: Window, horizon: int) -> Tensor:
    """`(B, H, K)`: official forecasts of all targets."""
    every = [_bound(f, window, horizon, target) for target in range(window.target.shape[2])]
    rows = torch.split(every[0].layout.pack(window), 1 if f.alone else len(window))
    return torch.stack([torch.cat([one.predict(row, horizon) for row in rows]) for one in every], dim=-1)


def roles_of(f: OfficialCall) -> tuple[RoleName, ...]:
    """Roles of covariates that the model takes."""
    return () if f.model is None else tuple(r for r in ("past", "future") if getattr(f.model.inputs, r).accepts != "no")


def _window(f: OfficialCall, x: Tensor, horizon: int, roles: Sequence[RoleName], targets: int = 1) -> Window:
    """Windows `x` with covariates of these roles, and of those that the model needs."""
    assert f.model
    inputs, (batch, length), draw = f.model.inputs, x.shape, torch.Generator().manual_seed(0)
    values: dict[str, Any] = {}
    names: dict[RoleName, tuple[str, ...]] = {}
    for role in ("past", "future", "static"):
        taken = getattr(inputs, role)
        if role in roles or taken.accepts == "required":
            names[role] = taken.names or tuple(f"{role} {number}" for number in range(CHANNELS))
            count = {"past": length, "future": length + horizon, "static": 1}[role]
            drawn = torch.randn(batch, count, len(names[role]), generator=draw).to(x)
            values[role] = drawn[:, 0] if role == "static" else drawn
    targets = max(targets, inputs.targets[0])
    more = torch.randn(batch, length, targets - 1, generator=draw).to(x)
    return Window(torch.cat([x[..., None], more], dim=2), **values, names=names)


def future_reach(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    """Which steps the values of a covariate that is known ahead move."""
    if "future" not in roles_of(f):
        return NONE._replace(says="It takes no covariates that are known ahead.")
    horizon = FAR if f.limits.refusal(x.shape[1], FAR) is None else horizon
    window = _window(f, x[:1], horizon, ["future"])
    bound = _bound(f, window, horizon)
    name = bound.layout.of_role("future")[0].name
    found = covariates.reach(bound, bound.layout.pack(window), name, (-1.0, 1.0))
    figure = float(found.moves.diagonal().mean())
    moved = f"steps {found}" if str(found).startswith("from") else str(found)
    says = f"A value known ahead moves {moved}; {figure:.0%} of {horizon} move their own step."
    return Outcome("holds" if figure == 1 else "does not hold", figure, says)


def two_valued(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    """Noise that no user would see on a 0/1 covariate."""
    figures: dict[str, float] = {}
    for role in roles_of(f):
        window = _window(f, x, horizon, [role])
        values = (getattr(window, role) > 0).to(x)
        noise = SWITCH_NOISE * torch.randn(values.shape, generator=torch.Generator().manual_seed(1)).to(x)
        plain, noisy = (_forecast(f, replace(window, **{role: v}), horizon) for v in (values, values + noise))
        figures[role] = relative_difference(noisy, plain)
    if not figures:
        return NONE
    worst = max(figures, key=lambda role: figures[role])
    bad = (
        f"Noise of 1e-6 on a 0/1 {worst} covariate moves the forecast by {figures[worst]:.1%}: what has two values is "
        "read in another way, so write flags as exact numbers."
    )
    return judged(figures[worst], EQUIVARIANT, "A 0/1 covariate is read as a number like any other.", bad)


def channel_order(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    """Covariates, and targets, in another order."""
    roles, figures = roles_of(f), dict[str, float]()
    if f.model is None:
        return NONE
    for role in roles:
        window = _window(f, x, horizon, [role])
        given = window.names[role]
        names = {**window.names, role: given[::-1]}
        turned = replace(window, names=names, **{role: getattr(window, role).flip(-1)})
        if len(given) > 1:
            figures[f"{role} covariates"] = relative_difference(
                _forecast(f, turned, horizon), _forecast(f, window, horizon)
            )
    if f.model.inputs.targets[1] is None:
        window = _window(f, x, horizon, [], targets=3)
        turned = replace(window, target=window.target.flip(-1))
        figures["targets"] = relative_difference(_forecast(f, turned, horizon).flip(-1), _forecast(f, window, horizon))
    if not figures:
        return NONE._replace(says="It reads one series.")
    worst = max(figures, key=lambda name: figures[name])
    bad = f"The order of the {worst} moves the forecast by {figures[worst]:.2g} of its size: fix it."
    return judged(figures[worst], IN_BATCH, f"The order of {' and '.join(figures)} does not matter.", bad)


def channel_isolation(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    """A window with covariates alone, and beside windows whose covariates are others, huge or missing."""
    roles = roles_of(f)
    if f.model is None or not roles:
        return NONE
    if f.alone:
        return Outcome("does not apply", math.nan, "Windows of a batch depend on each other.")
    window = _window(f, x[:1], horizon, roles)
    alone, figures = _forecast(f, window, horizon), dict[str, float]()
    neighbours: dict[str, Mapping[str, Tensor]] = {
        "others": {role: getattr(window, role).flip(1) + 1 for role in roles},
        "huge ones": {role: getattr(window, role) * 1e6 for role in roles},
    }
    if all(_may_be_missing(f, role) for role in roles):
        neighbours["missing ones"] = {role: getattr(window, role) * torch.nan for role in roles}
    for name, changed in neighbours.items():
        pair: dict[str, Any] = {role: torch.cat([values, changed.get(role, values)]) for role, values in window.roles()}
        figures[name] = relative_difference(_forecast(f, replace(window, **pair), horizon)[:1], alone)
    figure, moved = max(figures.values()), ", ".join(name for name, one in figures.items() if one > IN_BATCH)
    bad = (
        f"A forecast moves by {figure:.2g} of its size when a neighbour's covariates are {moved}: one series per call."
    )
    return judged(figure, IN_BATCH, "The covariates of another series in the batch change nothing.", bad)


def empty_channel(f: OfficialCall, x: Tensor, horizon: int) -> Outcome:
    """A covariate without a single value against none at all."""
    figures: dict[str, float] = {}
    for role in roles_of(f):
        if _may_be_missing(f, role) and getattr(f.model and f.model.inputs, role).accepts == "optional":
            window = _window(f, x, horizon, [role])
            empty = replace(window, **{role: getattr(window, role) * torch.nan})
            none = _forecast(f, _window(f, x, horizon, []), horizon)
            figures[role] = relative_difference(_forecast(f, empty, horizon), none)
    if not figures:
        return NONE._replace(says="It takes no covariates without values.")
    worst = max(figures, key=lambda role: figures[role])
    bad = f"A {worst} covariate without values moves the forecast by {figures[worst]:.1%}: drop empty columns."
    return judged(figures[worst], IN_BATCH, "A covariate without values is as none.", bad)


def _may_be_missing(f: OfficialCall, role: RoleName) -> bool:
    taken = getattr(f.model and f.model.inputs, role)
    return taken.missing != "refused" and (role != "future" or taken.ahead_missing != "refused")
