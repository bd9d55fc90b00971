"""How a model is computed: what the probe finds out, what is chosen, kept in the ledger and told in the record."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small import SETTINGS, Given, OneRowAtATime, dataset, linear
from helpers.tiny import series

from hrx.adapters import Forecaster, from_module, load
from hrx.adapters.acceleration import Accelerated, obstacle
from hrx.adapters.contract import Strategy
from hrx.audit import Protocol, bench, way
from hrx.audit.admission.results import Gate
from hrx.audit.attribution.jacobian import jacobian
from hrx.audit.ledger.merge import merge
from hrx.audit.ledger.store import Ledger
from hrx.audit.memory import GIBIBYTE, Budget
from hrx.audit.runner.executors.in_process import Answer, Here
from hrx.audit.runner.plan import plan
from hrx.audit.runner.recheck import recheck
from hrx.audit.runner.scheduler import execute
from hrx.audit.runner.worker import Choose, Measure, ModelKey, Subject, WorkerContext
from hrx.audit.way import CLEARLY, DECLARED, Wanted, Way, choose, fastest, probe_rows


@pytest.mark.parametrize(
    ("seconds", "declared", "chosen"),
    [
        ({"batched": 2.0, "bare": 1.9, "replicas": 3.0}, "batched", "bare"),
        ({"batched": 1.9, "bare": 2.0, "replicas": 3.0}, "batched", "batched"),
        ({"batched": 2.0, "bare": 2.0 * CLEARLY, "replicas": 1.01 * 2.0 / CLEARLY}, "batched", "batched"),
        ({"batched": 2.0, "bare": 2.0 * CLEARLY, "replicas": 0.99 * 2.0 / CLEARLY}, "batched", "replicas"),
        ({"batched": 1.01 * 2.0 / CLEARLY, "replicas": 2.0}, "replicas", "replicas"),
        ({"batched": 0.99 * 2.0 / CLEARLY, "replicas": 2.0}, "replicas", "batched"),
        ({"replicas": 2.0}, "batched", "replicas"),
        ({}, "batched", "batched"),
    ],
)
def test_a_clock_chooses_freely_among_the_same_bits_and_takes_others_only_where_clearly_faster(
    seconds: dict[Strategy, float], declared: Strategy, chosen: Strategy
) -> None:
    assert fastest(seconds, declared) == chosen


def probed(model: Forecaster, x: torch.Tensor, horizon: int, **options: Any) -> way.Probed:
    return probe_rows(model, x, horizon, Budget(), **options)


def test_a_model_without_obstacles_is_timed_by_every_strategy(checkpoints: dict[str, Path]) -> None:
    found = probed(load(str(checkpoints["ttm"])), series(4, 96), 24)
    assert set(found.seconds) == {"batched", "bare", "replicas"}
    assert all(0 < seconds < 60 for seconds in found.seconds.values())
    assert found.refused == {}


@pytest.mark.parametrize("family", ["chronos-bolt", "chronos-2", "moirai-2"])
def test_a_library_that_cuts_the_gradient_refuses_bare_rows_and_names_the_place(
    checkpoints: dict[str, Path], family: str
) -> None:
    found = probed(load(str(checkpoints[family])), series(3, 96), 24)
    assert set(found.seconds) == {"batched", "replicas"}
    assert list(found.refused) == ["bare"]
    assert ".py:" in found.refused["bare"]


def test_an_operation_that_cannot_be_batched_leaves_the_replicas() -> None:
    model, x = from_module(lambda x: OneRowAtATime.apply(x)[:, :12]), series(2, 16)
    found = probed(model, x, 12)
    assert set(found.seconds) == {"replicas"}
    assert "cannot be differentiated that way" in found.refused["batched"]
    chosen = choose(model, x, 12, Wanted(), Budget())
    assert chosen.way.rows == chosen.model.rows == "replicas"
    assert model.rows == "batched"
    rows = jacobian(chosen.model, x, 12)
    assert rows.strategy == "replicas"
    assert torch.allclose(rows.jacobian, torch.diag_embed(2 * x)[:, :12])


def test_rows_that_are_others_without_a_gradient_path_are_refused_though_nothing_was_rewritten() -> None:
    class ByFlag(torch.nn.Module):
        """Reads a switch that only a path throws: its statistics are cut off by hand outside."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            from hrx.adapters.gradients import _active

            return x[:, :12] * (2.0 if _active.path else 1.0)

    found = probed(from_module(ByFlag()), series(2, 16), 12)
    assert set(found.seconds) == {"batched", "replicas"}
    assert found.refused == {"bare": "they are other rows, by 0.5 of the largest entry"}


