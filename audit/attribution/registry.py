"""The estimators by name, and the settings of each.

A setting is a field of a frozen dataclass with a default, a meaning and the source of the default, so that it can be
listed, checked and stored. A package adds an estimator by an entry point of the group `hrx.estimators`: its name is
the estimator's name, its value an `Estimator`. `captum:CLASS` and `tint:CLASS` are in `libraries`, functions of a user
in `functions`. Imports neither torch nor a package before it is needed: the command line checks settings before it
loads a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import Field, asdict, dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal, cast

from hrx.audit.protocol import ProtocolError
from hrx.errors import unknown

if TYPE_CHECKING:
    from hrx.audit.attribution.explanation import AttributionTask, EstimatedRows

GROUP = "hrx.estimators"
_GRADIENTS, _MASKS = "hrx.audit.attribution.gradients", "hrx.audit.attribution.masks"
_LAGS = "hrx.audit.attribution.lag_spans"
Value = int | float | str
Sign = Literal["", "slope", "contribution"]
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
    """A field of `Settings`. A text needs `choices`, a number may have bounds."""
    about = {"meaning": meaning, "source": source, "least": least, "most": most, "choices": choices}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Settings:
    """Base of every estimator's settings; by itself, those of an estimator that has none."""

    def as_json(self) -> str:
        """Every setting with its value: the same string for the same values."""
        return json.dumps(asdict(self), sort_keys=True)


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
        "gradient_x_input", "the attribution that is rescaled", "Ismail et al. 2020: any", choices=BASES
    )
    threshold: float = setting(
        0.55, "quantile of the time relevance above which a position keeps all of it", "official code", 0, 1
    )
    below: float = setting(0.1, "share that the positions below it keep", "official code", least=0)


@dataclass(frozen=True)
class OcclusionSettings(Settings):
    spans: int = setting(16, "spans that the lookback is cut into", "hrx paper, table of costs: 14×", least=1)
    replacement: str = setting(
        "rearranged", "what replaces a corrupted position", "hrx protocol, section 3", choices=REPLACEMENTS
    )
    draws: int = setting(2, "rearrangements, in antithetic pairs", "ours: one pair", least=1)


@dataclass(frozen=True)
class ShapleySegmentsSettings(Settings):
    segments: int = setting(8, "segments that the lookback is cut into, from its end", "ours: all coalitions", 1, 64)
    coalitions: int = setting(
        256, "coalitions a draw: all of them if there are no more, else those along random orders", "ours: 2^8", least=2
    )
    replacement: str = setting(
        "rearranged", "what replaces a segment outside the coalition", "hrx protocol, section 3", choices=REPLACEMENTS
    )
    draws: int = setting(2, "rearrangements, in antithetic pairs", "ours: one pair", least=1)


@dataclass(frozen=True)
class WinITSettings(Settings):
    spans: int = setting(64, "spans that the lookback is cut into, from its end", "ours", least=1)
    replacement: str = setting(
        "rearranged", "what replaces a perturbed position", "hrx protocol, section 3", choices=REPLACEMENTS
    )
    draws: int = setting(4, "rearrangements, in antithetic pairs", "ours: two pairs; official code: 3", least=1)


@dataclass(frozen=True)
class MaskSettings(Settings):
    """The settings that the three mask methods share."""

    area: float = setting(0.2, "the budget: part of the lookback that a mask may keep", "ours", 0, 1)
    iterations: int = setting(
        200, "steps of the optimiser", "ContraLSP, rare/rare_time.py; hrx paper, table of costs", least=1
    )
    replacement: str = setting(
        "rearranged", "what a masked position fades to", "hrx protocol, section 3", choices=REPLACEMENTS
    )


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


@dataclass(frozen=True)
class Estimator:
    """A method that fills rows of the matrix."""

    name: str
    fill: str
    """`module:function` of an `(AttributionTask, settings) -> EstimatedRows`, imported on first use."""
    settings: type[Settings] = Settings
    """A frozen dataclass of which every field is a `setting` with a default."""
    every_step: bool = False
    """Whether all steps of the horizon are estimated by default, instead of the scored ones only."""
    multivariate: bool = False
    """Whether it takes windows of several variates `(W, L, C)`."""
    sign: Sign = ""
    """What a row with its sign is: `slope`, the change of the forecast per unit of an input; `contribution`, the part
    of the forecast that an input is given; empty where the method has no sign."""

    def load(self) -> Callable[[AttributionTask, Any], EstimatedRows]:
        """The function behind `fill`."""
        module, function = self.fill.split(":")
        return cast("Callable[[AttributionTask, Any], EstimatedRows]", getattr(import_module(module), function))

    def read(self, text: str) -> Settings:
        """Its settings from JSON; missing ones have their defaults."""
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise ProtocolError(f"The settings of {self.name} are not JSON: {text!r} ({error}).") from error
        if not isinstance(given, dict):
            raise ProtocolError(f"The settings of {self.name} are {text!r}. Give a JSON object, for example {{}}.")
        known = {f.name: f for f in fields(self.settings)}
        for name in given:
            if not known:
                raise ProtocolError(f"{self.name} has no settings, so it cannot take {name!r}.")
            if name not in known:
                raise ProtocolError(unknown(f"setting of {self.name}", name, known))
        return self.settings(
            **{name: _checked(f"The setting {name} of {self.name}", known[name], given[name]) for name in given}
        )


