from pathlib import Path

from benchmarks.engine import overhead, published_size


def test_a_simulated_plan_is_half_done_resumed_and_every_run_is_there_once(tmp_path: Path) -> None:
    seconds = published_size(tmp_path, runs=300, datasets=4)  # raises where a run is missing or there twice
    assert seconds["resumed, until the first run is stored"] > 0


def test_the_benchmark_of_the_driver_accounts_for_every_run(tmp_path: Path) -> None:
    found = overhead(tmp_path, small=True)
    assert found["runs"] == 2
    assert found["compute per run"] > 0
