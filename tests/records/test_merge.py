import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.records import overwrite_a_page_of_runs, record

from hrx.records.ledger import Ledger, LedgerError, StoredAudit, StoredCheck, StoredExample
from hrx.records.merge import merge
from hrx.records.record import DONE, EXCLUDED, FAILED, Record

CHECK = StoredCheck("f", "lib 1", "1", "2.0", "m", "96x24", "derivative", True, 1e-4, 1e-2, "note", "w")


def ledger(path: Path, *records: Record, check: StoredCheck = CHECK) -> Path:
    with Ledger.open(path) as opened:
        for one in records:
            opened.write(one)
        opened.write_all([check])
    return path


def example(key: str, value: float = 1.0) -> StoredExample:
    ones = np.full(2, value, np.float32)
    return StoredExample(key, ones, ones, ones, np.eye(2, dtype=np.float32))


def test_a_merge_holds_every_finished_run_once_with_checks_examples_and_settings(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one.db", record("a", g_own=0.5), record("b", FAILED), record("c", EXCLUDED))
    two = ledger(tmp_path / "two.db", record("b", g_own=1.5), record("c", EXCLUDED), record("d", FAILED))
    with Ledger.open(two) as opened:
        opened.write(record("e"), example("e"))
        opened.write_audit(StoredAudit("2026-01-01", "0.1", '{"series": 3}'))
    done = merge([one, two], tmp_path / "all.db")
    assert done == (6, 1, (), ())  # a, b as failed and c; then b, which replaces the failed one, d and e; c is known
    with Ledger.open(tmp_path / "all.db", create=False) as merged:
        assert {r.key: (r.status, r.g_own) for r in merged.records()} == {
            "a": (DONE, 0.5),
            "b": (DONE, 1.5),
            "c": (EXCLUDED, None),
            "d": (FAILED, None),
            "e": (DONE, None),
        }
        assert merged.checks() == [CHECK]
        assert merged.example_keys() == ["e"]
        assert [audit.settings for audit in merged.audits()] == ['{"series": 3}']


def test_a_second_merge_of_the_same_ledgers_changes_nothing(tmp_path: Path) -> None:
    sources = [
        ledger(tmp_path / "one.db", record("a", g_own=0.5), record("b", FAILED)),
        ledger(tmp_path / "two.db", record("b", g_own=1.5), record("c", EXCLUDED)),
    ]
    merge(sources, tmp_path / "all.db")
    before = (tmp_path / "all.db").read_bytes()
    assert merge(sources, tmp_path / "all.db") == (0, 4, (), ())
    assert (tmp_path / "all.db").read_bytes() == before


def test_a_failed_run_does_not_replace_a_finished_one_in_either_order(tmp_path: Path) -> None:
    failed = ledger(tmp_path / "failed.db", record("a", FAILED, reason="out of memory"))
    done = ledger(tmp_path / "done.db", record("a", g_own=0.5))
    for number, sources in enumerate(([failed, done], [done, failed])):
        merge(sources, tmp_path / f"{number}.db")
        with Ledger.open(tmp_path / f"{number}.db", create=False) as merged:
            assert [(r.status, r.g_own, r.reason) for r in merged.records()] == [(DONE, 0.5, None)]


def test_checks_of_other_windows_and_examples_of_other_runs_are_added_and_known_ones_kept(tmp_path: Path) -> None:
    one, two = ledger(tmp_path / "one.db"), ledger(tmp_path / "two.db", check=CHECK._replace(windows="w2"))
    with Ledger.open(one) as first, Ledger.open(two) as second:
        first.write(record("a"), example("a", 1.0))
        second.write(record("a"), example("a", 2.0))
        second.write(record("b"), example("b", 3.0))
    merge([two], one)
    with Ledger.open(one, create=False) as merged:
        assert merged.checks() == [CHECK, CHECK._replace(windows="w2")]
        assert [one.x[0] for one in merged.examples(["a", "b"])] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"g_own": 0.5021}, "g_own is 0.5 and 0.5021"),
        ({"mse": 0.5001}, "mse is 0.5 and 0.5001"),
        ({"g_own": None}, "g_own is 0.5 and absent"),
        ({"status": EXCLUDED}, "status is done and excluded"),
        ({"g_own_steps": "[0.1, 0.3]"}, "g_own_steps is [0.1, 0.2] and [0.1, 0.3]"),
    ],
)
def test_contradictions_are_named_and_nothing_is_written(tmp_path: Path, other: dict[str, Any], sentence: str) -> None:
    base = {"g_own": 0.5, "mse": 0.5, "g_own_steps": "[0.1, 0.2]"}
    one = ledger(tmp_path / "one.db", record("a", **base))
    two = ledger(tmp_path / "two.db", record("a", **(base | other)), record("new"))
    with pytest.raises(LedgerError, match="1 of the runs contradict each other") as refused:
        merge([two], one)
    assert sentence in str(refused.value)
    assert "m d/H T0 96x24 seed 0" in str(refused.value)
    with Ledger.open(one, create=False) as opened:
        assert [r.key for r in opened.records()] == ["a"]


