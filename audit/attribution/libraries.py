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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
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
from hrx.audit.attribution import settings as known
from hrx.audit.attribution.gradients import ROWS_AT_ONCE
from hrx.audit.attribution.perturbation import FORECASTS_AT_ONCE, lag_segments, replacements_of
from hrx.audit.attribution.settings import Settings
from hrx.audit.torch_state import one_thread, seeded
from hrx.errors import HrxError, ProtocolError, describe_error, unknown
from hrx.install import install_command

LIBRARY_STREAM = 5
"""Separates the draws of a library from the other random draws under one seed."""
ADDS_UP = 1e-3
"""Largest difference between the sum of DeepLift's attributions and the change that they explain, relative to it."""


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
    """Extra of hrx that installs it."""
    classes: dict[str, LibraryClass]
    refused: dict[str, str]
    """What classes that cannot be used would need: names and, with `*`, beginnings of names by that reason."""


CAPTUM = Library(
    "captum.attr",
    ("captum",),
    "captum",
    {
        "Saliency": LibraryClass("gradient"),
        "InputXGradient": LibraryClass("gradient"),
        "IntegratedGradients": LibraryClass("gradient", known.PathSettings),
        "GradientShap": LibraryClass("sampled gradient", known.GradientShapSettings),
        "DeepLift": LibraryClass("module", known.BaselineSettings),
        "DeepLiftShap": LibraryClass("module", known.ReferenceSettings),
        "FeatureAblation": LibraryClass("perturbation", known.AblationSettings),
        "Occlusion": LibraryClass("perturbation", known.LibraryOcclusionSettings),
        "ShapleyValueSampling": LibraryClass("perturbation", known.ShapleySamplingSettings),
        "ShapleyValues": LibraryClass("perturbation", known.ShapleySettings),
        "KernelShap": LibraryClass("perturbation", known.SurrogateSettings),
        "Lime": LibraryClass("perturbation", known.LimeSettings),
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
        "AugmentedOcclusion": LibraryClass("perturbation", known.AugmentedOcclusionSettings),
        "BayesKernelShap": LibraryClass("perturbation", known.SurrogateSettings),
        "BayesLime": LibraryClass("perturbation", known.SurrogateSettings),
        "FeatureAblation": LibraryClass("perturbation", known.AblationSettings),
        "Occlusion": LibraryClass("perturbation", known.LibraryOcclusionSettings),
        "SequentialIntegratedGradients": LibraryClass("gradient", known.PathSettings),
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
    return Estimator(name, partial(_by_class, name), library.classes[chosen].settings)


def library_versions(name: str) -> str:
    """What decides the numbers of a library's class, as `captum 0.9.0`."""
    distributions = LIBRARIES[name.partition(":")[0]].distributions
    return ", ".join(f"{distribution} {version(distribution)}" for distribution in distributions)


def _by_class(name: str, task: AttributionTask, settings: Settings) -> Estimate:
    """Magnitudes of a class's attributions, `(W, R, L)`; `name` as `captum:GradientShap`."""
    prefix, _, chosen = name.partition(":")
    library = LIBRARIES[prefix]
    work = _ByClass(name, getattr(import_module(library.module), chosen), task, settings)
    fill = {"gradient": work.by_gradient, "module": work.by_module, "perturbation": work.by_perturbation}
    with _library_errors(name, task.model):
        matrix = fill.get(library.classes[chosen].kind, work.row_by_row)()
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
        method = self.kind(partial(self._explained, task.model))
        parts = [
            method.attribute(task.x[some].clone(), target=target, **self._arguments(some), **batched)
            for some, target in zip(windows, targets, strict=True)
        ]
        return torch.unflatten(torch.cat(parts), 0, (-1, rows))

    def row_by_row(self) -> Tensor:
        """`(W, R, L)` of a class that draws or perturbs: every window and row alone, under the window's seed."""
        return torch.stack([self._window(torch.tensor([place])) for place in range(len(self.task.x))])

    def by_perturbation(self) -> Tensor:
        """`(W, R, L)` of a class that needs forecasts only."""
        with torch.no_grad(), one_thread():
            return self.row_by_row()

    def _window(self, place: Tensor) -> Tensor:
        """`(R, L)`: the rows of a window; forecasts without gradients that several rows ask for are computed once."""
        task, x, rows, arguments = self.task, self.task.x[place], [], self._arguments(place)
        known: dict[bytes, Tensor] = {}

        def forecasts(windows: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                return self._explained(task.model, windows)
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
        module, rows = _HookedForecaster(self.task), []
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

    def _explained(self, model: Forecaster, x: Tensor) -> Tensor:
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
    """A copy of a task's model as a module, `(B, L) -> (B, R)`, that contains the modules of its network."""

    def __init__(self, task: AttributionTask):
        super().__init__()
        self._task, self._path = task, GradientPath()

        def keep(module: torch.nn.Module) -> torch.nn.Module:
            self.network = module
            return module

        model = task.model.converted(keep)
        if model is None:
            raise Inapplicable(
                f"{task.model.identity.model} has no torch.nn.Module on the CPU for DeepLift to change. "
                "Use captum:GradientShap or integrated_gradients"
            )
        self._model = model

    def forward(self, x: Tensor) -> Tensor:
        """`(B, L) -> (B, R)`."""
        with self._path:
            y = self._model.forward(x, self._task.horizon)
        return y @ self._task.picks.to(y).T


@contextmanager
def _library_errors(name: str, model: Forecaster) -> Iterator[None]:
    """Hides the warnings of a library about its own arguments, and quotes its exceptions in a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (HrxError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a library may raise anything
        raise HrxError(
            f"{name} raised an error while it explained {model.identity.model}: {describe_error(error)}. "
            "Try other settings, or another estimator."
        ) from error
