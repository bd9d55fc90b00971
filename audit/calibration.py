"""Runs a calibration: trains every backbone on every generator and measures each with the instrument itself.

The matrix, the gains and the rank come from the same functions as in an audit. How well scores single out the known
positions is measured by AUPRC and AUROC as in scikit-learn (average precision; ties count half), and by AUP and AUR,
the areas under precision and under recall as the threshold on the scores falls (Crabbé and van der Schaar, 2021), by
the trapezoidal rule over the thresholds that occur. These two depend on the scale of the scores, so scores are first
replaced by their ranks, evenly spaced on [0, 1].
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hrx.adapters.contract import Forecaster, Identity, Limits
from hrx.adapters.formats.backbones import CNN, Transformer
from hrx.adapters.formats.module import from_module
from hrx.adapters.inputs import Column, Inputs, Layout, Role, Window
from hrx.adapters.wrapped import Bound
from hrx.audit.covariates import channel_effects
from hrx.audit.generators import IDLE, TABLE_RANK, Generator, generate, inputs, mix_channels, plant_rank, sinusoids
from hrx.audit.protocol import Protocol
from hrx.audit.scoring.quantities import rank
from hrx.audit.scoring.score import ScoredRun, score_joint
from hrx.audit.torch_state import one_thread
from hrx.audit.training import Recipe, TrainingWindows, fit
from hrx.errors import HrxError, unknown
from hrx.records.calibration import (
    CONVERGED,
    COVMIX,
    GENERATORS,
    NEGATIVE_CONTROL,
    PLANTED,
    RECOVERED,
    Calibration,
    ChannelResult,
    Example,
    ModelResult,
)

SHORT = "short"
TRAINING, HELD_OUT, SCORED = range(3)
"""Random streams of inputs under one seed; no window occurs in two of them."""
HELD_OUT_WINDOWS = 512
FIT_WINDOWS_PER_POSITION = 10


class Backbone(NamedTuple):
    """A small architecture: calibration tests the instrument, not the design of a forecaster."""

    build: Callable[[int, int], nn.Module]
    """`(lookback, horizon) -> module`."""
    converged: Recipe
    """Every batch is new, so nothing can be memorised: nearly exact models."""
    seconds: float
    """Approximate time of training and measuring on one core; only ratios matter, for the remaining time."""


_CYCLE = partial(Recipe, epochs=1, schedule="one cycle")
BACKBONES = MappingProxyType(
    {
        "linear": Backbone(nn.Linear, _CYCLE(0.02, batch=64, batches=500), seconds=0.7),
        "cnn": Backbone(CNN, _CYCLE(0.01, batch=24, batches=200), seconds=2),
        "transformer": Backbone(Transformer, _CYCLE(0.01, batch=24, batches=200), seconds=3),
    }
)
BRIEF = Recipe(1e-3, batch=32, epochs=10, schedule="constant")
"""Recipe `short`: models about as converged as those of the published table."""
BRIEF_WINDOWS = 4000
INPUTS = MappingProxyType({CONVERGED: inputs, SHORT: sinusoids})
"""Inputs under each recipe of a calibration: `(rng, windows, lookback) -> (windows, lookback)`."""


@dataclass(frozen=True)
class CalibrationSize:
    """How many models a calibration trains, and of which shapes."""

    name: str
    shapes: tuple[tuple[int, int], ...]
    """Lookback and horizon of each."""
    seeds: int
    ranks: tuple[int, ...]
    """Planted ranks of the curve, at the first shape."""
    windows: int = 4
    """Windows that each model is explained and scored on."""


QUICK = CalibrationSize("quick", ((96, 48),), 1, (1, 2, 4, 8, 16))
FULL = CalibrationSize("full", ((96, 48), (96, 96), (192, 96)), 3, tuple(range(1, 17)))


MIXED_BACKBONE = "linear"
"""Backbone of `covmix`: the others map one lookback."""
AUDITS, HISTORY = 200, 64
"""Windows of `covmix` that are audited one by one, over all its models, and blocks of each channel's history."""


class CalibrationTask(NamedTuple):
    """One model to be trained and measured."""

    backbone: str
    generator: Generator
    seed: int
    curve_only: bool

    @property
    def label(self) -> str:
        """One line that identifies it among the models of a calibration."""
        g = self.generator
        rank = f" of rank {g.rank:.0f}" if g.name == PLANTED else ""
        return f"{self.backbone} on {g.name}{rank}, {g.lookback}x{g.horizon}, seed {self.seed}"


