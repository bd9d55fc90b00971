"""Attribution classes of captum and of time_interpret as estimators: `captum:GradientShap`, `tint:Occlusion`.

A class is usable if it explains the input of a forward function and needs nothing that was trained. Its settings are
arguments of its `attribute`, and named rules for the arguments that depend on the window: the baseline, the segments
that share a value, the references that are drawn. Neither library is imported before it is used.

The definition is a loop: for each window and each row, the global generators are seeded by the window's place and the
class explains the row alone, so every row sees the same perturbations. What is computed together gives the same
numbers: a class without random draws explains the rows of several windows in one call, each by its own `target`; a
class that perturbs asks for the same forecasts at every row, so each batch of them is computed once for all rows.
"""

import hashlib
import inspect
import warnings
from contextlib import nullcontext
from dataclasses import asdict, make_dataclass
from fnmatch import fnmatchcase as fnmatch
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.adapters.gradients import GradientPath
from hrx.audit.attribution import AttributionTask, Estimate, Estimator, Inapplicable
from hrx.audit.attribution.gradients import ROWS_AT_ONCE
from hrx.audit.attribution.perturbation import FORECASTS_AT_ONCE, lag_segments, replacements_of
from hrx.audit.attribution.settings import Settings, setting
from hrx.audit.torch_state import one_thread, seeded
from hrx.errors import HrxError, ProtocolError, describe_error, install_command, unknown

LIBRARY_STREAM = 5
"""Separates the draws of a library from the other random draws under one seed."""
ADDS_UP = 1e-3
"""Largest difference between the sum of DeepLift's attributions and the change that they explain, relative to it."""


class LibraryClass:
    """An attribution class that can be used: how, and what can be set."""

    def __init__(self, kind: Literal["gradient", "sampled gradient", "module", "perturbation"], **settings: Any):
        self.kind = kind
        fields = [(name, type(one.default), one) for name, one in settings.items()]
        self.settings: type[Settings] = make_dataclass("LibrarySettings", fields, bases=(Settings,), frozen=True)


class Library(NamedTuple):
    """A library of attribution classes."""

    module: str
    """Where the classes are."""
    distributions: tuple[str, ...]
    """What decides its numbers, by the names in which it is installed."""
    extra: str
    """Extra of hrx that installs it."""
    classes: dict[str, LibraryClass]
    refused: dict[str, str]
    """What classes that cannot be used would need: names and, with `*`, beginnings of names by that reason."""


def _references(least: int) -> Any:
    return setting(16, "rearrangements of the window that the baselines are drawn from", "ours", least)


def _segments(default: int, source: str) -> Any:
    meaning = "segments of the lookback that share a value; 0: each position its own"
    return setting(default, meaning, source, least=0)


