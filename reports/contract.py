"""Contract of a forecaster for readers: a table, JUnit XML, a page with the reach as a picture, and two compared."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from hrx import __version__
from hrx.errors import Exit
from hrx.records.contract import Contract, Finding
from hrx.reports.page import made_by, render_macro, render_page
from hrx.reports.text import clean, hanging, number_or_none, render_table, wrap

_UNREAD = (0.62, 0.64, 0.66)
_CLOSE = 0.1
"""Relative change of a figure below which two contracts say the same of it: rounding differs between releases."""
_SMALL = 1e-6
_LEFT, _WIDTH, _HEIGHT = 46, 760, 260
"""Of the picture: the room for step numbers, and the size of the matrix, in its own units."""


def verdict_word(one: Finding) -> str:
    return "DOES NOT HOLD" if one.failed else one.verdict


def figure_text(one: Finding) -> str:
    return "-" if math.isnan(one.figure) else f"{one.figure:.2g}"


def contract_text(contract: Contract, width: int = 100) -> str:
    """Table of verdicts, then a sentence for each property, then what failed."""
    rows = [(one.name, verdict_word(one), figure_text(one), one.expectation) for one in contract.findings]
    table = render_table(("property", "verdict", "figure", "expectation"), rows, width)
    lead = max((len(one.name) for one in contract.findings), default=0) + 2
    says = [line for one in contract.findings for line in hanging(one.name.ljust(lead), one.says, width)]
    return "\n".join([table, *says, "", *wrap(summary(contract), width)]) + "\n"


def summary(contract: Contract) -> str:
    """One sentence for the whole contract."""
    about = f"{contract.model} at {contract.setting}, {contract.calls} official calls ({contract.official_call})"
    return f"{about}: {_findings(contract)}"


def _findings(contract: Contract) -> str:
    failed = [one.name for one in contract.findings if one.failed]
    facts = [one.name for one in contract.findings if one.verdict == "does not hold" and not one.required]
    stopped = [one.name for one in contract.findings if one.verdict == "not run"]
    parts = [f"Required and does not hold: {', '.join(failed)}." if failed else "Nothing that is required fails."]
    if stopped:
        parts.append(f"Not run: {', '.join(stopped)}.")
    if facts:
        parts.append(f"Facts to know: {', '.join(facts)} {'does' if len(facts) == 1 else 'do'} not hold, by choice.")
    return " ".join(parts)


def contract_junit(contract: Contract) -> str:
    """One test case per property; what is not required and does not hold, and what was not run, is skipped."""
    tags = [
        "failure" if one.failed else "" if one.verdict in ("holds", "not stated") else "skipped"
        for one in contract.findings
    ]
    counts = {"tests": len(tags), "failures": tags.count("failure"), "errors": 0, "skipped": tags.count("skipped")}
    attributes = {"name": "hrx contract", **{name: str(count) for name, count in counts.items()}}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", attributes)
    for one, tag in zip(contract.findings, tags, strict=True):
        about = {
            "classname": clean(f"{contract.model}.{contract.setting}"),
            "name": one.name,
            "time": f"{one.seconds:.3f}",
        }
        case = ElementTree.SubElement(suite, "testcase", about)
        if tag:
            message = clean(f"{one.verdict}: {one.says}")
            ElementTree.SubElement(case, tag, {"message": message}).text = message
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def contract_page(contract: Contract) -> str:
    """HTML page: the reach as a picture, and every property with its figure and its sentence."""
    heads, rows, reach, says = _parts(contract)
    return render_page(
        "contract.html",
        ("core.js",),
        {},
        title=f"{contract.model} – hrx contract",
        kicker="hrx verify --contract",
        heading=f"What {contract.model} promises",
        facts=f"{contract.official_call} ({contract.library or 'a function'}), lookback {contract.lookback}, horizon "
        f"{contract.horizon}, {contract.calls} official calls",
        summary=_findings(contract),
        tone="contrary" if contract.exit == Exit.GATE_FAILED else "yes",
        heads=heads,
        rows=rows,
        reach=reach,
        says=says,
        footer=made_by(),
    )


def contracts_section(contracts: Sequence[Contract]) -> Markup:
    """Section of an audit's page; nothing without contracts."""
    shown = [(f"{one.model} at {one.setting}", _findings(one), *_parts(one)) for one in contracts]
    return render_macro("contract_parts.html", "section", shown) if shown else Markup()


