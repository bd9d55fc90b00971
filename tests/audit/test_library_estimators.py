"""Attribution classes of captum and time_interpret against plain calls of the libraries, step by step."""

import random
import re
from pathlib import Path

import captum.attr
import numpy as np
import pytest
import tint.attr
import torch
from captum._utils.models.linear_model import SkLearnLasso
from helpers.tiny import series
from torch import Tensor

from hrx.adapters import from_module, load
from hrx.audit import Protocol, explain
from hrx.audit.attribution import AttributionTask, Inapplicable, find_estimator, libraries
from hrx.audit.attribution.libraries import CAPTUM, LIBRARY_STREAM, TINT, library_names
from hrx.audit.attribution.perturbation import replacements_of
from hrx.audit.memory import MemoryBudget
from hrx.audit.scoring.quantities import Unscorable
from hrx.audit.scoring.score import score
from hrx.audit.torch_state import seeded
from hrx.errors import ProtocolError

HORIZON, LOOKBACK, STEPS = 6, 24, [1, 3, 6]
SEGMENTS = torch.arange(LOOKBACK - 1, -1, -1)[None] // 6
MEAN, DRAWN = "mean of the window", "rearrangements of the window"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# The settings of the estimator, then the arguments of the class and of its `attribute` that they stand for.
CASES = {
    "captum:Saliency": ("{}", {}, {}),
    "captum:InputXGradient": ("{}", {}, {}),
    "captum:IntegratedGradients": ('{"n_steps": 7}', {}, {"baselines": MEAN, "n_steps": 7}),
    "captum:GradientShap": (
        '{"references": 4, "n_samples": 3, "stdevs": 0.1}',
        {},
        {"baselines": DRAWN, "n_samples": 3, "stdevs": 0.1},
    ),
    "captum:DeepLift": ("{}", {}, {"baselines": MEAN}),
    "captum:DeepLiftShap": ('{"references": 4}', {}, {"baselines": DRAWN}),
    "captum:FeatureAblation": ('{"baseline": "zeros"}', {}, {"baselines": 0}),
    "captum:Occlusion": (
        '{"window": 5, "stride": 3}',
        {},
        {"baselines": MEAN, "sliding_window_shapes": (5,), "strides": (3,)},
    ),
    "captum:ShapleyValueSampling": (
        '{"segments": 4, "n_samples": 3}',
        {},
        {"baselines": MEAN, "feature_mask": SEGMENTS, "n_samples": 3},
    ),
    "captum:ShapleyValues": ('{"segments": 4}', {}, {"baselines": MEAN, "feature_mask": SEGMENTS}),
    "captum:KernelShap": (
        '{"segments": 4, "n_samples": 20}',
        {},
        {"baselines": MEAN, "feature_mask": SEGMENTS, "n_samples": 20},
    ),
    "captum:Lime": (
        '{"segments": 4, "n_samples": 20, "alpha": 0.001}',
        {"interpretable_model": SkLearnLasso(alpha=0.001)},
        {"baselines": MEAN, "feature_mask": SEGMENTS, "n_samples": 20},
    ),
    "tint:AugmentedOcclusion": (
        '{"references": 4, "n_sampling": 2}',
        {"data": DRAWN, "n_sampling": 2},
        {"sliding_window_shapes": (2,), "strides": (2,)},
    ),
    "tint:BayesKernelShap": (
        '{"segments": 4, "n_samples": 20}',
        {},
        {"baselines": MEAN, "feature_mask": SEGMENTS, "n_samples": 20},
    ),
    "tint:BayesLime": (
        '{"segments": 4, "n_samples": 20}',
        {},
        {"baselines": MEAN, "feature_mask": SEGMENTS, "n_samples": 20},
    ),
    "tint:FeatureAblation": ("{}", {}, {"baselines": MEAN}),
    "tint:Occlusion": ("{}", {}, {"baselines": MEAN, "sliding_window_shapes": (2,), "strides": (2,)}),
    "tint:SequentialIntegratedGradients": ('{"n_steps": 3}', {}, {"baselines": MEAN, "n_steps": 3}),
}


def small_module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(LOOKBACK, 8), torch.nn.Tanh(), torch.nn.Linear(8, HORIZON)).eval()