_RULES = ("gausslegendre", "riemann_left", "riemann_middle", "riemann_right", "riemann_trapezoid")
_BASELINE: dict[str, Any] = {
    "baseline": setting(
        "mean", "baseline: the window's mean or zeros", "as integrated_gradients", choices=("mean", "zeros")
    )
}
_PATH: dict[str, Any] = _BASELINE | {
    "n_steps": setting(50, "points of the integral", "captum", least=1),
    "method": setting("gausslegendre", "rule of the integral", "captum", choices=_RULES),
}
_SPAN: dict[str, Any] = {
    "window": setting(0, "positions that are occluded together; 0: a sixteenth of the lookback", "ours", least=0),
    "stride": setting(0, "positions from one occlusion to the next; 0: the window", "ours", least=0),
}
_SURROGATE: dict[str, Any] = _BASELINE | {
    "segments": _segments(16, "ours: captum has 0"),
    "n_samples": setting(256, "perturbed windows that the linear model is fitted to", "ours: captum has 25", least=2),
}
CAPTUM = Library(
    "captum.attr",
    ("captum",),
    "captum",
    {
        "Saliency": LibraryClass("gradient"),
        "InputXGradient": LibraryClass("gradient"),
        "IntegratedGradients": LibraryClass("gradient", **_PATH),
        "GradientShap": LibraryClass(
            "sampled gradient",
            references=_references(2),
            n_samples=setting(5, "samples of each window", "captum", least=1),
            stdevs=setting(0.0, "standard deviation of the noise, in units of the series", "captum", least=0),
        ),
        "DeepLift": LibraryClass("module", **_BASELINE),
        "DeepLiftShap": LibraryClass("module", references=_references(2)),
        "FeatureAblation": LibraryClass("perturbation", **_BASELINE, segments=_segments(0, "captum")),
        "Occlusion": LibraryClass("perturbation", **_SPAN, **_BASELINE),
        "ShapleyValueSampling": LibraryClass(
            "perturbation",
            **_BASELINE,
            segments=_segments(16, "ours: captum has 0"),
            n_samples=setting(25, "permutations", "captum", least=1),
        ),
        "ShapleyValues": LibraryClass(
            "perturbation",
            **_BASELINE,
            segments=setting(
                5, "segments of the lookback that share a value; the cost grows as its factorial", "ours", 1, 8
            ),
        ),
        "KernelShap": LibraryClass("perturbation", **_SURROGATE),
        "Lime": LibraryClass(
            "perturbation",
            **_SURROGATE,
            alpha=setting(0.01, "weight of the lasso penalty, in units of the forecast", "captum", least=0),
        ),
    },
    {
        "explains a layer inside one network, not the window": "GuidedGradCam InternalInfluence Layer* Neuron*",
        "explains a whole dataset at once, not a window": "DataLoaderAttribution",
        "explains the tokens of a language model": "LLM* Remote*",
        "changes the backward pass of ReLU modules only, and forecasters have other nonlinearities": (
            "Deconvolution GuidedBackprop"
        ),
        "permutes a position across windows, so an explanation would depend on the other windows": "FeaturePermutation",
        "needs a propagation rule for every layer, and captum has none for normalisation and attention": "LRP",
        "needs functions that sample and weigh perturbations; Lime and KernelShap bring theirs": "LimeBase",
        "wraps another attribution class; the estimator smoothgrad is the gradient in its noise": "NoiseTunnel",
    },
)
TINT = Library(
    "tint.attr",
    ("time_interpret", "captum"),
    "tint",
    {
        "AugmentedOcclusion": LibraryClass(
            "perturbation",
            **_SPAN,
            references=_references(1),
            n_sampling=setting(8, "draws of each occlusion", "ours: time_interpret has 1", least=1),
        ),
        "BayesKernelShap": LibraryClass("perturbation", **_SURROGATE),
        "BayesLime": LibraryClass("perturbation", **_SURROGATE),
        "FeatureAblation": LibraryClass("perturbation", **_BASELINE, segments=_segments(0, "captum")),
        "Occlusion": LibraryClass("perturbation", **_SPAN, **_BASELINE),
        "SequentialIntegratedGradients": LibraryClass("gradient", **_PATH),
    },
    {
        "needs a path between word embeddings": "DiscretetizedIntegratedGradients",
        "is built in, as the estimator dynamask or extremalmask, which solves the steps together": (
            "DynaMask ExtremalMask"
        ),
        "needs a network that was trained on the data of the model, and an audit has the checkpoint alone": (
            "Fit Retain"
        ),
        "needs a set of reference windows from the training data, and an audit has the checkpoint alone": (
            "GeodesicIntegratedGradients LofKernelShap LofLime"
        ),
        "wraps another attribution class": "NonLinearitiesTunnel",
        "explains the output at each time of a growing prefix, and a forecaster has one output, at the end of its "
        "window; the estimator winit perturbs everything from a position on": (
            "TemporalAugmentedOcclusion TemporalIntegratedGradients TemporalOcclusion TimeForwardTunnel"
        ),
    },
)
LIBRARIES = {"captum": CAPTUM, "tint": TINT}


def library_names() -> tuple[str, ...]:
    """Every usable class as the name of an estimator, installed or not."""
    return tuple(f"{prefix}:{name}" for prefix, library in LIBRARIES.items() for name in library.classes)


