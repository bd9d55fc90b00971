"""Contract of a forecaster: what was found about each property of its official call, as data and as a JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from hrx.errors import Exit, HrxError

Verdict = Literal["holds", "does not hold", "does not apply", "not stated", "not run"]
"""`not stated`: a fact to know, without an expectation. `not run`: calls or time ended, which never counts as held."""
FORMAT = 1
"""Version of the file."""


@dataclass(frozen=True)
class Finding:
    """What was found about one property."""

    name: str
    verdict: Verdict
    figure: float
    """What the verdict rests on, in the unit that the expectation names; NaN where there is none."""
    expectation: str
    says: str
    """One sentence for a user."""
    required: bool
    """Whether every forecaster must have the property, or this family's documentation promises it."""
    calls: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether something that is required does not hold; a choice of a library is a fact and no failure."""
        return self.required and self.verdict == "does not hold"


@dataclass(frozen=True)
class Contract:
    """Every finding about one model at one setting."""

    model: str
    library: str
    official_call: str
    lookback: int
    horizon: int
    findings: Sequence[Finding]
    calls: int
    """Official calls in all, those of properties that only others rest on included."""
    reach: Sequence[Sequence[float]] = field(default=(), repr=False)
    """`(H, L)`: how far a forecast step moves when an input is replaced, in standard deviations of the window."""

    @property
    def setting(self) -> str:
        return f"{self.lookback}x{self.horizon}"

    @property
    def exit(self) -> Exit:
        """1 where a required property does not hold, 3 where one was not run."""
        if any(one.failed for one in self.findings):
            return Exit.GATE_FAILED
        return Exit.INCOMPLETE if any(one.verdict == "not run" for one in self.findings) else Exit.DONE

    def of(self, name: str) -> Finding | None:
        """Finding about a property, or None if it is not in this contract."""
        return next((one for one in self.findings if one.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """Object of `hrx verify --contract --json`, with null for a missing number."""
        about = {name: getattr(self, name) for name in ("model", "library", "official_call", "setting", "calls")}
        found = [asdict(one) | {"figure": one.figure if math.isfinite(one.figure) else None} for one in self.findings]
        return {"contract": FORMAT, **about, "properties": found, "reach": [list(row) for row in self.reach]}


def read_contract(path: Path) -> Contract:
    """Return the contract that `hrx verify --contract --json` printed into a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HrxError(f"{path} cannot be read as a contract: {error}. Write one with: {_COMMAND}") from error
    if not isinstance(value, dict) or value.get("contract") != FORMAT:
        raise HrxError(f"{path} is not a contract of format {FORMAT}. Write one with: {_COMMAND}")
    try:
        lookback, horizon = map(int, value["setting"].split("x"))
        findings = tuple(map(_finding, value["properties"]))
        model, library, official_call = (str(value[name]) for name in ("model", "library", "official_call"))
        reach = tuple(map(tuple, value["reach"]))
        return Contract(model, library, official_call, lookback, horizon, findings, int(value["calls"]), reach)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HrxError(f"{path} is damaged: {error!r}. Write it again with: {_COMMAND}") from error


_COMMAND = "hrx verify MODEL --contract --json > FILE.json"


def _finding(value: Mapping[str, Any]) -> Finding:
    found = Finding(**{**value, "figure": math.nan if value["figure"] is None else float(value["figure"])})
    if found.verdict not in get_args(Verdict):
        raise ValueError(f"verdict {found.verdict!r}")
    return found