def test_replicas_are_timed_on_some_rows_of_one_window_and_counted_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(way.time, "process_time", lambda: float(next(clock)))
    found = probed(from_module(lambda x: x[:, :80] * 2), series(4, 96), 80)
    # A call lasts one second: of all rows of four windows, or of the first rows of one.
    assert found.seconds == {"batched": 0.25, "bare": 0.25, "replicas": 80 / way.REPLICAS_PROBED}


def test_a_single_disturbed_turn_does_not_decide_over_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: dict[str, int] = {}

    def seconds(share: Any, budget: Budget) -> float:
        turns[share.model.rows] = turns.get(share.model.rows, 0) + 1
        disturbed = share.model.rows != "replicas" and turns[share.model.rows] == 1
        return 9.0 if disturbed else {"batched": 1.0, "bare": 1.1, "replicas": 2.0}[share.model.rows]

    monkeypatch.setattr(way._Share, "seconds", seconds)
    monkeypatch.setattr(way, "LONG_ENOUGH", 0.0)
    found = probed(from_module(lambda x: x[:, :8] * 2), series(2, 32), 8)
    assert found.seconds == {"batched": 1.0, "bare": 1.1, "replicas": 2.0}
    assert set(turns.values()) == {1 + way.TURNS}


def test_the_strategy_that_is_asked_for_is_taken_without_a_race() -> None:
    model, x = linear(), series(3, 32)
    chosen = choose(model, x, 8, Wanted(rows="loop"), Budget())
    assert (chosen.way.rows, chosen.way.notes) == ("loop", ())
    assert set(json.loads(str(chosen.way.probe))["rows"]) == {"loop"}
    assert jacobian(chosen.model, x, 8).strategy == "loop"


def test_a_strategy_that_is_asked_for_and_cannot_be_had_is_told(checkpoints: dict[str, Path]) -> None:
    model = load(str(checkpoints["chronos-bolt"]))
    chosen = choose(model, series(2, 96), 24, Wanted(rows="bare"), Budget())
    assert chosen.way.rows == model.rows == "batched"
    (note,) = chosen.way.notes
    assert note.startswith("bare rows are off: the model cuts the gradient")


def test_what_became_of_an_acceleration_is_in_the_probe_and_a_refusal_in_the_notes() -> None:
    if not obstacle("cuda"):
        pytest.skip("there is a GPU")
    chosen = choose(linear(), series(3, 32), 8, Wanted(accelerations=("cuda",)), Budget()).way
    assert chosen.accelerations == ()
    assert chosen.notes == ("cuda is off: torch finds no GPU.",)
    (told,) = json.loads(str(chosen.probe))["accelerations"]
    assert told == {"acceleration": "cuda", "kept": False, "parity": None, "speed": None, "note": "torch finds no GPU"}


def test_accelerations_that_another_machine_chose_end_at_the_first_that_this_one_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Way("bare", ("cuda", "bf16", "compile"), "{}")
    for lacking, left in ((("cuda",), ()), (("bf16",), ("cuda",)), (("compile",), ("cuda", "bf16")), ((), None)):
        monkeypatch.setattr(way, "obstacle", lambda one, device, lacking=lacking: "none" if one in lacking else "")
        assert there.here() == (there if left is None else Way("bare", left, "{}"))
    asked = []
    monkeypatch.setattr(way, "obstacle", lambda one, device: asked.append((one, device)) or "")
    Way("bare", ("bf16",)).here()
    there.here()
    assert asked == [("bf16", "cpu"), ("cuda", "cuda"), ("bf16", "cuda"), ("compile", "cuda")]


