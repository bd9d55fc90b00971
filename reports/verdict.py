"""Verdict on runs that beat naive: what their clusters decide, in one sentence, and the figures behind it."""

from dataclasses import dataclass

from hrx.records.quantities import SHORTEST_SPAN
from hrx.reports.statistics import FEWEST_SIGN, MOST_CLUSTERS, Evidence
from hrx.reports.text import counted

EQUIVALENCE_BOUND = 0.05
"""Gains within it are called equal. The paper's runs of rank below 1.1, whose rows hardly differ, gain 0.015 in the
median, and those just above gain 0.074."""


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
