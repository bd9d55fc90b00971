import numpy as np
import pytest
from helpers.by_definition import fraction_counts, steps_of

from hrx.audit.protocol import Protocol, deletion_counts, scored_steps
from hrx.errors import ProtocolError


@pytest.mark.parametrize("horizon", [1, 5, 8, 9, 24, 48, 96, 192, 720])
def test_scored_steps_are_evenly_spaced_with_first_and_last(horizon: int) -> None:
    steps = scored_steps(horizon, 8)
    assert steps.tolist() == steps_of(horizon)
    assert steps[0] == 0
    assert steps[-1] == horizon - 1
    assert len(set(steps.tolist())) == min(horizon, 8)


@pytest.mark.parametrize("lookback", [1, 7, 8, 96, 100, 101, 333, 512])
@pytest.mark.parametrize("fractions", [3, 5, 9, 10])
def test_the_grid_of_deleted_counts_is_symmetric_and_rounds_the_fractions(lookback: int, fractions: int) -> None:
    counts = deletion_counts(lookback, fractions)
    assert counts.tolist() == fraction_counts(lookback, fractions)
    mirrored = counts + counts[::-1]
    middle = fractions // 2 if fractions % 2 and lookback % 2 else None
    assert all(total == lookback for j, total in enumerate(mirrored) if j != middle)
    assert counts[0] == 0
    assert counts[-1] == lookback
    assert (np.abs(counts - np.linspace(0, 1, fractions) * lookback) <= 0.5).all()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"draws": 3}, "come in pairs"),
        ({"draws": 0}, "at least 1"),
        ({"draws_kind": "antithetc"}, "Did you mean 'antithetic'"),
        ({"area": "lerf"}, "Known: gap, morf"),
        ({"precision": 0.0}, "above 0"),
        ({"draws": 8, "precision": 0.1, "max_draws": 4}, "below draws"),
        ({"fractions": 2}, "at least 3"),
    ],
)
def test_an_invalid_protocol_is_refused_with_the_reason(setting: dict, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        Protocol(**setting)