def plain_loop(name: str, module: torch.nn.Module, x: Tensor, steps: list[int | None]) -> Tensor:
    """The class called by itself for one window and one step at a time, one perturbation in a batch."""
    _, constructed, arguments = CASES[name]
    kind = getattr({"captum": captum, "tint": tint}[name.partition(":")[0]].attr, name.partition(":")[2])
    needs_module = "DeepLift" in name
    rows = []
    for place, window in enumerate(x):
        task = AttributionTask(from_module(module), x, HORIZON, (0,), MemoryBudget(), seed=3, stream=8)
        rule = {MEAN: window.mean().expand(1, LOOKBACK), DRAWN: replacements_of(task, "rearranged", 0, 4)[place]}
        named = [
            {key: rule[value] if isinstance(value, str) else value for key, value in some.items()}
            for some in (constructed, arguments)
        ]
        for step in steps:
            forward = module if needs_module else lambda w, step=step: explained(module(w), step)
            with seeded(3, 8, place, LIBRARY_STREAM, 0):
                target = {"target": step - 1} if needs_module else {}
                given = kind(forward, **named[0]).attribute(window[None].clone(), **named[1], **target)
            rows.append((given[0] if isinstance(given, tuple) else given)[0].detach().abs())
    return torch.stack(rows).unflatten(0, (len(x), -1))


def explained(y: Tensor, step: int | None) -> Tensor:
    return y.sum(dim=1) if step is None else y[:, step - 1]


def test_every_usable_class_is_compared_with_its_library() -> None:
    assert set(CASES) == set(library_names())


@pytest.mark.parametrize("name", CASES)
def test_a_library_class_gives_what_a_plain_loop_over_steps_gives(name: str) -> None:
    module, x = small_module(), series(2, LOOKBACK)
    options = {"estimator": name, "settings": CASES[name][0], "seed": 3, "stream": 8}
    theirs = plain_loop(name, module, x, list(STEPS))
    assert theirs.max() > 0
    ours = explain(from_module(small_module()), x, HORIZON, steps=STEPS, **options)
    torch.testing.assert_close(ours, theirs.to(ours), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["captum:IntegratedGradients", "captum:GradientShap", "captum:ShapleyValueSampling"])
def test_without_the_axis_a_library_class_explains_the_sum_of_the_forecast(name: str) -> None:
    module, x = small_module(), series(2, LOOKBACK)
    options = {"estimator": name, "settings": CASES[name][0], "seed": 3, "stream": 8}
    ours = explain(from_module(small_module()), x, HORIZON, axis="whole", **options)
    torch.testing.assert_close(ours, plain_loop(name, module, x, [None]).to(ours), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["captum:GradientShap", "captum:ShapleyValueSampling", "captum:KernelShap", "tint:AugmentedOcclusion"]
)
def test_draws_of_a_library_depend_on_seed_and_stream_only_and_leave_the_global_generators_alone(name: str) -> None:
    model, x, options = (
        from_module(small_module()),
        series(2, LOOKBACK),
        {"estimator": name, "settings": CASES[name][0]},
    )
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first = explain(model, x, HORIZON, **options)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert torch.equal(explain(model, x, HORIZON, **options), first)
    assert torch.equal(explain(model, x[:1], HORIZON, **options), first[:1])
    assert not torch.equal(explain(model, x, HORIZON, **options, seed=1), first)
    assert not torch.equal(explain(model, x, HORIZON, **options, stream=1), first)


@pytest.mark.parametrize("name", ["captum:ShapleyValueSampling", "captum:ShapleyValues", "captum:KernelShap"])
def test_the_shapley_values_of_a_linear_model_are_weight_times_distance_from_the_baseline(name: str) -> None:
    weight = torch.randn(HORIZON, LOOKBACK, generator=torch.Generator().manual_seed(1))
    x = series(2, LOOKBACK)
    away = weight * (x - x.mean(dim=1, keepdim=True))[:, None]
    by_segment = away.unflatten(2, (4, 6)).sum(dim=-1).abs().repeat_interleave(6, dim=-1)
    ours = explain(from_module(lambda w: w @ weight.T), x, HORIZON, estimator=name, settings=CASES[name][0])
    torch.testing.assert_close(ours, by_segment, rtol=1e-3, atol=1e-3)


