"""The settings of each estimator: named, with a default, its meaning and where the default comes from.

A setting is a field of a frozen dataclass, so that it is typed where it is used and can be listed, checked and stored
here. Imports no torch: the command line checks settings before it loads a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any

from hrx.audit.protocol import ProtocolError
from hrx.errors import unknown

Value = int | float | str
REPLACEMENTS = ("rearranged", "mean")
BASES = ("gradient_x_input", "saliency")


def setting(
    default: Value,
    meaning: str,
    source: str,
    least: float | None = None,
    most: float | None = None,
    *,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field with what a reader of its value needs to know. A text has `choices`, a number may have bounds."""
    about = {"meaning": meaning, "source": source, "least": least, "most": most, "choices": choices}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Settings:
    """Base of every estimator's settings; by itself, those of an estimator that has none."""

    def as_json(self) -> str:
        """Every setting with the value it has: the same string however they were written."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class IntegratedGradients(Settings):
    points: int = setting(
        32, "interpolation points, Gauss–Legendre", "hrx paper, table of costs: 98× of a forward, 3.1× each", least=1
    )


@dataclass(frozen=True)
class SmoothGrad(Settings):
    samples: int = setting(50, "noisy copies of the window", "Smilkov et al. 2017, section 3.2", least=1)
    noise: float = setting(
        0.15, "standard deviation of the noise, as a part of max − min", "Smilkov et al. 2017: 10 % to 20 %", least=0
    )


@dataclass(frozen=True)
class TSR(Settings):
    base: str = setting(
        "gradient_x_input", "the attribution that is rescaled", "Ismail et al. 2020: any", choices=BASES
    )
    threshold: float = setting(
        0.55, "quantile of the time relevance above which a position keeps all of it", "official code", 0, 1
    )
    below: float = setting(0.1, "what the positions below keep", "official code", least=0)


@dataclass(frozen=True)
class Occlusion(Settings):
    spans: int = setting(16, "spans that the lookback is cut into", "hrx paper, table of costs: 14×", least=1)
    replacement: str = setting(
        "rearranged", "what a corrupted position receives", "hrx protocol, section 3", choices=REPLACEMENTS
    )
    draws: int = setting(2, "rearrangements, in antithetic pairs", "ours: one pair", least=1)


@dataclass(frozen=True)
class Mask(Settings):
    """What the three mask methods share."""

    area: float = setting(0.2, "the budget: part of the lookback that a mask may keep", "ours", 0, 1)
    iterations: int = setting(
        200, "steps of the optimiser", "ContraLSP, rare/rare_time.py; hrx paper, table of costs", least=1
    )
    replacement: str = setting(
        "rearranged", "what a masked position fades to", "hrx protocol, section 3", choices=REPLACEMENTS
    )


@dataclass(frozen=True)
class Dynamask(Mask):
    halvings: int = setting(3, "smaller areas that are tried, each half the one before", "ours: 4 areas", least=0)
    error: float = setting(
        0.1, "the smallest area whose error is below this part of deleting everything is taken", "ours", least=0
    )
    learning_rate: float = setting(0.1, "of gradient descent", "attribution/mask_group.py", least=0)
    momentum: float = setting(0.9, "of gradient descent", "attribution/mask_group.py", 0, 1)
    size: float = setting(0.1, "weight of the area at the start, λ_a", "attribution/mask_group.py", least=0)
    dilation: float = setting(100.0, "growth of that weight to the end, δ", "attribution/mask_group.py", least=1)
    time: float = setting(0.0, "weight of jumps in time, λ_c", "attribution/mask_group.py", least=0)


@dataclass(frozen=True)
class ExtremalMask(Mask):
    learning_rate: float = setting(0.1, "of Adam", "ContraLSP, rare/rare_time.py", least=0)
    mask: float = setting(1.0, "weight of the mask's size, λ_1", "tint/attr/models/extremal_mask.py", least=0)
    perturbation: float = setting(1.0, "weight of the perturbation, λ_2", "tint/attr/models/extremal_mask.py", least=0)


@dataclass(frozen=True)
class ContraLSP(Mask):
    learning_rate: float = setting(0.01, "of Adam", "hmm/main.py", least=0)
    gates: float = setting(0.1, "weight of the open gates, α", "rare/rare_time.py", least=0)
    contrast: float = setting(0.1, "weight of the counterfactual's loss, β", "rare/rare_time.py", least=0)
    noise: float = setting(0.5, "standard deviation of the gates' noise, δ", "rare/rare_time.py", least=0)
    margin: float = setting(1.0, "of the triplet loss, b", "attribution/gatemasknn.py", least=0)
    hidden: int = setting(32, "width of the trend's network", "attribution/gatemasknn.py", least=1)
    samples: int = setting(16, "rearranged windows that the counterfactual is contrasted with", "ours", least=2)


def read_settings(estimator: str, kind: type[Settings], text: str) -> Settings:
    """The settings of an estimator from JSON, the rest by default."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProtocolError(f"The settings of {estimator} are not JSON: {text!r} ({error}).") from error
    if not isinstance(given, dict):
        raise ProtocolError(f"The settings of {estimator} are {text!r}. Give a JSON object, for example {{}}.")
    known = {f.name: f for f in fields(kind)}
    for name, value in given.items():
        if name not in known:
            if not known:
                raise ProtocolError(f"{estimator} has no settings, so it cannot take {name!r}.")
            raise ProtocolError(unknown(f"setting of {estimator}", name, known))
        given[name] = _checked(f"The setting {name} of {estimator}", known[name], value)
    return kind(**given)


def _checked(what: str, known: Field[Any], value: object) -> Value:
    if choices := known.metadata["choices"]:
        if value not in choices:
            raise ProtocolError(f"{what} is {value!r}. Give {' or '.join(choices)}.")
        return str(value)
    whole = isinstance(known.default, int)
    fits = isinstance(value, int) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits:
        raise ProtocolError(f"{what} is {value!r}. Give a {'whole ' if whole else ''}number, such as {known.default}.")
    least, most = known.metadata["least"], known.metadata["most"]
    if not ((least is None or value >= least) and (most is None or value <= most)):
        bounds = f"from {least:g} to {most:g}" if most is not None else f"of at least {least:g}"
        raise ProtocolError(f"{what} is {value}. Give a number {bounds}.")
    return value if whole else float(value)


def parse_estimator_settings(pairs: Iterable[str]) -> str:
    """`NAME=VALUE` as on the command line, to JSON. Whether an estimator knows them is checked by `Protocol`."""
    found: dict[str, Value] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ProtocolError(f"--estimator-setting {pair!r} is no pair. Give NAME=VALUE, for example points=64.")
        if name in found:
            raise ProtocolError(f"--estimator-setting gives {name} twice. Give it once.")
        found[name] = _literal(value)
    return json.dumps(found, sort_keys=True)


def _literal(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
