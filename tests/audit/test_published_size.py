from pathlib import Path

from benchmarks.engine import overhead, published_size


def test_a_simulated_plan_is_stopped_and_resumed_and_every_run_is_stored_once(tmp_path: Path) -> None:
    seconds = published_size(tmp_path, runs=300, datasets=4)  # raises where a run is missing or stored twice
    assert seconds["resume until the first run is stored"] > 0


def test_the_benchmark_of_the_driver_accounts_for_every_run(tmp_path: Path) -> None:
    figures = overhead(tmp_path, small=True)
    assert figures["runs"] == 2
    assert figures["compute per run"] > 0