def test_deeplift_refuses_a_model_whose_nonlinearities_are_not_modules_and_the_run_is_excluded() -> None:
    functional = torch.nn.Linear(LOOKBACK, HORIZON)
    functional.forward = lambda w: torch.nn.functional.linear(w, functional.weight).tanh()  # type: ignore[method-assign]
    bolt, x = load("bolt-mini"), series(1, LOOKBACK)
    for model in (from_module(functional, name="tanh"), bolt):
        with pytest.raises(
            Inapplicable, match=rf"cannot explain {model.identity.model}: .* should add up to by .* .limit 0.001"
        ):
            explain(model, x, HORIZON, estimator="captum:DeepLift")
    with pytest.raises(Inapplicable, match=r"has no torch\.nn\.Module on the CPU"):
        explain(from_module(lambda w: w[:, :HORIZON]), x, HORIZON, estimator="captum:DeepLift")
    with pytest.raises(Unscorable, match="miss the change that they should add up to"):
        score(bolt, x, HORIZON, protocol=Protocol(estimator="captum:DeepLift"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("captum:GradientShp", "Unknown attribution class of captum 'GradientShp'. Did you mean 'GradientShap'"),
        ("captum:", "Unknown attribution class of captum ''"),
        ("captum:LayerConductance", "LayerConductance explains a layer inside one network"),
        ("captum:FeaturePermutation", "permutes a position across windows"),
        ("captum:LRP", "needs a propagation rule for every layer"),
        ("tint:Fit", "Fit needs a network that was trained"),
        ("tint:TemporalOcclusion", "growing prefix"),
        ("tint:Ocklusion", "Did you mean 'Occlusion'"),
        ("captumm:Saliency", "Did you mean 'captum:Saliency'"),
    ],
)
def test_an_unknown_or_unusable_class_gets_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(sentence)):
        Protocol(estimator=name)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ('{"n_sample": 3}', "Did you mean 'n_samples'"),
        ('{"n_samples": 0}', "at least 1"),
        ('{"baseline": "noise"}', "Give mean or zeros"),
    ],
)
def test_settings_of_a_class_are_checked(settings: str, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(sentence)):
        Protocol(estimator="captum:ShapleyValueSampling", estimator_settings=settings)


@pytest.mark.parametrize("prefix", ["captum", "tint"])
def test_a_library_that_is_not_installed_is_named_with_its_extra(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(ProtocolError, match=rf"is not installed. Install it: .*pip install .*\[{prefix}\]"):
        find_estimator(f"{prefix}:Occlusion")


def test_the_versions_of_a_library_are_the_package_of_its_classes() -> None:
    assert find_estimator("captum:Saliency").package == f"captum {captum.__version__}"
    assert find_estimator("tint:Occlusion").package == f"time_interpret {tint.__version__}, captum {captum.__version__}"


def test_every_attribution_class_of_the_installed_libraries_is_usable_or_refused_with_a_reason() -> None:
    for library, module, prefix in ((CAPTUM, captum.attr, "captum"), (TINT, tint.attr, "tint")):
        classes = [name for name, kind in vars(module).items() if isinstance(kind, type) and hasattr(kind, "attribute")]
        assert len(classes) > 10
        for name in set(classes) - set(library.classes):
            with pytest.raises(ProtocolError, match=rf"'{prefix}:{name}' cannot be used: {name} "):
                find_estimator(f"{prefix}:{name}")


def test_a_class_that_raises_is_quoted_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("wrong shape")

    monkeypatch.setattr(captum.attr.Saliency, "attribute", fail)
    with pytest.raises(Exception, match=r"captum:Saliency raised an error .* AssertionError: wrong shape"):
        explain(from_module(small_module()), series(1, LOOKBACK), HORIZON, estimator="captum:Saliency")


def test_the_documentation_has_places_for_the_classes_and_for_those_that_cannot_be_used() -> None:
    text = (Path(__file__).parents[2] / "docs" / "estimators.md").read_text(encoding="utf-8")
    assert "<!-- settings: classes -->" in text
    assert "<!-- settings: refused -->" in text
