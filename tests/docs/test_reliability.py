"""docs/reliability.md: its writer adds up what a run has measured."""

import re

from faults.write_reliability import BEGIN, END, updated


def test_figures_of_one_fault_are_added_up_and_replace_the_table() -> None:
    figures = [{"suite": "b", "fault": "x", "made": 2, "handled": 1}] * 2
    figures.append({"suite": "a", "fault": "y", "made": 1, "handled": 1})
    page = updated(f"before\n{BEGIN}\n| old |\n{END}\nafter", figures)
    assert page.startswith("before\n")
    assert page.endswith("\nafter")
    assert re.findall(r"^\| [ab].*", page, re.M) == ["| a | y | 1 | 1 |", "| b | x | 4 | 2 |"]
    assert "old" not in page
