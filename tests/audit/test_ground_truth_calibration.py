"""The calibration: closed forms on exactly planted models, training on small ones, and broken instruments."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hrx.adapters import from_module
from hrx.audit import calibration as calibration_module
from hrx.audit import explain, score
from hrx.audit.calibration import (
    BRIEF,
    HELD_OUT,
    SCORED,
    SHORT,
    TRAINING,
    CalibrationSize,
    CalibrationTask,
    TrainedModel,
    batches_of,
    calibrate,
    explained,
    least_squares,
    measure_channels,
    planted,
    recovery,
    tasks,
    train,
    windows,
)  # fmt: skip
from hrx.audit.generators import Generator, generate, mix_channels, plant_rank, sinusoids
from hrx.audit.scoring import score as scoring
from hrx.audit.scoring.quantities import rank
from hrx.errors import HrxError
from hrx.records.calibration import GENERATORS, Calibration, ModelResult, judge, verdict

L, H = 64, 24
SMALL = CalibrationSize("small", ((L, H),), seeds=1, ranks=(1, 4, 12), windows=2)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_matrix_of_an_exactly_planted_model_recovers_every_position(name: str) -> None:
    generator = generate(name, L, H, 0)
    x = windows(generator, 0, SCORED, 3).x
    matrix = explain(from_module(planted(generator)), x, H)
    assert torch.equal(matrix, torch.from_numpy(generator.weights).float().expand(3, H, L))
    positions = torch.from_numpy(generator.positions)
    result = recovery(matrix, positions)
    assert (result.auprc == 1).all()
    # Positions that are tied at zero share a threshold, so precision falls to that of all positions only at the end.
    assert torch.allclose(result.auroc, torch.ones_like(result.auroc), atol=1e-12)
    vector = recovery(matrix.mean(dim=1, keepdim=True).expand_as(matrix), positions)
    assert (vector.auprc.mean() == 1) == (name == "sparsenull")


@pytest.mark.parametrize("planted_rank", [1, 2, 5, 12])
def test_the_rank_of_an_exactly_planted_model_is_the_planted_one(planted_rank: int) -> None:
    generator = plant_rank(planted_rank, L, H, 1)
    x = windows(generator, 1, SCORED, 2).x
    measured = rank(explain(from_module(planted(generator)), x, H)).participation
    sigma = np.linalg.svd(np.abs(generator.weights), compute_uv=False)
    by_svd = (sigma**2).sum() ** 2 / (sigma**4).sum()
    assert measured.numpy() == pytest.approx(np.full(2, by_svd), rel=1e-5)
    assert by_svd == pytest.approx(planted_rank, rel=1e-10)


def test_an_exactly_planted_sparsenull_has_rank_one_and_no_gain_at_all() -> None:
    generator = generate("sparsenull", L, H, 0)
    result = score(from_module(planted(generator)), windows(generator, 0, SCORED, 3).x, H)
    assert result.rank == pytest.approx(1, abs=1e-6)
    assert result.g_own == result.g_shuffled == result.g_margin == 0


def test_a_planted_model_is_the_generator() -> None:
    generator = generate("lagmix", L, H, 0)
    x, y = windows(generator, 0, HELD_OUT, 5)
    slow = [[sum(float(x[b, t]) * generator.weights[h, t] for t in range(L)) for h in range(H)] for b in range(5)]
    assert y.numpy() == pytest.approx(np.array(slow), abs=1e-5)
    assert torch.allclose(planted(generator)(x), y, atol=1e-5)


def test_sinusoids_have_unit_variance_and_two_bands_of_frequencies_over_noise() -> None:
    x = sinusoids(np.random.default_rng(0), 4000, 96)
    assert x.shape == (4000, 96)
    assert x.var() == pytest.approx(1, abs=0.02)
    power = (np.abs(np.fft.rfft(x * np.hanning(96), axis=1)) ** 2).mean(axis=0)
    noise = power[20:].mean()
    assert power[1] > 100 * noise
    assert power[4:12].min() > 3 * noise
    assert power[20:].max() < 2 * noise


def test_the_short_recipe_passes_over_the_same_windows_and_converges_less() -> None:
    generator = generate("sparseband", L, H, 0)
    next_epoch = batches_of(generator, 0, BRIEF, SHORT)
    batches = [batch for _ in range(10) for batch in next_epoch()]
    assert len(batches) == 10 * 4000 / 32
    first, second = (torch.cat([batch.x for batch in batches[i : i + 125]]) for i in (0, 125))
    assert not torch.equal(first, second)
    for one, two in zip(first.sum(dim=1).sort().values, second.sum(dim=1).sort().values, strict=True):
        assert one == two
    short = train("linear", generator, 0, SHORT)
    assert 0.9 < short.explained < train("linear", generator, 0).explained


def test_streams_and_seeds_share_no_window_and_repeat_exactly() -> None:
    generator = generate("sparsesplit", L, H, 0)
    drawn = [windows(generator, seed, stream, 4).x for seed in (0, 1) for stream in (TRAINING, HELD_OUT, SCORED)]
    rows = torch.cat(drawn)
    assert len(torch.unique(rows, dim=0)) == len(rows)
    assert torch.equal(windows(generator, 1, SCORED, 4).x, drawn[-1])


def test_the_share_explained_is_one_minus_residual_over_spread() -> None:
    target = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    forecast = torch.tensor([[1.0, 10.0], [2.0, 30.0]])
    # Residual 1; spread (1 + 1) + (100 + 100), each step around its own mean.
    assert explained(forecast, target) == pytest.approx(1 - 1 / 202)
    assert explained(target.mean(dim=0).expand(2, 2), target) == 0


def test_least_squares_explains_a_linear_target_with_a_constant_and_nothing_of_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator, rng = generate("lagmix", L, H, 0), torch.Generator().manual_seed(0)
    targets = {"shifted": lambda y: y + 5, "noise": lambda y: torch.randn(y.shape, generator=rng)}
    found = {}
    for name, target in targets.items():
        shown = lambda *given, target=target: (drawn := windows(*given))._replace(y=target(drawn.y))  # noqa: E731
        monkeypatch.setattr(calibration_module, "windows", shown)
        found[name] = least_squares(generator, 0)
    assert found["shifted"] == pytest.approx(1, abs=1e-6)
    assert found["noise"] < 0.05


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_passes_the_least_squares_check(name: str) -> None:
    assert least_squares(generate(name, L, H, 0), 0) >= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["linear", "cnn", "transformer"])
def test_a_backbone_learns_the_generator_and_repeats_to_the_digit(backbone: str) -> None:
    generator = generate("sparsesplit", 32, 8, 0)
    first, again = (train(backbone, generator, seed=0) for _ in range(2))
    assert first.explained >= 0.98
    assert first.explained == again.explained
    x, y = windows(generator, 0, HELD_OUT, 512)
    with torch.no_grad():
        residual = (first.module(x) - y).square().sum()
    assert first.explained == pytest.approx(1 - float(residual / (y - y.mean(0)).square().sum()), abs=1e-5)


def test_training_does_not_change_the_global_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train("linear", generate("sparsesplit", 32, 8, 0), seed=0)
    assert torch.equal(torch.rand(1), expected)


@pytest.fixture(autouse=True, scope="module")
def trained_once() -> Iterator[None]:
    """Calibrations of this file share their trained models: what differs between them is the instrument."""
    trained: dict[tuple[object, ...], TrainedModel] = {}

    def remembered(backbone: str, generator: Generator, seed: int, recipe: str) -> TrainedModel:
        key = (backbone, generator.name, generator.weights.tobytes(), seed, recipe)
        if key not in trained:
            trained[key] = train(backbone, generator, seed, recipe)
        return trained[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration_module, "train", remembered)
        yield


@pytest.fixture(scope="module")
def linear(trained_once: None) -> Calibration:
    return calibrate(["linear"], effort=SMALL)


@pytest.mark.slow
def test_the_planted_rank_is_judged_on_converged_models_only(linear: Calibration) -> None:
    short = replace(linear, recipe="short", results=tuple(replace(one, measured_rank=1.0) for one in linear.results))
    assert "rank rises with the plant" not in [one.criterion for one in judge(short)]
    assert "not judged on models that have not converged" in verdict(judge(short))
    assert "rank rises with the plant" in verdict(judge(replace(short, recipe="converged")))


@pytest.mark.slow
def test_the_linear_backbone_meets_every_criterion(linear: Calibration) -> None:
    table = linear.evidence("linear")
    assert [result.generator for result in table] == list(GENERATORS)
    assert np.median([result.auprc_matrix for result in table]) >= 0.95
    assert np.median([result.auprc_vector for result in table]) < 0.7
    own, shuffled, margin = (
        np.median([getattr(result, name) for result in table]) for name in ("g_own", "g_shuffled", "g_margin")
    )
    assert own > 0 > shuffled
    assert margin > own
    (control,) = linear.evidence("linear", "sparsenull")
    assert control.auprc_gap <= 0
    curve = linear.curve("linear")
    assert [point.planted for point in curve] == pytest.approx([1, 4, 8, 12])
    for point in curve:
        assert point.measured == pytest.approx(point.planted, rel=0.1)
    assert linear.exact_control.g_own == 0
    criteria = judge(linear)
    assert all(one.passed for one in criteria)
    assert verdict(criteria).startswith("sound")


@pytest.mark.slow
def test_a_calibration_repeats_to_the_digit(linear: Calibration) -> None:
    assert calibrate(["linear"], effort=SMALL).results == linear.results


def test_a_calibration_lists_every_model_once() -> None:
    effort = replace(SMALL, shapes=((L, H), (96, 48)), seeds=2, ranks=(1, 8, 16))
    planned = tasks(["linear", "cnn", "linear"], replace(effort, shapes=((96, 48), (L, H))))
    # Two backbones, two seeds: six generators at two shapes, and the two ranks that the table does not hold. The linear
    # one has several channels too.
    assert len(planned) == 2 * 2 * (6 * 2 + 2) + 2 * 2
    assert len({task.label for task in planned}) == len(planned)


def test_unknown_names_list_near_matches() -> None:
    with pytest.raises(HrxError, match="Did you mean 'linear'"):
        calibrate(["liner"])
    with pytest.raises(HrxError, match="Did you mean 'input_gradient'"):
        calibrate(["linear"], estimator="input_gradients")
    with pytest.raises(HrxError, match="Did you mean 'cnn'"):
        train("cnnn", generate("lagmix", L, H, 0), 0)


def failing(calibration: Calibration) -> set[str]:
    criteria = judge(calibration)
    assert verdict(criteria).startswith("NOT sound")
    return {one.criterion for one in criteria if not one.passed}


def break_instrument(monkeypatch: pytest.MonkeyPatch, corrupt: Callable[[Tensor], Tensor]) -> Calibration:
    """The calibration with every matrix corrupted right after the estimator."""
    estimate = scoring.estimate

    def broken(*args: object, **options: object) -> object:
        result = estimate(*args, **options)
        return result._replace(matrix=corrupt(result.matrix))

    monkeypatch.setattr(scoring, "estimate", broken)
    return calibrate(["linear"], effort=SMALL)


@pytest.mark.slow
def test_an_instrument_that_returns_the_wrong_rows_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    result = failing(break_instrument(monkeypatch, lambda matrix: matrix.roll(matrix.shape[1] // 2, dims=1)))
    assert "gains in the ideal directions" in result
    assert "matrix above vector" in result


@pytest.mark.slow
def test_an_instrument_that_returns_one_explanation_for_everything_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = failing(break_instrument(monkeypatch, torch.ones_like))
    assert {"gains in the ideal directions", "matrix above vector", "rank rises with the plant"} <= result


@pytest.mark.slow
def test_an_instrument_that_invents_structure_fails_both_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    def invent(matrix: Tensor) -> Tensor:
        """A large importance at another position in every row, although the model does not use it."""
        rows = torch.arange(matrix.shape[1])
        matrix = matrix.clone()
        matrix[:, rows, 2 * rows % (L - 1)] = 100.0
        return matrix

    result = failing(break_instrument(monkeypatch, invent))
    assert {"no gain on the exact control", "negative control not positive"} <= result


@pytest.mark.slow
def test_an_instrument_that_adds_noise_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(matrix: Tensor) -> Tensor:
        return matrix + torch.rand(matrix.shape[1:], generator=torch.Generator().manual_seed(0))

    assert "rank rises with the plant" in failing(break_instrument(monkeypatch, noisy))


@pytest.mark.slow
def test_a_generator_that_was_not_learned_is_reported_and_not_used_as_evidence(linear: Calibration) -> None:
    def forget(result: ModelResult) -> ModelResult:
        if result.generator == "sparseshift":
            return replace(result, explained=0.9, g_own=-100.0, auprc_matrix=0.0)
        return result

    forgetful = replace(linear, results=tuple(map(forget, linear.results)))
    assert failing(forgetful) == {"every generator learned"}
    assert len(forgetful.evidence("linear")) == len(GENERATORS) - 1
    assert "sparseshift" in verdict(judge(forgetful))


@pytest.mark.slow
def test_a_gain_on_the_exact_control_beyond_its_error_fails(linear: Calibration) -> None:
    for gain in (0.05, -0.05):
        control = replace(linear.exact_control, g_own=gain, g_own_se=0.01)
        assert failing(replace(linear, exact_control=control)) == {"no gain on the exact control"}
    within = replace(linear, exact_control=replace(linear.exact_control, g_own=0.035, g_own_se=0.01))
    assert all(one.passed for one in judge(within))


@pytest.mark.slow
def test_a_measured_rank_that_does_not_rise_fails(linear: Calibration) -> None:
    def with_ranks(measured: Callable[[ModelResult], float]) -> Calibration:
        return replace(linear, results=tuple(replace(one, measured_rank=measured(one)) for one in linear.results))

    assert failing(with_ranks(lambda result: 2.0)) == {"rank rises with the plant"}
    assert failing(with_ranks(lambda result: 0.4 * result.planted_rank)) == {"rank rises with the plant"}
    assert all(one.passed for one in judge(with_ranks(lambda result: 0.6 * result.planted_rank)))


@pytest.mark.slow
def test_an_estimator_of_the_scored_steps_is_compared_at_these_steps() -> None:
    result = calibrate(["linear"], estimator="saliency", effort=SMALL)
    example = next(one for one in result.examples if one.result.generator == "sparseband")
    assert len(example.steps) == len(example.matrix) == len(example.answer) == 8
    assert example.result.auprc_matrix > 0.95


def test_covmix_has_the_channels_and_the_weights_that_it_states() -> None:
    generator = mix_channels(L, H, 3)
    assert generator.layout
    rows = {one.name: generator.weights[:, one.positions] for one in generator.layout.channels}
    assert (generator.lookback, generator.sections) == (L, (L, L, L, L + H))
    assert np.count_nonzero(rows["idle"]) == 0
    np.testing.assert_allclose(np.linalg.norm(rows["target"], axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(rows["past"], axis=1), np.linspace(0.2, 1.2, H))
    assert np.count_nonzero(rows["known"][:, :L]) == 0
    np.testing.assert_allclose(rows["known"][:, L:], 0.3 * np.eye(H))  # each step at its own


def test_an_exact_model_of_covmix_is_recovered_and_its_idle_channel_never_called_read() -> None:
    task = CalibrationTask("planted", mix_channels(32, 12, 0), 0, False)
    result = measure_channels(planted(task.generator), task, 1.0, 5)
    assert (result.auprc, result.ordered, result.idle_read, result.audits) == (1, True, 0, 5)
    assert result.g_margin > 0


@pytest.mark.slow
def test_trained_models_of_covmix_are_recovered_and_few_audits_call_the_idle_channel_read() -> None:
    read = audits = 0
    for seed in range(5):
        task = CalibrationTask("linear", mix_channels(32, 12, seed), seed, False)
        model = train("linear", task.generator, seed)
        result = measure_channels(model.module, task, model.explained, 40)
        assert result.learned
        assert result.auprc >= 0.95
        assert result.ordered
        read, audits = read + result.idle_read, audits + result.audits
    assert audits == 200
    assert read <= 0.05 * audits


@pytest.mark.parametrize(
    ("broken", "criterion"),
    [
        ({"auprc": 0.9}, "covmix: channels recovered"),
        ({"ordered": False}, "covmix: channels in order"),
        ({"idle_read": 11}, "covmix: idle channel not read"),
    ],
)
def test_a_calibration_fails_where_covmix_is_not_recovered(broken: dict[str, object], criterion: str) -> None:
    task = CalibrationTask("linear", mix_channels(32, 12, 0), 0, False)
    sound = replace(measure_channels(planted(task.generator), task, 1.0, 2), audits=200)
    control = ModelResult(*["planted", "sparsenull", L, H, 0, True], *[1.0] * 16)  # type: ignore[arg-type]
    made = Calibration("input_gradient", "quick", control, (), (), channels=(sound,))
    names = {one.criterion for one in judge(made) if one.passed}
    assert {"covmix: channels recovered", "covmix: channels in order", "covmix: idle channel not read"} <= names
    failed = [one for one in judge(replace(made, channels=(replace(sound, **broken),))) if not one.passed]  # type: ignore[arg-type]
    assert criterion in {one.criterion for one in failed}
    assert not [one for one in failed if one.criterion.startswith("covmix") and one.criterion != criterion]