class Watching(Here):
    """One process, and what it was given to do."""

    def __init__(self, models: list[Given]):
        super().__init__(WorkerContext(models, 2 * GIBIBYTE))
        self.given: list[object] = []

    def give(self, seat: int, task: Any) -> None:
        self.given.append(task)
        super().give(seat, task)

    def count(self, kind: type) -> int:
        return sum(isinstance(task, kind) for task in self.given)


class Audit:
    """A small plan with one model, carried out into one ledger as often as wanted."""

    def __init__(self, path: Path, model: Forecaster | None = None):
        self.models = [Given(model or linear())]
        self.path, self.said = path, list[str]()

    def by(self, crew: Here, wanted: Wanted | None = None, most: int = 2) -> list[dict]:
        """The records after so many of the two runs."""
        identities, done = [model.identity for model in self.models], list[object]()
        protocol = Protocol(draws=2)
        self.runs = plan(identities, [dataset()], SETTINGS, series=2, seeds=1, windows=3, protocol=protocol)
        with Ledger.open(self.path) as ledger:
            execute(
                self.runs,
                self.models,
                ledger,
                crew,
                progress=lambda run, record: done.append(run),
                wanted=wanted,
                notice=self.said.append,
                stopping=lambda: len(done) >= most,
            )
            return ledger.records()  # type: ignore[return-value]

    def watched(self, wanted: Wanted | None = None, most: int = 2) -> tuple[Watching, list[dict]]:
        crew = Watching(self.models)
        return crew, self.by(crew, wanted, most)


def test_a_setting_is_probed_once_and_a_resumed_audit_keeps_to_the_choice(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "l.db")
    crew, first = audit.watched(most=1)
    assert crew.count(Choose) == 1
    crew, both = audit.watched()
    assert crew.count(Choose) == 0
    assert crew.count(Measure) == 1
    old, new = both
    assert old == first[0]
    assert old["rows_strategy"] in ("batched", "bare")
    assert (old["rows_strategy"], old["probe"]) == (new["rows_strategy"], new["probe"])
    assert {"batched", "bare", "replicas"} == set(json.loads(new["probe"])["rows"])
    assert new["accelerations"] == ""


def test_another_wish_is_another_choice_and_is_told_where_it_is_not_granted(tmp_path: Path) -> None:
    if not obstacle("cuda"):
        pytest.skip("there is a GPU")
    audit = Audit(tmp_path / "l.db")
    audit.watched(most=1)
    crew, records = audit.watched(Wanted(rows="loop", accelerations=("cuda",)))
    assert crew.count(Choose) == 1
    assert [record["rows_strategy"] == "loop" for record in records] == [False, True]
    assert audit.said == ["linear-0 32x8: cuda is off: torch finds no GPU."]
    audit.watched(Wanted(rows="loop", accelerations=("cuda",)))
    assert len(audit.said) == 1, "there was nothing left to do, and nothing to say"


def test_a_probe_that_fails_is_told_and_the_runs_are_done_as_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> object:
        raise RuntimeError("a kernel is missing")

    monkeypatch.setattr(bench, "choose", broken)
    audit = Audit(tmp_path / "l.db")
    _, (record, _) = audit.watched()
    assert (record["status"], record["rows_strategy"], record["probe"]) == ("done", "batched", None)
    assert audit.said == [
        "linear-0 32x8 is computed as its family is: the probe failed, RuntimeError: a kernel is missing."
    ]
    with Ledger.open(audit.path, create=False) as ledger:
        assert ledger.ways() == []


def test_a_probe_whose_process_dies_twice_costs_no_run(tmp_path: Path) -> None:
    from hrx.audit.runner.executors.in_process import Lost

    class Dying(Watching):
        def wait(self) -> list[Answer]:
            task = self.given[-1]
            answers = list(super().wait())
            return [Answer(0, Lost("killed by signal 9"))] if isinstance(task, Choose) else answers

    audit = Audit(tmp_path / "l.db")
    crew = Dying(audit.models)
    records = audit.by(crew)
    assert crew.count(Choose) == 2
    assert [record["status"] for record in records] == ["done", "done"]
    assert "died 2 times" in audit.said[0]


