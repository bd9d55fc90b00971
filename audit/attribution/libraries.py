"""The attribution classes of captum and of time_interpret by name: `captum:GradientShap`, `tint:Occlusion`.

A class is usable if it explains the input of a forward function and needs nothing that was trained. Its settings are
arguments of its `attribute`, and named rules for the arguments that depend on the window: the baseline, the segments
that share a value, the references that are drawn. Imports neither library: whether one is installed is looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from hrx.audit.attribution.registry import Estimator, Settings, setting
from hrx.audit.protocol import ProtocolError
from hrx.errors import unknown
from hrx.install import install_command

if TYPE_CHECKING:
    from hrx.audit.attribution.explanation import AttributionTask, EstimatedRows

BASELINES = ("mean", "zeros")
RULES = ("gausslegendre", "riemann_left", "riemann_middle", "riemann_right", "riemann_trapezoid")
_BASELINE = partial(
    setting, "mean", "baseline: the window's mean or zeros", "as integrated_gradients", choices=BASELINES
)
_REFERENCES = partial(setting, 16, "rearrangements of the window that the baselines are drawn from", "ours")
_SEGMENTS = partial(setting, meaning="segments of the lookback that share a value; 0: each position its own", least=0)


@dataclass(frozen=True)
class BaselineSettings(Settings):
    baseline: str = _BASELINE()


@dataclass(frozen=True)
class PathSettings(BaselineSettings):
    n_steps: int = setting(50, "points of the integral", "captum", least=1)
    method: str = setting("gausslegendre", "rule of the integral", "captum", choices=RULES)


@dataclass(frozen=True)
class ReferenceSettings(Settings):
    references: int = _REFERENCES(least=2)


@dataclass(frozen=True)
class GradientShapSettings(ReferenceSettings):
    n_samples: int = setting(5, "samples of each window", "captum", least=1)
    stdevs: float = setting(0.0, "standard deviation of the noise, in units of the series", "captum", least=0)


@dataclass(frozen=True)
class AblationSettings(BaselineSettings):
    segments: int = _SEGMENTS(0, source="captum")


@dataclass(frozen=True)
class SpanSettings(Settings):
    window: int = setting(0, "positions that are occluded together; 0: a sixteenth of the lookback", "ours", least=0)
    stride: int = setting(0, "positions from one occlusion to the next; 0: the window", "ours", least=0)


@dataclass(frozen=True)
class OcclusionSettings(SpanSettings):
    baseline: str = _BASELINE()


@dataclass(frozen=True)
class AugmentedOcclusionSettings(SpanSettings):
    references: int = _REFERENCES(least=1)
    n_sampling: int = setting(8, "draws of each occlusion", "ours: time_interpret has 1", least=1)


@dataclass(frozen=True)
class ShapleySamplingSettings(BaselineSettings):
    segments: int = _SEGMENTS(16, source="ours: captum has 0")
    n_samples: int = setting(25, "permutations", "captum", least=1)


@dataclass(frozen=True)
class ShapleySettings(BaselineSettings):
    segments: int = setting(
        5, "segments of the lookback that share a value; the cost grows as its factorial", "ours", 1, 8
    )


@dataclass(frozen=True)
class SurrogateSettings(BaselineSettings):
    segments: int = _SEGMENTS(16, source="ours: captum has 0")
    n_samples: int = setting(
        256, "perturbed windows that the linear model is fitted to", "ours: captum has 25", least=2
    )


@dataclass(frozen=True)
class LimeSettings(SurrogateSettings):
    alpha: float = setting(0.01, "weight of the lasso penalty, in units of the forecast", "captum", least=0)


class LibraryClass(NamedTuple):
    """An attribution class that can be used, and how."""

    kind: Literal["gradient", "sampled gradient", "module", "perturbation"]
    settings: type[Settings] = Settings


class Library(NamedTuple):
    """A library of attribution classes."""

    module: str
    """Where the classes are."""
    distributions: tuple[str, ...]
    """What decides its numbers, by the names in which it is installed."""
    extra: str
    """The extra of hrx that installs it."""
    classes: dict[str, LibraryClass]
    refused: dict[str, str]
    """Classes that cannot be used, each with what it would need; a name ending in `*` is a prefix."""


_LAYER = "explains a layer inside one network, not the window"
_TRAINED = "needs a network that was trained on the data of the model, and an audit has the checkpoint alone"
_WRAPS = "wraps another attribution class"
_PREFIX = (
    "explains the output at each time of a growing prefix, and a forecaster has one output, at the end of its window; "
    "the estimator winit perturbs everything from a position on"
)
_NEIGHBOURS = "needs a set of reference windows from the training data, and an audit has the checkpoint alone"

CAPTUM = Library(
    "captum.attr",
    ("captum",),
    "captum",
    {
        "Saliency": LibraryClass("gradient"),
        "InputXGradient": LibraryClass("gradient"),
        "IntegratedGradients": LibraryClass("gradient", PathSettings),
        "GradientShap": LibraryClass("sampled gradient", GradientShapSettings),
        "DeepLift": LibraryClass("module", BaselineSettings),
        "DeepLiftShap": LibraryClass("module", ReferenceSettings),
        "FeatureAblation": LibraryClass("perturbation", AblationSettings),
        "Occlusion": LibraryClass("perturbation", OcclusionSettings),
        "ShapleyValueSampling": LibraryClass("perturbation", ShapleySamplingSettings),
        "ShapleyValues": LibraryClass("perturbation", ShapleySettings),
        "KernelShap": LibraryClass("perturbation", SurrogateSettings),
        "Lime": LibraryClass("perturbation", LimeSettings),
    },
    {
        "DataLoaderAttribution": "explains a whole dataset at once, not a window",
        "Deconvolution": "changes the backward pass of ReLU modules only, and forecasters have other nonlinearities",
        "FeaturePermutation": "permutes a position across windows, so an explanation would depend on the other windows",
        "GuidedBackprop": "changes the backward pass of ReLU modules only, and forecasters have other nonlinearities",
        "GuidedGradCam": _LAYER,
        "InternalInfluence": _LAYER,
        "LLM*": "explains the tokens of a language model",
        "LRP": "needs a propagation rule for every layer, and captum has none for normalisation and attention",
        "Layer*": _LAYER,
        "LimeBase": "needs functions that sample and weigh perturbations; Lime and KernelShap bring theirs",
        "Neuron*": _LAYER,
        "NoiseTunnel": f"{_WRAPS}; the estimator smoothgrad is the gradient in its noise",
        "Remote*": "explains the tokens of a language model",
    },
)
TINT = Library(
    "tint.attr",
    ("time_interpret", "captum"),
    "tint",
    {
        "AugmentedOcclusion": LibraryClass("perturbation", AugmentedOcclusionSettings),
        "BayesKernelShap": LibraryClass("perturbation", SurrogateSettings),
        "BayesLime": LibraryClass("perturbation", SurrogateSettings),
        "FeatureAblation": LibraryClass("perturbation", AblationSettings),
        "Occlusion": LibraryClass("perturbation", OcclusionSettings),
        "SequentialIntegratedGradients": LibraryClass("gradient", PathSettings),
    },
    {
        "DiscretetizedIntegratedGradients": "needs a path between word embeddings",
        "DynaMask": "is built in as the estimator dynamask, which solves the steps together",
        "ExtremalMask": "is built in as the estimator extremalmask, which solves the steps together",
        "Fit": _TRAINED,
        "GeodesicIntegratedGradients": _NEIGHBOURS,
        "LofKernelShap": _NEIGHBOURS,
        "LofLime": _NEIGHBOURS,
        "NonLinearitiesTunnel": _WRAPS,
        "Retain": _TRAINED,
        "TemporalAugmentedOcclusion": _PREFIX,
        "TemporalIntegratedGradients": _PREFIX,
        "TemporalOcclusion": _PREFIX,
        "TimeForwardTunnel": _PREFIX,
    },
)
LIBRARIES = {"captum": CAPTUM, "tint": TINT}


@dataclass(frozen=True)
class LibraryEstimator(Estimator):
    """An attribution class of a library as an estimator; `fill` takes the name of the estimator first."""

    def load(self) -> Callable[[AttributionTask, Any], EstimatedRows]:
        by_name = cast("Callable[[str, AttributionTask, Any], EstimatedRows]", super().load())
        return partial(by_name, self.name)


def library_names() -> tuple[str, ...]:
    """Every usable class as the name of an estimator, installed or not."""
    return tuple(f"{prefix}:{name}" for prefix, library in LIBRARIES.items() for name in library.classes)


def library_estimator(name: str) -> LibraryEstimator:
    """The estimator of a name such as `captum:GradientShap`."""
    prefix, _, chosen = name.partition(":")
    library = LIBRARIES[prefix]
    if chosen not in library.classes:
        if need := _refusal(library, chosen):
            raise ProtocolError(f"The estimator {name!r} cannot be used: {chosen} {need}.")
        raise ProtocolError(unknown(f"attribution class of {prefix}", chosen, library.classes))
    if find_spec(prefix) is None:
        raise ProtocolError(
            f"The estimator {name!r} needs {library.distributions[0]}, which is not installed. "
            f"Install it: {install_command(library.extra)}"
        )
    fill = "hrx.audit.attribution.library_classes:explain_by_class"
    return LibraryEstimator(name, fill, library.classes[chosen].settings)


def library_versions(name: str) -> str:
    """What decides the numbers of a library's class, as `captum 0.9.0`."""
    distributions = LIBRARIES[name.partition(":")[0]].distributions
    return ", ".join(f"{distribution} {version(distribution)}" for distribution in distributions)


def library_class(name: str) -> tuple[LibraryClass, Any]:
    """What is known about the class of an estimator's name, and the class itself."""
    prefix, _, chosen = name.partition(":")
    library = LIBRARIES[prefix]
    return library.classes[chosen], getattr(import_module(library.module), chosen)


def _refusal(library: Library, name: str) -> str:
    for refused, need in library.refused.items():
        if name == refused or (refused.endswith("*") and name.startswith(refused[:-1])):
            return need
    return ""