def contract_markdown(contract: Contract) -> str:
    """Section for a model card: what was found, and a table of the properties."""
    rows = [(f"`{one.name}`", verdict_word(one), figure_text(one), one.says) for one in contract.findings]
    head = ("property", "verdict", "figure", "what it means"), ("---",) * 4
    table = [f"| {' | '.join(clean(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in (*head, *rows)]
    about = f"Measured by `hrx verify --contract` (hrx {__version__}) on `{contract.official_call}`, "
    about += f"{contract.library or 'a function'}, at a lookback of {contract.lookback} and a horizon of "
    about += f"{contract.horizon}."
    return "\n".join(["## Contract", "", about, _findings(contract), "", *table, ""])


def _parts(contract: Contract) -> tuple[object, object, _Reach | None, str]:
    """Heads and rows of the table of properties, the picture, and what it says."""
    wide = ("what it means", "wrap"), ("expectation", "wrap")
    heads = (("property", ""), ("verdict", ""), ("figure", "number"), *wide)
    rows = [(one.name, verdict_word(one), figure_text(one), one.says, one.expectation) for one in contract.findings]
    says = next((one.says for one in contract.findings if one.name == "reach"), "")
    return heads, rows, _picture(contract) if len(contract.reach) else None, says


class _Reach(NamedTuple):
    """The picture for its template: an image of one pixel per input and step, and where its axes have numbers."""

    image: str
    left: int
    width: int
    height: int
    lags: Sequence[tuple[float, str]]
    steps: Sequence[tuple[float, str]]


def _picture(contract: Contract) -> _Reach:
    from matplotlib import colormaps
    from matplotlib.image import imsave

    changes = np.array(contract.reach)
    read = changes > 0
    size = np.log10(np.where(read, np.minimum(changes, 1e30), 1.0))
    low = max(size[read].min(), size[read].max() - 4) if read.any() else 0.0
    high = size[read].max() if read.any() else 1.0
    colours = colormaps["viridis"](np.clip((size - low) / max(high - low, 1e-9), 0, 1))[..., :3]
    colours[~read] = _UNREAD
    file = io.BytesIO()
    imsave(file, colours, format="png")
    steps, lookback = changes.shape
    lags = dict.fromkeys((1, max(1, lookback // 2), lookback))
    return _Reach(
        "data:image/png;base64," + base64.b64encode(file.getvalue()).decode(),
        _LEFT,
        _WIDTH,
        _HEIGHT,
        [(_LEFT + _WIDTH * (1 - (lag - 0.5) / lookback), f"{lag} back") for lag in lags],
        [((step - 0.5) / steps * _HEIGHT, str(step)) for step in dict.fromkeys((1, max(1, steps // 2), steps))],
    )


class Change(NamedTuple):
    """One property in two contracts."""

    name: str
    base: Finding | None
    new: Finding | None
    note: str = ""

    @property
    def broken(self) -> bool:
        """Whether it held and does not hold any more, which a missing or unfinished measurement leaves open."""
        held = self.base is not None and self.base.verdict == "holds"
        return held and self.new is not None and self.new.verdict == "does not hold"

    @property
    def differs(self) -> bool:
        if self.base is None or self.new is None or self.base.verdict != self.new.verdict:
            return True
        if self.base.name == "cost":  # a time
            return False
        first, second = number_or_none(self.base.figure), number_or_none(self.new.figure)
        if first is None or second is None:
            return first is not second
        return bool(self.note) or abs(first - second) > max(_CLOSE * max(abs(first), abs(second)), _SMALL)


def compare_contracts(base: Contract, new: Contract) -> list[Change]:
    """Return every property of either contract; `note` says how many cells of the reach differ."""
    names = dict.fromkeys(one.name for contract in (base, new) for one in contract.findings)
    note = ""
    if len(base.reach) and len(new.reach):
        first, second = np.array(base.reach) > 0, np.array(new.reach) > 0
        cells = int((first != second).sum()) if first.shape == second.shape else -1
        note = f"{cells} of {first.size} pairs of step and input" if cells > 0 else "other lengths" if cells else ""
    return [Change(name, base.of(name), new.of(name), note if name == "reach" else "") for name in names]


def comparison_text(base: Contract, new: Contract, width: int = 100) -> str:
    """Changed properties with both figures, and a verdict."""
    changes = compare_contracts(base, new)
    rows = [(one.name, *_side(one.base), *_side(one.new), one.note) for one in changes if one.differs]
    lines = [
        f"{name}  {c.model} at {c.setting} ({c.library or 'a function'})" for name, c in (("base", base), ("new ", new))
    ]
    if rows:
        lines += ["", render_table(("property", "base", "figure", "new", "figure", "differs"), rows, width)]
        says = [(f"{one.name}: ", one.new.says) for one in changes if one.differs and one.new]
        lines += [line for lead, text in says for line in hanging(lead, text, width)]
    broken = [one.name for one in changes if one.broken]
    same = len(changes) - len(rows)
    verdict = f"{', '.join(broken)} held and does not hold any more" if broken else "nothing that held is broken"
    lines += [
        "",
        *hanging(
            "", f"Verdict: {verdict}; {len(rows)} of {len(changes)} properties differ, {same} are as before.", width
        ),
    ]
    return "\n".join(lines) + "\n"


def comparison_json(base: Contract, new: Contract) -> dict[str, object]:
    """Object of `hrx compare A.json B.json --json`."""
    about = {
        side: {name: getattr(one, name) for name in ("model", "library", "setting")}
        for side, one in {"base": base, "new": new}.items()
    }
    changes = [_change_json(one) for one in compare_contracts(base, new) if one.differs]
    return {**about, "changes": changes, "exit": int(comparison_exit(base, new))}


def comparison_exit(base: Contract, new: Contract) -> Exit:
    """1 where a property held and does not hold any more."""
    return Exit.GATE_FAILED if any(one.broken for one in compare_contracts(base, new)) else Exit.DONE


def _change_json(change: Change) -> dict[str, object]:
    found = {
        side: one and {"verdict": one.verdict, "figure": number_or_none(one.figure)}
        for side, one in {"base": change.base, "new": change.new}.items()
    }
    return {"name": change.name, **found, "broken": change.broken, "note": change.note}


def _side(one: Finding | None) -> tuple[str, str]:
    return ("-", "-") if one is None else (one.verdict, figure_text(one))