def test_a_gain_that_near_ties_explain_is_kept_and_shown(tmp_path: Path) -> None:
    one, two = (ledger(tmp_path / f"{g}.db", record("a", g_own=g)) for g in (0.5, 0.5006))
    found = merge([two], one)
    assert (found.added, found.known) == (0, 1)
    assert found.tied == ("m d/H T0 96x24 seed 0: g_own is 0.5 and 0.5006 (0.5006.db)",)
    with Ledger.open(one, create=False) as opened:
        assert [r.g_own for r in opened.records()] == [0.5]


def test_of_many_contradictions_ten_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    sources = [ledger(tmp_path / f"{g}.db", *(record(f"k{n}", g_own=g) for n in range(13))) for g in (0.5, 0.6)]
    with pytest.raises(LedgerError, match="13 of the runs contradict each other") as refused:
        merge(sources, tmp_path / "new.db")
    lines = str(refused.value).splitlines()
    assert len(lines) == 12
    assert lines[-1].strip() == "… and 3 more"


def test_a_refused_merge_leaves_no_file(tmp_path: Path) -> None:
    sources = [ledger(tmp_path / f"{g}.db", record("a", g_own=g)) for g in (0.5, 0.6)]
    with pytest.raises(LedgerError, match="contradict each other"):
        merge(sources, tmp_path / "new.db")
    assert list(tmp_path.glob("new.db*")) == []


def test_a_check_that_passed_in_one_ledger_only_is_a_contradiction(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one.db")
    two = ledger(tmp_path / "two.db", check=CHECK._replace(passed=False))
    with pytest.raises(LedgerError, match="the check derivative passed in one of them only"):
        merge([two], one)


def test_a_ledger_is_not_merged_into_itself_and_an_absent_source_creates_no_file(tmp_path: Path) -> None:
    one = ledger(tmp_path / "one.db")
    with pytest.raises(LedgerError, match="into itself"):
        merge([one], one)
    with pytest.raises(LedgerError, match="does not exist"):
        merge([one, tmp_path / "absent.db"], tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_of_a_damaged_source_the_readable_runs_are_added_and_the_lost_ones_counted(tmp_path: Path) -> None:
    written = {f"k{n:03}": record(f"k{n:03}", reason="r" * 500, g_own=n) for n in range(60)}
    source = ledger(tmp_path / "damaged.db", *written.values())
    overwrite_a_page_of_runs(source)
    before = source.read_bytes()
    result = merge([source], tmp_path / "saved.db")
    assert source.read_bytes() == before
    lost = [line for line in result.damaged if "its page cannot be read" in line]
    assert result.added + len(lost) == 60
    assert all("damaged.db: run (key k0" in line for line in lost)
    assert 0 < result.added < 60
    with Ledger.open(tmp_path / "saved.db", create=False) as saved:
        saved_runs = {one.key: one for one in saved.records()}
        assert saved.integrity() == []
    assert len(saved_runs) == result.added
    assert saved_runs == {key: written[key] for key in saved_runs}


def test_two_processes_merge_into_one_new_ledger_at_the_same_moment(tmp_path: Path) -> None:
    code = (
        "import sys; from hrx.records.merge import merge\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(*merge([sys.argv[1]], sys.argv[2]))\n"
    )
    sources = [
        ledger(tmp_path / f"{name}.db", *(record(f"{name}{n}") for n in range(50)), record("both", g_own=0.5))
        for name in "ab"
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(source), str(tmp_path / "all.db")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for source in sources
    ]  # fmt: skip
    assert [process.stdout.readline() for process in processes if process.stdout] == ["ready\n"] * 2
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(outputs) == ["50 1 () ()\n", "51 0 () ()\n"]
    with Ledger.open(tmp_path / "all.db", create=False) as merged:
        assert {one.key for one in merged.records()} == {f"{name}{n}" for name in "ab" for n in range(50)} | {"both"}