def tasks(backbones: Sequence[str], effort: CalibrationSize) -> list[CalibrationTask]:
    """Every model of a calibration, in the order of training."""
    planned: list[tuple[Generator, int, bool]] = []
    # The plantrank of the table is already a point of the curve.
    ranks = [rank for rank in effort.ranks if rank != TABLE_RANK]
    for seed in range(effort.seeds):
        planned += [(generate(name, *shape, seed), seed, False) for shape in effort.shapes for name in GENERATORS]
        planned += [(plant_rank(rank, *effort.shapes[0], seed), seed, True) for rank in ranks]
    every = [CalibrationTask(backbone, *one) for backbone in check_backbones(backbones) for one in planned]
    if MIXED_BACKBONE in backbones:
        mixed = [(mix_channels(*shape, seed), seed) for seed in range(effort.seeds) for shape in effort.shapes]
        every += [CalibrationTask(MIXED_BACKBONE, generator, seed, False) for generator, seed in mixed]
    return every


def calibrate(
    backbones: Sequence[str],
    *,
    estimator: str = "input_gradient",
    effort: CalibrationSize = QUICK,
    recipe: str = CONVERGED,
    on_start: Callable[[CalibrationTask], None] = lambda task: None,
    progress: Callable[[CalibrationTask, ModelResult | ChannelResult], None] = lambda task, result: None,
) -> Calibration:
    """Trains and measures every backbone on every generator, and the negative control as an exact model.

    `on_start` is called before a model is trained, `progress` when it is measured.
    """
    protocol = Protocol(estimator=estimator)
    # Small models gain nothing from a second thread, and with one the digits are the same on every machine.
    with one_thread():
        control = generate(NEGATIVE_CONTROL, *effort.shapes[0], seed=0)
        measure = partial(_measure, protocol=protocol, count=effort.windows, recipe=recipe)
        exact = measure(planted(control), CalibrationTask("planted", control, 0, True), 1.0)
        results: list[ModelResult] = []
        channels: list[ChannelResult] = []
        examples: dict[str, Example] = {}
        planned = tasks(backbones, effort)
        audits = -(-AUDITS // max(1, sum(task.generator.layout is not None for task in planned)))
        for task in planned:
            on_start(task)
            model = train(task.backbone, task.generator, task.seed, recipe)
            if task.generator.layout:
                channels.append(measure_channels(model.module, task, model.explained, audits, recipe))
                progress(task, channels[-1])
                continue
            measured = measure(model.module, task, model.explained)
            results.append(measured.result)
            if not task.curve_only:
                examples.setdefault(task.generator.name, measured)
            progress(task, measured.result)
    found = exact.result, tuple(results), tuple(examples.values())
    return Calibration(estimator, effort.name, *found, recipe, tuple(channels))


def _measure(
    module: nn.Module, task: CalibrationTask, explained: float, protocol: Protocol, count: int, recipe: str
) -> Example:
    """Gains and rank of a model, and how much of the answer the vector and the matrix recover."""
    generator = task.generator
    x, y = windows(generator, task.seed, SCORED, count, recipe)
    scored = ScoredRun(from_module(module, name=task.backbone), x, generator.horizon, protocol)
    quantities = scored.quantities
    matrix, steps = scored.explanation.matrix.double(), np.array(scored.explanation.steps) - 1
    answer = np.abs(generator.weights[steps])  # of fewer rows than the horizon the rank is lower
    positions = torch.from_numpy(generator.positions[steps])
    shared = matrix.mean(dim=1, keepdim=True).expand_as(matrix)
    forms = {"vector": recovery(shared, positions), "matrix": recovery(matrix, positions)}
    result = ModelResult(
        backbone=task.backbone,
        generator=generator.name,
        lookback=generator.lookback,
        horizon=generator.horizon,
        seed=task.seed,
        curve_only=task.curve_only,
        least_squares=least_squares(generator, task.seed, recipe),
        explained=explained,
        planted_rank=float(rank(torch.from_numpy(answer)[None]).participation[0]),
        measured_rank=quantities.rank,
        g_own=quantities.g_own,
        g_own_se=quantities.error.g_own,
        g_shuffled=quantities.g_shuffled,
        g_margin=quantities.g_margin,
        **{f"{name}_{form}": float(getattr(forms[form], name).mean()) for form in forms for name in RECOVERED},
    )
    return Example(
        result=result,
        x=x[0].double().numpy(),
        target=y[0].double().numpy(),
        forecast=scored.forecast[0].double().numpy(),
        answer=answer,
        matrix=matrix[0].numpy(),
        steps=steps,
    )


class ChannelModule(Forecaster):
    """A module `(B, P) -> (B, H)` on the packed channels of one layout, as a forecaster of windows."""

    official_call = "the module"
    inputs = Inputs(past=Role("optional"), future=Role("optional"))

    def __init__(self, module: nn.Module, name: str, layout: Layout):
        self._module, self._layout = module, layout
        self.identity = Identity(name, COVMIX, "module", fingerprint="", library="torch")
        self.limits = Limits()

    def predict(self, x: Tensor, horizon: int) -> Tensor:
        raise NotImplementedError("it reads windows of several channels")

    official = predict

    def predict_window(self, window: Window, horizon: int, columns: Sequence[Column]) -> Tensor:
        y: Tensor = self._module(self._layout.pack(window))
        return y[:, :, None, None].expand(-1, -1, -1, len(columns))

    official_window = predict_window


def measure_channels(
    module: nn.Module, task: CalibrationTask, explained: float, audits: int, recipe: str = CONVERGED
) -> ChannelResult:
    """What the matrix over all channels and the effects recover of `covmix`; each audit has one window."""
    generator, layout = task.generator, task.generator.layout
    assert layout
    bound = Bound(ChannelModule(module, task.backbone, layout), layout)
    x = windows(generator, task.seed, SCORED, audits, recipe).x
    history = windows(generator, task.seed, HELD_OUT, HISTORY, recipe).x
    blocks = {channel.name: history[:, channel.positions].numpy() for channel in layout.channels}
    target = generator.weights @ history.double().numpy().T
    found = [channel_effects(bound, one[None], blocks, float(target.var()), stream=w) for w, one in enumerate(x)]
    totals = np.mean([[channel.total for channel in one] for one in found], axis=0)
    parts = [generator.weights[:, channel.positions] for channel in layout.channels]
    rng = np.random.default_rng([task.seed, len(GENERATORS)])
    moved = [np.square(part @ INPUTS[recipe](rng, HELD_OUT_WINDOWS, part.shape[1]).T).mean() for part in parts]
    run = ScoredRun(bound, x[:4], layout.horizon, Protocol())
    matrix, steps = run.explanation.matrix, run.explanation.steps  # inputs have unit variance
    scores = score_joint(run, matrix, steps)
    assert scores.channels
    idle = list(layout.by_name).index(IDLE)
    return ChannelResult(
        backbone=task.backbone,
        lookback=generator.lookback,
        horizon=generator.horizon,
        seed=task.seed,
        explained=explained,
        auprc=float(recovery(matrix.double(), torch.from_numpy(generator.positions)).auprc.mean()),
        ordered=bool((np.argsort(totals) == np.argsort(moved)).all()),
        audits=audits,
        idle_read=sum(one[idle].read for one in found),
        g_margin=scores.joint.g_margin,
        g_margin_channels=scores.channels.g_margin,
    )


class Recovery(NamedTuple):
    """Four metrics, one number for every row of scores."""

    auprc: Tensor
    auroc: Tensor
    aup: Tensor
    aur: Tensor


def recovery(scores: Tensor, positions: Tensor) -> Recovery:
    """Scores `(…, L)` against known positions, boolean and broadcastable to the same shape; each result `(…,)`.

    Every row needs a position that is in the set and one that is not. Tied scores share one threshold, so that no
    metric depends on how ties would be broken; a row of equal scores has no range of thresholds, and areas of zero.
    """
    positions = positions.expand_as(scores)
    count = positions.sum(dim=-1).double()
    if not bool(((count > 0) & (count < scores.shape[-1])).all()):
        raise HrxError("A row of known positions marks none or all of them. Give rows with both kinds.")
    ordered, order = scores.double().sort(dim=-1, descending=True)
    hits = positions.gather(-1, order).double()
    # For each place of the sorted row, the first and the last place with the same score.
    first = torch.searchsorted(-ordered, -ordered)
    last = torch.searchsorted(-ordered, -ordered, right=True) - 1
    true = hits.cumsum(dim=-1).gather(-1, last)
    size = scores.shape[-1]
    # From 1 for the highest to 0 for the lowest score; ties get the middle of their places.
    threshold = 1 - (first + last).double() / (2 * (size - 1))
    # Mann and Whitney's statistic over the ranks of the true positions.
    below = (hits * threshold).sum(dim=-1) * (size - 1) - count * (count - 1) / 2
    # Ties have equal thresholds and equal heights: the steps between them have no width.
    precision, recall = true / (last + 1), true / count[..., None]
    return Recovery(
        auprc=(hits * precision).sum(dim=-1) / count,
        auroc=below / (count * (size - count)),
        aup=torch.trapezoid(precision.flip(-1), threshold.flip(-1), dim=-1),
        aur=torch.trapezoid(recall.flip(-1), threshold.flip(-1), dim=-1),
    )


def check_backbones(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names without duplicates; refuses an unknown one."""
    for name in names:
        if name not in BACKBONES:
            raise HrxError(unknown("backbone", name, BACKBONES))
    if not names:
        raise HrxError(f"No backbone is given. Known: {', '.join(BACKBONES)}.")
    return tuple(dict.fromkeys(names))


class TrainedModel(NamedTuple):
    """A model, and the share of the target's variance that it explains on held-out windows."""

    module: nn.Module
    explained: float


def train(name: str, generator: Generator, seed: int, recipe: str = CONVERGED) -> TrainedModel:
    """A backbone by name, trained on the generator's windows by mean squared error; every number follows the seed."""
    check_backbones([name])
    backbone = BACKBONES[name]
    used = BRIEF if recipe == SHORT else backbone.converged
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        module = backbone.build(generator.weights.shape[1], generator.horizon)
    fit(module, batches_of(generator, seed, used, recipe), used)
    held = windows(generator, seed, HELD_OUT, HELD_OUT_WINDOWS, recipe)
    with torch.no_grad():
        return TrainedModel(module, explained(module(held.x), held.y))


def batches_of(generator: Generator, seed: int, used: Recipe, recipe: str) -> Callable[[], Iterator[TrainingWindows]]:
    """Batches of the next epoch: all new, or the same windows in a new order."""
    if recipe == SHORT:
        x, y = windows(generator, seed, TRAINING, BRIEF_WINDOWS, recipe)
        order = np.random.default_rng([seed, TRAINING, BRIEF_WINDOWS])

        def again() -> Iterator[TrainingWindows]:
            for batch in torch.split(torch.from_numpy(order.permutation(BRIEF_WINDOWS)), used.batch):
                yield TrainingWindows(x[batch], y[batch])

        return again
    rng = np.random.default_rng([seed, TRAINING])
    return lambda: (_windows(generator, rng, used.batch, recipe) for _ in range(used.batches or 0))


def planted(generator: Generator) -> nn.Module:
    """Return the generator itself as a model, exact and untrained."""
    module = nn.Linear(generator.weights.shape[1], generator.horizon, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(generator.weights))
    return module


def windows(generator: Generator, seed: int, stream: int, count: int, recipe: str = CONVERGED) -> TrainingWindows:
    """First windows of a random stream, the same in every call."""
    return _windows(generator, np.random.default_rng([seed, stream]), count, recipe)


def _windows(generator: Generator, rng: np.random.Generator, count: int, recipe: str) -> TrainingWindows:
    parts = [INPUTS[recipe](rng, count, length) for length in generator.sections]
    x = torch.from_numpy(np.concatenate(parts, axis=1))
    return TrainingWindows(x, x @ torch.from_numpy(generator.weights).to(x).T)


def explained(forecast: Tensor, target: Tensor) -> float:
    """Share of the variance of `target` `(W, H)` that a forecast explains, around the mean of each step."""
    residual = (forecast - target).double().square().sum()
    spread = (target - target.mean(dim=0)).double().square().sum()
    return float(1 - residual / spread)


def least_squares(generator: Generator, seed: int, recipe: str = CONVERGED) -> float:
    """Share of variance that a least-squares fit explains of held-out windows: the paper's check of a generator."""
    fitted = windows(generator, seed, TRAINING, FIT_WINDOWS_PER_POSITION * generator.weights.shape[1], recipe)
    held = windows(generator, seed, HELD_OUT, HELD_OUT_WINDOWS, recipe)
    of_fit, of_held = (torch.nn.functional.pad(x.double(), (0, 1), value=1.0) for x in (fitted.x, held.x))
    return explained(of_held @ torch.linalg.lstsq(of_fit, fitted.y.double()).solution, held.y)