BUILT_IN = (
    Estimator("input_gradient", f"{_GRADIENTS}:saliency", every_step=True, multivariate=True, sign="slope"),
    Estimator("saliency", f"{_GRADIENTS}:saliency", multivariate=True, sign="slope"),
    Estimator("gradient_x_input", f"{_GRADIENTS}:gradient_x_input", multivariate=True, sign="contribution"),
    Estimator(
        "integrated_gradients",
        f"{_GRADIENTS}:integrated_gradients",
        IntegratedGradientsSettings,
        multivariate=True,
        sign="contribution",
    ),
    Estimator("smoothgrad", f"{_GRADIENTS}:smoothgrad", SmoothGradSettings, multivariate=True, sign="slope"),
    Estimator("tsr", f"{_GRADIENTS}:tsr", TSRSettings),
    Estimator("occlusion", "hrx.audit.attribution.perturbation:occlusion", OcclusionSettings),
    Estimator("shapley_segments", f"{_LAGS}:shapley_segments", ShapleySegmentsSettings),
    Estimator("winit", f"{_LAGS}:winit", WinITSettings),
    Estimator("dynamask", f"{_MASKS}:dynamask", DynamaskSettings),
    Estimator("extremalmask", f"{_MASKS}:extremalmask", ExtremalMaskSettings),
    Estimator("contralsp", f"{_MASKS}:contralsp", ContraLSPSettings),
)
_OWN = {estimator.name: estimator for estimator in BUILT_IN}


def estimator_names() -> tuple[str, ...]:
    """The names of all estimators, built in or registered."""
    return (*_OWN, *_registered())


def find_estimator(name: str) -> Estimator:
    """The estimator of that name: built in, registered, a library's class, or a function of a user."""
    if name in _OWN:
        return _OWN[name]
    from hrx.audit.attribution import functions, libraries  # both use this module

    if name.partition(":")[0] in libraries.LIBRARIES and ":" in name:
        return libraries.library_estimator(name)
    if functions.is_function(name):
        return functions.function_estimator(name)
    entry = _registered().get(name)
    if entry is None:
        known = (*estimator_names(), *libraries.library_names())
        raise ProtocolError(unknown("estimator", name, known, "A function of yours is FILE.py:FUNCTION."))
    try:
        loaded = entry.load()
    except Exception as error:
        raise ProtocolError(
            f"The estimator {name!r} comes from the entry point {entry.value!r}, which cannot be loaded: "
            f"{type(error).__name__}: {error}. Fix or uninstall that package."
        ) from error
    if not isinstance(loaded, Estimator) or loaded.name != name:
        raise ProtocolError(f"The entry point {entry.value!r} of {GROUP} is not an Estimator named {name!r}. Fix it.")
    return loaded


def package_of(name: str) -> str:
    """Distribution and version of an estimator; empty for the built-in ones, which `PROTOCOL_VERSION` covers."""
    if name in _OWN:
        return ""
    from hrx.audit.attribution import functions, libraries  # both use this module

    if name.partition(":")[0] in libraries.LIBRARIES and ":" in name:
        return libraries.library_versions(name)
    if functions.is_function(name):
        return functions.function_version(name)
    entry = _registered().get(name)
    return f"{entry.dist.name} {entry.dist.version}" if entry and entry.dist else ""


@lru_cache(maxsize=1)
def _registered() -> dict[str, EntryPoint]:
    """The entry points of other packages, not loaded."""
    registered: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in _OWN or entry.name in registered:
            raise ProtocolError(f"The entry point {entry.value!r} registers {entry.name!r}, which is taken. Rename it.")
        registered[entry.name] = entry
    return registered


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


def parse_estimator_settings(pairs: Iterable[str]) -> str:
    """`NAME=VALUE` as on the command line, to JSON. Whether an estimator knows them is checked by `Protocol`."""
    values: dict[str, Value] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ProtocolError(f"--estimator-setting {pair!r} is not a pair. Give NAME=VALUE, for example points=64.")
        if name in values:
            raise ProtocolError(f"--estimator-setting gives {name} twice. Give it once.")
        values[name] = _literal(value)
    return json.dumps(values, sort_keys=True)


def _literal(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
