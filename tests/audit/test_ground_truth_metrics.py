"""AUPRC and AUROC against scikit-learn, AUP and AUR against their definition, one threshold at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, roc_auc_score

from hrx.audit.calibration import recovery
from hrx.errors import HrxError


def areas_by_definition(scores: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Areas under precision and recall over falling thresholds on rank-normalised scores."""
    size = len(scores)
    below = np.array([sum(other < one for other in scores) for one in scores])
    ties = np.array([sum(other == one for other in scores) for one in scores])
    normalised = (below + (ties - 1) / 2) / (size - 1)
    thresholds = sorted(set(normalised))
    precision, recall = [], []
    for threshold in thresholds:
        kept = [t for t in range(size) if normalised[t] >= threshold]
        hits = sum(bool(true[t]) for t in kept)
        precision.append(hits / len(kept))
        recall.append(hits / true.sum())
    return float(np.trapezoid(precision, thresholds)), float(np.trapezoid(recall, thresholds))


def check(scores: np.ndarray, true: np.ndarray) -> None:
    result = recovery(torch.from_numpy(scores), torch.from_numpy(true))
    for index in np.ndindex(scores.shape[:-1]):
        one, known = scores[index], true[index]
        aup, aur = areas_by_definition(one, known)
        assert float(result.auprc[index]) == pytest.approx(average_precision_score(known, one), abs=1e-12)
        assert float(result.auroc[index]) == pytest.approx(roc_auc_score(known, one), abs=1e-12)
        assert float(result.aup[index]) == pytest.approx(aup, abs=1e-12)
        assert float(result.aur[index]) == pytest.approx(aur, abs=1e-12)


def test_a_batch_of_rows_agrees_with_the_definitions_row_by_row() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((3, 4, 20))
    true = rng.random((3, 4, 20)) < 0.3
    true[..., 0], true[..., 1] = True, False
    check(scores, true)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_ties_agree_with_the_definitions(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 9))
    scores = data.draw(arrays(np.float64, (1, size), elements=st.integers(0, 3).map(float)))
    true = data.draw(arrays(np.bool_, (1, size)))
    true[0, 0], true[0, -1] = True, False
    check(scores, true)


def test_a_perfect_row_has_the_closed_forms() -> None:
    size, count = 96, 4
    true = torch.zeros(size, dtype=torch.bool)
    true[:count] = True
    result = recovery(torch.arange(size, 0, -1.0), true)
    assert result.auprc == result.auroc == 1
    # Precision 1 for the first four places, then 4/k; recall k/4, then 1; ends count half.
    precision = sum(min(1, count / k) for k in range(1, size + 1)) - (1 + count / size) / 2
    recall = sum(min(1, k / count) for k in range(1, size + 1)) - (1 / count + 1) / 2
    assert float(result.aup) == pytest.approx(precision / (size - 1), abs=1e-12)
    assert float(result.aur) == pytest.approx(recall / (size - 1), abs=1e-12)


def test_only_the_order_of_the_scores_matters() -> None:
    rng = np.random.default_rng(1)
    scores = torch.from_numpy(rng.random((5, 30)))
    true = torch.from_numpy(rng.random((5, 30)) < 0.2)
    true[:, 0], true[:, 1] = True, False
    for one, other in zip(recovery(scores, true), recovery(scores.exp() * 1000, true), strict=True):
        assert torch.equal(one, other)


def test_a_row_of_equal_scores_is_at_chance() -> None:
    true = torch.tensor([True, False, False, False])
    result = recovery(torch.ones(4), true)
    assert result.auprc == 0.25
    assert result.auroc == 0.5
    assert result.aup == result.aur == 0


def test_known_positions_are_shared_by_all_windows() -> None:
    rng = np.random.default_rng(2)
    scores = torch.from_numpy(rng.random((6, 3, 10)))
    true = torch.eye(3, 10, dtype=torch.bool)
    assert torch.equal(recovery(scores, true).aup, recovery(scores, true.expand(6, 3, 10).clone()).aup)


@pytest.mark.parametrize("value", [True, False])
def test_rows_without_both_kinds_of_positions_are_refused(value: bool) -> None:
    with pytest.raises(HrxError, match="none or all"):
        recovery(torch.rand(2, 5), torch.full((2, 5), value))
