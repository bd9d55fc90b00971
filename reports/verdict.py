"""Verdict on runs that beat naive: what their clusters decide, in one sentence, and the figures behind it."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hrx.records.quantities import SHORTEST_SPAN
from hrx.reports.statistics import FEWEST_SIGN, MOST_CLUSTERS, Evidence
from hrx.reports.text import counted

EQUIVALENCE_BOUND = 0.05
"""Gains within it are called equal. The paper's runs of rank below 1.1, whose rows hardly differ, gain 0.015 in the
median, and those just above gain 0.074."""


Answer = Literal["yes", "no", "reverse", "not decided", "too few"]


class Claim(NamedTuple):
    """A sentence of the finding, and what decides it."""

    says: str
    answer: Answer
    """Of the question: do different steps read different inputs, does the own row beat a shared vector."""
    decided: str
    """`decided: ` and the figures, or why it is not."""


_SAYS: dict[str, dict[Answer, str]] = {
    "g_margin": {
        "yes": "Different steps read different inputs.",
        "no": "Every step reads the same inputs.",
        "reverse": "Another step's row explains a step better than its own.",
    },
    "g_own": {
        "yes": "Own row beats a shared vector.",
        "no": "Own row and a shared vector are equal.",
        "reverse": "A shared vector beats the own row.",
    },
}


@dataclass(frozen=True)
class Finding:
    """What `g_own` and `g_margin` say, one value per cluster; docs/reading-a-report.md lists the rules."""

    own: Evidence
    margin: Evidence
    short: int
    """Configurations that are left out, since their forecasts span too little of the series."""
    bound: float
    """Gains within ± it are equal."""

    @property
    def headline(self) -> tuple[str, str]:
        """Tone (yes, partly, no, contrary or few) and headline of the verdict."""
        own, margin = self.own, self.margin
        if margin.n < FEWEST_SIGN:
            return "few", f"Too few {margin.units} to tell"
        if margin.side == "above":
            if own.side == "above":
                return "yes", "Reads different inputs for different steps"
            if own.side == "below":
                return "partly", "Rows belong to their steps, but one shared vector explains the forecast better"
            if own.within(self.bound):
                return "partly", "Rows belong to their steps, but one shared vector explains the forecast about as well"
            return "partly", "Rows belong to their steps; whether they explain it better than one vector is not decided"
        if margin.side == "below":
            return "contrary", "Contrary: a step is explained better by another step's row than by its own"
        if margin.within(self.bound):
            return "no", "What is read does not depend on the forecast step"
        return "few", "Not decided whether what is read depends on the forecast step"

    @property
    def claims(self) -> tuple[Claim, Claim]:
        """Both claims of the first screen; one that is not decided is the one that would be made."""
        return self._claim("g_margin", self.margin), self._claim("g_own", self.own)

    def _claim(self, name: str, found: Evidence) -> Claim:
        answers: dict[str, Answer] = {"above": "yes", "below": "reverse", "undecided": "not decided"}
        answer = answers[found.side]
        if found.n < FEWEST_SIGN:
            answer = "too few"
        elif answer == "not decided" and found.within(self.bound):
            answer = "no"
        decided = f"decided: {name} {_short(found)}, {found.counted}"
        if answer == "no":
            decided += f", within ±{self.bound:g}"
        elif answer == "too few":
            decided = f"not decided: {found.counted} of {FEWEST_SIGN} needed"
        elif answer == "not decided":
            decided = f"not {decided}"
        return Claim(_SAYS[name].get(answer, _SAYS[name]["yes"]), answer, decided)

    @property
    def figures(self) -> str:
        """Figures of the verdict, what they rest on, and what would decide where they do not."""
        own, margin, units = self.own, self.margin, self.margin.units
        tested = f", p = {margin.p:.2g}" if margin.n >= FEWEST_SIGN else ""
        positive = f"positive in {margin.positive} of {margin.counted}{tested}"
        said = [f"g_margin {margin}, {positive}; g_own {own}. {margin.about}"]
        if self.short:
            runs = f"{counted(self.short, 'configuration')} {'is' if self.short == 1 else 'are'} left out"
            said.append(f"{runs}: less than {SHORTEST_SPAN} horizons of test region make the variance too small.")
        undecided = [(name, one) for name, one in (("g_margin", margin), ("g_own", own)) if one.side == "undecided"]
        if margin.n < FEWEST_SIGN:
            said.append(f"A verdict needs {FEWEST_SIGN} {units} with runs that beat naive: audit more with --data.")
        elif undecided:
            name, one = undecided[0]
            more = f"about {one.needed} {units}" if one.needed else f"more than {MOST_CLUSTERS} {units}"
            equal = f"All of {name}'s interval lies within ±{self.bound:g}, which counts as equal."
            alike = f"If further {units} are alike, {more} would decide the sign of {name}."
            said.append(equal if one.within(self.bound) else alike)
        return " ".join(said)


def _short(found: Evidence) -> str:
    """The median cluster and its interval with two decimals."""
    point, low, high = found.known
    return f"{two(point)} [{two(low)}, {two(high)}]"


def two(value: float) -> str:
    """`+0.21`, `0.00`; a dash where there is none. A value is never rounded to the other side of zero."""
    if math.isnan(value):
        return "-"
    shown = f"{value:+.2f}"
    return "0.00" if shown in ("+0.00", "-0.00") else shown