def test_a_stored_choice_comes_back_as_it_was_and_the_first_one_stays(tmp_path: Path) -> None:
    identity, wanted = linear().identity, Wanted("auto", ("bf16", "compile"))
    chosen = Way("bare", ("compile",), '{"rows": {"bare": 0.5}}', ("bf16 is off: it rounds.",))
    with Ledger.open(tmp_path / "l.db") as ledger:
        assert Gate(ledger).way(identity, "32x8", "w", wanted) is None
        Gate(ledger).store_way(identity, "32x8", "w", wanted, chosen)
        Gate(ledger).store_way(identity, "32x8", "w", wanted, Way("loop"))
        gate = Gate(ledger)
        assert gate.way(identity, "32x8", "w", wanted) == chosen
        assert gate.way(identity, "32x8", "w", Wanted()) is None
        assert gate.way(identity, "32x8", "v", wanted) is None
        assert gate.way(identity, "40x8", "w", wanted) is None
    merge([tmp_path / "l.db"], tmp_path / "all.db")
    with Ledger.open(tmp_path / "all.db", create=False) as merged:
        assert Gate(merged).way(identity, "32x8", "w", wanted) == chosen


def test_a_run_is_rechecked_by_the_strategy_it_was_measured_with(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "l.db")
    audit.watched(Wanted(rows="replicas"))
    crew = Watching(audit.models)
    with Ledger.open(audit.path, create=False) as ledger:
        found = recheck(audit.runs, ledger, crew, 1, told=lambda one: None)
    assert [task.way.rows for task in crew.given] == ["replicas"]  # type: ignore[attr-defined]
    assert all(one.same for one in found)


def test_a_bench_keeps_an_accelerated_model_until_another_is_asked_for() -> None:
    models = [Given(linear(0)), Given(linear(1))]
    kept = WorkerContext(models, GIBIBYTE)
    first, second = (Subject(ModelKey.of(model.identity), SETTINGS[0], 24, False) for model in models)
    fast = Way("batched", ("compile",))
    made = kept.on_its_way(first, fast)
    assert isinstance(made, Accelerated)
    # A season that this model does not read makes no other model.
    assert kept.on_its_way(first._replace(season=7), fast) is made
    assert kept.on_its_way(second, fast).identity == models[1].identity
    assert kept.on_its_way(first, fast) is not made
    assert not isinstance(kept.on_its_way(first, DECLARED), Accelerated)


class Rounding(Accelerated):
    """An acceleration that spoils the forecasts of windows that start above zero."""

    def predict(self, x: torch.Tensor, horizon: int) -> torch.Tensor:
        return self._base.predict(x, horizon) * (1 + 1e-3 * (x[:, :1] > 0))


def test_a_run_whose_windows_an_acceleration_cannot_do_is_measured_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Audit(tmp_path / "plain.db")
    _, expected = audit.watched()
    monkeypatch.setattr(way, "obstacle", lambda one, device: "")
    monkeypatch.setattr(way, "Accelerated", Rounding)
    fast = Way(expected[0]["rows_strategy"], ("bf16",))
    bench = WorkerContext(audit.models, GIBIBYTE)
    assert isinstance(bench.on_its_way(Subject.of(audit.runs[0]), fast), Rounding)
    for run, record in zip(audit.runs, expected, strict=True):
        found = Measure(run, fast).do(bench).record
        assert (found["status"], found["accelerations"], found["parity"]) == ("done", "", 0)
        for name in ("g_own", "g_shuffled", "g_margin", "rank"):
            assert found[name] == record[name]


def test_a_run_that_is_excluded_says_how_it_was_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Audit(tmp_path / "l.db")
    audit.watched(most=1)
    monkeypatch.setattr("hrx.audit.runner.run.parity", lambda *arguments: 0.5)
    outcome = Measure(audit.runs[0], Way("batched", (), "{}")).do(WorkerContext(audit.models, GIBIBYTE))
    assert (outcome.record["status"], outcome.record["check_failed"]) == ("excluded", "equivalence")
    assert (outcome.record["parity"], outcome.record["accelerations"], outcome.record["probe"]) == (0.5, "", "{}")