def library_estimator(name: str) -> Estimator:
    """Estimator of a name such as `captum:GradientShap`."""
    prefix, _, chosen = name.partition(":")
    library = LIBRARIES[prefix]
    if chosen not in library.classes:
        for need, names in library.refused.items():
            if any(fnmatch(chosen, refused) for refused in names.split()):
                raise ProtocolError(f"The estimator {name!r} cannot be used: {chosen} {need}.")
        raise ProtocolError(unknown(f"attribution class of {prefix}", chosen, library.classes))
    if find_spec(prefix) is None:
        raise ProtocolError(
            f"The estimator {name!r} needs {library.distributions[0]}, which is not installed. "
            f"Install it: {install_command(library.extra)}"
        )
    versions = ", ".join(f"{distribution} {version(distribution)}" for distribution in library.distributions)
    fill, settings = partial(_by_class, name), library.classes[chosen].settings
    return Estimator(name, fill, settings, package=versions)


def _by_class(name: str, task: AttributionTask, settings: Settings) -> Estimate:
    """Magnitudes of a class's attributions, `(W, R, L)`; an error of the library is quoted in a sentence."""
    prefix, _, chosen = name.partition(":")
    library = LIBRARIES[prefix]
    work = _ByClass(name, getattr(import_module(library.module), chosen), task, settings)
    kind = library.classes[chosen].kind
    fill = {"gradient": work.by_gradient, "module": work.by_module}.get(kind, work.row_by_row)
    gradients = kind != "perturbation"
    try:
        # The libraries warn about their own arguments.
        threads = nullcontext() if gradients else one_thread()
        with torch.set_grad_enabled(gradients), threads, warnings.catch_warnings(action="ignore"):
            matrix = fill()
    except (HrxError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a library may raise anything
        raise HrxError(
            f"{name} raised an error while it explained {task.model.identity.model}: {describe_error(error)}. "
            "Try other settings, or another estimator."
        ) from error
    return Estimate(matrix.abs().detach(), work.path.rewrites)


class _ByClass:
    """One call of an attribution class for the rows of a task."""

    def __init__(self, name: str, kind: Any, task: AttributionTask, settings: Settings):
        self.name, self.kind, self.task, self.settings = name, kind, task, settings
        self.path = GradientPath()

    def by_gradient(self) -> Tensor:
        """`(W, R, L)` of a class without random draws: a row is a `target`, and several are explained in one call."""
        rows, task = len(self.task.picks), self.task
        points = asdict(self.settings).get("n_steps", 1)
        most = task.budget.block(task.model, task.x[0], task.horizon, ROWS_AT_ONCE)
        batched = {"internal_batch_size": most} if points > 1 else {}
        windows = torch.split(torch.arange(len(task.x)).repeat_interleave(rows), max(1, most // points))
        targets = torch.split(torch.arange(rows).repeat(len(task.x)), max(1, most // points))
        method = self.kind(partial(self.explained, task.model))
        parts = [
            method.attribute(task.x[some].clone(), target=target, **self._arguments(some), **batched)
            for some, target in zip(windows, targets, strict=True)
        ]
        return torch.unflatten(torch.cat(parts), 0, (-1, rows))

    def row_by_row(self) -> Tensor:
        """`(W, R, L)` of a class that draws or perturbs: every window and row alone, under the window's seed."""
        return torch.stack([self._window(torch.tensor([place])) for place in range(len(self.task.x))])

    def _window(self, place: Tensor) -> Tensor:
        """`(R, L)`: the rows of a window; forecasts without gradients that several rows ask for are computed once."""
        task, x, rows, arguments = self.task, self.task.x[place], [], self._arguments(place)
        known: dict[bytes, Tensor] = {}

        def forecasts(windows: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                return self.explained(task.model, windows)
            key = hashlib.blake2b(windows.contiguous().numpy().tobytes()).digest()
            if key not in known:
                y = task.budget.forward(task.model, windows, task.horizon)
                known[key] = y @ task.picks.to(y).T
            return known[key]

        if "perturbations_per_eval" in inspect.signature(self.kind.attribute).parameters:
            at_once = task.budget.rows(task.model, task.x[0], task.horizon, FORECASTS_AT_ONCE)
            arguments["perturbations_per_eval"] = at_once
        for row in range(len(task.picks)):
            with seeded(task.seed, task.stream, int(place), LIBRARY_STREAM, 0):
                method = self.kind(lambda windows, row=row: forecasts(windows)[:, row], **self._constructed(place))
                given = method.attribute(x.clone(), **arguments)
            # The Bayesian classes return a credible interval beside the attribution.
            rows.append((given[0] if isinstance(given, tuple) else given)[0].to(x))
        return torch.stack(rows)

    def by_module(self) -> Tensor:
        """`(W, R, L)` of a class that sets hooks on the modules of a network: a copy of the model's is explained."""
        module, rows = _HookedForecaster(self), []
        for place in range(len(self.task.x)):
            baselines = self._arguments(torch.tensor([place]))["baselines"]
            rows.append(self._attribution(module, place, baselines))
            # Attributions to a flat baseline add up in any model that scales with its window, whatever the rules reach.
            if len(baselines) == 1:
                self._attribution(module, place, self._references(place, 2)[:1])
        return torch.stack(rows)

    def _attribution(self, module: "_HookedForecaster", place: int, baselines: Tensor) -> Tensor:
        """`(R, L)` from baselines `(N, L)`; raises where they do not add up to the change, as the class promises."""
        rows = len(self.task.picks)
        x = self.task.x[place].repeat(rows, 1)
        each = baselines if len(baselines) > 1 else baselines.expand(rows, -1)
        attribution: Tensor = self.kind(module).attribute(x.clone(), each, target=torch.arange(rows))
        with torch.no_grad():
            change = module(x[:1])[0] - module(baselines).mean(dim=0)
        off = float((attribution.sum(dim=1) - change).abs().max() / change.abs().max())
        if off > ADDS_UP:
            raise Inapplicable(
                f"{self.name} cannot explain {self.task.model.identity.model}: its attributions miss the change that "
                f"they should add up to by {off:.2g} of it (limit {ADDS_UP:g}), since captum has rules for torch's "
                "activation modules only. Use captum:GradientShap or integrated_gradients"
            )
        return attribution

    def explained(self, model: Forecaster, x: Tensor) -> Tensor:
        """`(B, L) -> (B, R)`: what each row explains, differentiable where gradients are enabled."""
        with self.path:
            y = model.forward(x, self.task.horizon)
        return y @ self.task.picks.to(y).T

    def _constructed(self, place: Tensor) -> dict[str, Any]:
        """Arguments of the class itself, besides the forward function."""
        settings = asdict(self.settings)
        if "n_sampling" in settings:
            data = self._references(int(place), settings["references"])
            return {"n_sampling": settings["n_sampling"], "data": data}
        if "alpha" in settings:
            from captum._utils.models.linear_model import SkLearnLasso

            return {"interpretable_model": SkLearnLasso(alpha=settings["alpha"])}
        return {}

    def _arguments(self, places: Tensor) -> dict[str, Any]:
        """Arguments of `attribute` for the windows at these places."""
        settings, x = asdict(self.settings), self.task.x[places]
        passed: dict[str, Any] = {
            name: settings[name] for name in ("n_samples", "n_steps", "method", "stdevs") if name in settings
        }
        if "baseline" in settings:
            mean = x.mean(dim=1, keepdim=True).expand_as(x)
            passed["baselines"] = mean.contiguous() if settings["baseline"] == "mean" else torch.zeros_like(x)
        elif "references" in settings and "n_sampling" not in settings:
            passed["baselines"] = self._references(int(places[0]), settings["references"])
        if settings.get("segments"):
            passed["feature_mask"] = lag_segments(x.shape[1], settings["segments"])[None]
        if "window" in settings:
            window = min(settings["window"] or -(-x.shape[1] // 16), x.shape[1])
            passed |= {"sliding_window_shapes": (window,), "strides": (min(settings["stride"] or window, window),)}
        return passed

    def _references(self, place: int, count: int) -> Tensor:
        """`(N, L)`: rearrangements of one window, in antithetic pairs."""
        return replacements_of(self.task, "rearranged", 0, count)[place].contiguous()


class _HookedForecaster(torch.nn.Module):
    """What the rows of a task explain as a module, `(B, L) -> (B, R)`, that holds a copy of the model's network."""

    def __init__(self, work: _ByClass):
        super().__init__()

        def keep(module: torch.nn.Module) -> torch.nn.Module:
            self.network = module
            return module

        model = work.task.model.converted(keep)
        if model is None:
            raise Inapplicable(
                f"{work.task.model.identity.model} has no torch.nn.Module on the CPU for DeepLift to change. "
                "Use captum:GradientShap or integrated_gradients"
            )
        self.forward = partial(work.explained, model)
