"""Why runs were not scored: reasons, counted and put together."""

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from hrx.reports.text import clean, counted, hanging, shorten

NO_REASON = "no reason was recorded"
INDENT = "  "
LONGEST_REASON = 200
_MOST_REASONS = 8


def count_reasons(runs: pd.DataFrame, status: str) -> dict[str, int]:
    """How many runs of a status have which reason, most frequent first."""
    reasons = runs.loc[runs["status"] == status, "reason"].fillna(NO_REASON)
    return {str(reason): int(count) for reason, count in reasons.value_counts().items()}


class ReasonKind(NamedTuple):
    """Reasons that agree up to their first colon."""

    kind: str
    runs: int
    example: str
    """The most frequent of them, shortened, and how many others there are."""


def reason_kinds(reasons: dict[str, int]) -> list[ReasonKind]:
    """The kinds of the reasons, most frequent first."""
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(reason.partition(":")[0], []).append(reason)
    found = []
    for kind, alike in kinds.items():
        more = f" (and {len(alike) - 1} more like it)" if len(alike) > 1 else ""
        runs = sum(reasons[reason] for reason in alike)
        found.append(ReasonKind(kind, runs, shorten(clean(alike[0]), LONGEST_REASON) + more))
    return sorted(found, key=lambda one: -one.runs)


def reason_lines(title: str, reasons: dict[str, int], width: int) -> Iterator[str]:
    """The lines of a summary with the most frequent reasons."""
    if not reasons:
        return
    total = sum(reasons.values())
    yield from ("", f"{INDENT}{title} ({counted(total, 'run')})")
    kinds = reason_kinds(reasons)
    shown = [(one.runs, one.example) for one in kinds[:_MOST_REASONS]]
    if rest := kinds[_MOST_REASONS:]:
        others = f"for {counted(len(rest), 'other reason')}"
        shown.append((sum(one.runs for one in rest), others))
    for runs, text in shown:
        yield from hanging(f"{INDENT}{runs:>6}  ", text, width)
