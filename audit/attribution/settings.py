"""What can be set for each estimator: a field of a frozen dataclass with its default, meaning, source and bounds.

So settings can be listed, checked and stored without torch: a request is checked before a model is loaded.
"""

import json
from dataclasses import Field, asdict, dataclass, field, fields
from functools import partial
from typing import Any, Self

from hrx.errors import ProtocolError, unknown

Value = int | float | str


def setting(
    default: Value,
    meaning: str,
    source: str,
    least: float | None = None,
    most: float | None = None,
    *,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of `Settings`. A text needs `choices`, a number may have bounds."""
    about = {"meaning": meaning, "source": source, "least": least, "most": most, "choices": choices}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Settings:
    """Base of every estimator's settings; by itself, those of an estimator that has none."""

    def forecasts(self, lookback: int) -> int | None:
        """Forecasts of each window by an estimator that needs nothing else; None where it needs gradients."""
        return None

    def as_json(self) -> str:
        """Every setting with its value: the same string for the same values."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, text: str, estimator: str) -> Self:
        """Settings of an estimator from JSON; missing ones have their defaults."""
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise ProtocolError(f"The settings of {estimator} are not JSON: {text!r} ({error}).") from error
        if not isinstance(given, dict):
            raise ProtocolError(f"The settings of {estimator} are {text!r}. Give a JSON object, for example {{}}.")
        known = {f.name: f for f in fields(cls)}
        for name in given:
            if not known:
                raise ProtocolError(f"{estimator} has no settings, so it cannot take {name!r}.")
            if name not in known:
                raise ProtocolError(unknown(f"setting of {estimator}", name, known))
        return cls(**{name: _checked(f"The setting {name} of {estimator}", known[name], given[name]) for name in given})


def _checked(what: str, known: Field[Any], value: object) -> Value:
    if choices := known.metadata["choices"]:
        if value not in choices:
            raise ProtocolError(f"{what} is {value!r}. Give {' or '.join(choices)}.")
        return str(value)
    whole = isinstance(known.default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ProtocolError(f"{what} is {value!r}. Give a {'whole ' if whole else ''}number, such as {known.default}.")
    least, most = known.metadata["least"], known.metadata["most"]
    if not ((least is None or value >= least) and (most is None or value <= most)):
        bounds = f"from {least:g} to {most:g}" if most is not None else f"of at least {least:g}"
        raise ProtocolError(f"{what} is {value}. Give a number {bounds}.")
    return value if whole else float(value)


def _parts(length: int, count: int) -> int:
    """How many parts of `⌈length / count⌉` positions a lookback has."""
    return -(-length // -(-length // count))


def _drawn(settings: Any) -> int:
    return 1 if settings.replacement == "mean" else int(settings.draws)


_REPLACEMENT = partial(setting, "rearranged", source="hrx protocol, section 3", choices=("rearranged", "mean"))


@dataclass(frozen=True)
class IntegratedGradientsSettings(Settings):
    points: int = setting(
        32, "interpolation points, Gauss–Legendre", "hrx paper, table of costs: 98× of a forward, 3.1× each", least=1
    )


@dataclass(frozen=True)
class SmoothGradSettings(Settings):
    samples: int = setting(50, "noisy copies of the window", "Smilkov et al. 2017, section 3.2", least=1)
    noise: float = setting(
        0.15, "standard deviation of the noise, as a part of max − min", "Smilkov et al. 2017: 10 % to 20 %", least=0
    )


@dataclass(frozen=True)
class TSRSettings(Settings):
    base: str = setting(
        "gradient_x_input",
        "the attribution that is rescaled",
        "Ismail et al. 2020: any",
        choices=("gradient_x_input", "saliency"),
    )
    threshold: float = setting(
        0.55, "quantile of the time relevance above which a position keeps all of it", "official code", 0, 1
    )
    below: float = setting(0.1, "share that the positions below it keep", "official code", least=0)


@dataclass(frozen=True)
class OcclusionSettings(Settings):
    spans: int = setting(16, "spans that the lookback is cut into", "hrx paper, table of costs: 14×", least=1)
    replacement: str = _REPLACEMENT(meaning="what replaces a corrupted position")
    draws: int = setting(2, "rearrangements, in antithetic pairs", "ours: one pair", least=1)

    def forecasts(self, lookback: int) -> int:
        return 1 + _parts(lookback, self.spans) * _drawn(self)


@dataclass(frozen=True)
class ShapleySegmentsSettings(Settings):
    segments: int = setting(8, "segments that the lookback is cut into, from its end", "ours: all coalitions", 1, 64)
    coalitions: int = setting(
        256, "coalitions a draw: all of them if there are no more, else those along random orders", "ours: 2^8", least=2
    )
    replacement: str = _REPLACEMENT(meaning="what replaces a segment outside the coalition")
    draws: int = setting(2, "rearrangements, in antithetic pairs", "ours: one pair", least=1)

    def forecasts(self, lookback: int) -> int:
        segments = _parts(lookback, self.segments)
        sampled = max(1, self.coalitions // (2 * (segments + 1))) * 2 * (segments + 1)
        return 1 + (2**segments if 2**segments <= self.coalitions else sampled) * _drawn(self)


@dataclass(frozen=True)
class WinITSettings(Settings):
    spans: int = setting(64, "spans that the lookback is cut into, from its end", "ours", least=1)
    replacement: str = _REPLACEMENT(meaning="what replaces a perturbed position")
    draws: int = setting(4, "rearrangements, in antithetic pairs", "ours: two pairs; official code: 3", least=1)

    def forecasts(self, lookback: int) -> int:
        return 1 + _parts(lookback, self.spans) * _drawn(self)


@dataclass(frozen=True)
class MaskSettings(Settings):
    """Settings that the three mask methods share."""

    area: float = setting(0.2, "the budget: part of the lookback that a mask may keep", "ours", 0, 1)
    iterations: int = setting(
        200, "steps of the optimiser", "ContraLSP, rare/rare_time.py; hrx paper, table of costs", least=1
    )
    replacement: str = _REPLACEMENT(meaning="what a masked position fades to")


@dataclass(frozen=True)
class DynamaskSettings(MaskSettings):
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
class ExtremalMaskSettings(MaskSettings):
    learning_rate: float = setting(0.1, "of Adam", "ContraLSP, rare/rare_time.py", least=0)
    mask: float = setting(1.0, "weight of the mask's size, λ_1", "tint/attr/models/extremal_mask.py", least=0)
    perturbation: float = setting(1.0, "weight of the perturbation, λ_2", "tint/attr/models/extremal_mask.py", least=0)


@dataclass(frozen=True)
class ContraLSPSettings(MaskSettings):
    learning_rate: float = setting(0.01, "of Adam", "hmm/main.py", least=0)
    gates: float = setting(0.1, "weight of the open gates, α", "rare/rare_time.py", least=0)
    contrast: float = setting(0.1, "weight of the counterfactual's loss, β", "rare/rare_time.py", least=0)
    noise: float = setting(0.5, "standard deviation of the gates' noise, δ", "rare/rare_time.py", least=0)
    margin: float = setting(1.0, "of the triplet loss, b", "attribution/gatemasknn.py", least=0)
    hidden: int = setting(32, "width of the trend's network", "attribution/gatemasknn.py", least=1)
    samples: int = setting(16, "rearranged windows that the counterfactual is contrasted with", "ours", least=2)
