"""Wrong arguments in Python: one sentence of hrx, whatever was given."""

import numpy as np
import pytest
import torch

import hrx
from hrx.errors import HrxError

VALUES = np.sin(np.arange(80) / 3)


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(48, 6)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: hrx.explain(linear(), VALUES, "6", lookback=48), "horizon='6' is not a number of steps"),
        (lambda: hrx.explain(linear(), VALUES, 1.5, lookback=48), "horizon=1.5 is not a number of steps"),
        (lambda: hrx.explain(linear(), VALUES, True, lookback=48), "horizon=True is not a number of steps"),
        (lambda: hrx.explain(linear(), VALUES, 6, lookback="x"), "lookback='x' is not a number of values"),
        (lambda: hrx.explain(linear(), VALUES, 6, lookback=48, steps="all"), "steps='all' are not forecast steps"),
        (lambda: hrx.load(None), "A NoneType is not the name of a model"),
        (lambda: hrx.from_module("x"), "A str is not a model"),
        (lambda: hrx.compare("a.db", "b.db"), r"a\.db does not exist\. Give the ledger"),
        (lambda: hrx.compare(1, "b.db"), r"base is not a frame of runs but a int\. Read a ledger: hrx\.read"),
        (lambda: hrx.tables(None), "frame is not a frame of runs but a NoneType"),
        (lambda: hrx.run_audit(linear(), data=VALUES, settings=[(96, 12)]), "96, 12"),
        (lambda: hrx.run_audit(linear(), data=VALUES, estimator=abs), "estimator is a function"),
    ],
)
def test_a_wrong_argument_gets_one_sentence(call, sentence, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HrxError, match=sentence):
        call()
    assert not list(tmp_path.iterdir())


def test_one_step_may_be_given_without_a_list_and_a_file_is_scored_with_the_model_itself(tmp_path) -> None:
    model = linear()
    assert hrx.explain(model, VALUES, 6, lookback=48, steps=3).steps == (3,)
    explained = hrx.explain(model, VALUES, 6, lookback=48)
    path = explained.save(tmp_path / "x.npz")
    again = hrx.Explanation.load(path).score(model)
    assert again.raw == explained.score().raw
    # A file does not hold the series, so the divisor is another one.
    assert (again.variance_of, explained.score().variance_of) == ("windows", "series")
