"""One run from its windows to its record: every column that the measurement fills."""

import json

import numpy as np
import pytest
import torch
from helpers.tiny import series

from hrx.adapters import Identity, from_module
from hrx.audit import Budget, Protocol, score
from hrx.audit.ledger.record import DISTANCES, DONE, EXCLUDED, NAMES, TRUNCATIONS
from hrx.audit.ledger.store import Ledger
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import attempt, outline, windows_of
from hrx.gift_eval import Dataset, Series

HORIZON = 64


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(40, HORIZON)


def planned(protocol: Protocol, pictured: bool = False) -> Run:
    one = Series("made/H", "one", "H", 24, "", series(1, 600)[0].double().numpy(), 0)
    dataset = Dataset("made/H", "H", 24, "", 1, row=lambda index: None)
    identity = Identity("linear", "module", "linear", "0", "torch")
    return Run(identity, dataset, one, 0, Setting(40, HORIZON), 0, 2, protocol, pictured=pictured)


def measured(protocol: Protocol) -> tuple[dict, Run]:
    run = planned(protocol)
    record = attempt(from_module(linear()), run, Budget()).record
    assert record["status"] == DONE, record["reason"]
    assert set(record) <= set(NAMES)
    return record, run


def test_sweeps_fill_their_columns_with_the_numbers_of_the_score() -> None:
    protocol = Protocol(draws=2, truncation=True, distance=True)
    record, run = measured(protocol)
    x = torch.as_tensor(windows_of(run).x, dtype=torch.float32)
    q = score(from_module(linear()), x, HORIZON, protocol=protocol, stream=run.stream)
    assert [record[f"g_own_rank_{r}"] for r in TRUNCATIONS] == q.truncated.tolist()
    assert [record[f"g_distance_{d}"] for d in DISTANCES] == q.distant.tolist()
    assert record["g_own_rank_1"] == 0
    assert (record["gap_own"], record["gap_shared"]) == (q.gap_own, q.gap_shared)
    assert record["effective_lookback"] == q.effective_lookback
    assert json.loads(record["effective_lookback_steps"]) == q.effective_lookback_steps.tolist()
    assert record["gap_own"] - record["gap_shared"] == pytest.approx(record["g_own"])


def test_without_sweeps_and_channels_their_columns_stay_empty() -> None:
    record, _ = measured(Protocol(draws=2))
    for name in NAMES:
        if name.startswith(("g_own_rank", "g_distance")) or "channel" in name:
            assert record.get(name) is None, name
    assert record["gap_shared"] is not None


def test_the_record_holds_every_setting_of_the_estimator_and_the_time_of_its_stages() -> None:
    record, _ = measured(Protocol(draws=2, estimator="integrated_gradients", estimator_settings='{"points": 8}'))
    assert json.loads(record["estimator_settings"]) == {"points": 8}
    refused = outline(planned(Protocol(draws=2, estimator="occlusion")), EXCLUDED, "why")
    assert set(json.loads(refused["estimator_settings"])) == {"spans", "replacement", "draws"}
    assert 0 < record["forward_seconds"] < record["seconds"]
    assert 0 < record["matrix_seconds"] < record["seconds"]


def test_with_the_axis_removed_the_record_has_the_plain_gap_and_no_gain() -> None:
    record, _ = measured(Protocol(draws=2, estimator="saliency", axis="whole", truncation=True, distance=True))
    assert [record[name] for name in ("g_own", "g_shuffled", "g_margin", "g_own_rank_2")] == [0, 0, 0, 0]
    assert record["gap_shared"] == pytest.approx(record["gap_own"])
    assert record["g_distance_1"] is None
    assert len(json.loads(record["effective_lookback_steps"])) == 8


def test_a_pictured_run_keeps_its_curves_in_the_ledger(tmp_path) -> None:
    run = planned(Protocol(draws=2), pictured=True)
    outcome = attempt(from_module(linear()), run, Budget())
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.write(outcome.record, outcome.matrix)
        (stored,) = ledger.examples([run.key])
        (record,) = ledger.records()
    assert stored.curves is not None
    assert stored.curves.shape == (3, 2, 9)
    gaps = [np.trapezoid(morf - lerf, dx=1 / 8) for morf, lerf in stored.curves.astype(np.float64)]
    assert gaps[0] - gaps[1] == pytest.approx(record["g_own"], abs=1e-6)
    assert gaps[2] - gaps[1] == pytest.approx(record["g_shuffled"], abs=1e-6)
