"""Measures the contract of every family that this interpreter runs and writes the tables of docs/contracts.md.

Checkpoints are tiny, with random weights. Rows of other families are kept: `make contracts` runs this script in each
environment in turn. Names of families as arguments measure these only. The scripts of the page use a library alone,
with `path` for the tiny checkpoint; what each prints is written below it.
"""

import io
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from helpers import tiny

from hrx.adapters import load
from hrx.adapters.families import families as known
from hrx.audit.contract import CHANNEL_PROPERTIES, PROPERTIES, Examination, fitting_setting
from hrx.audit.official_call import OfficialCall
from hrx.audit.properties import windows
from hrx.records.contract import Contract

PAGE = Path(__file__).parents[1] / "docs" / "contracts.md"
SHOWN = tuple(name for name in PROPERTIES if name not in ("process", "reach", "missing", "cost", *CHANNEL_PROPERTIES))
GAPS = ("leading", "inner", "trailing", "all")
COLUMNS = {
    "verdicts": ("family", "setting", *SHOWN, "library"),
    "gaps": ("family", *GAPS),
    "channels": ("family", *CHANNEL_PROPERTIES),
}
HEADS = {part: f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n" for part, names in COLUMNS.items()}
ENTRY = re.compile(r"^(?:\| |- \*\*)([\w.-]+)(?:(?!^\| |^- \*\*)[\s\S])*", re.M)
"""A table row or a list item, with the family that it begins with."""
WORDS = {"holds": "yes", "does not hold": "**no**", "does not apply": "–", "not stated": "–", "not run": "?"}
DECILES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def _moirai_2(model: Any, x: Tensor, h: int) -> Tensor:
    from uni2ts.model.moirai2 import Moirai2Forecast

    library = Moirai2Forecast(h, 1, 0, 0, x.shape[1], module=model.module)
    return torch.from_numpy(library.predict(list(x.numpy().copy()))).mT


QUANTILES: dict[str, Callable[[Any, Tensor, int], Tensor]] = {
    "moirai-2": _moirai_2,
    "patchtst-fm": lambda m, x, h: m.module(past_values=x[..., None], prediction_length=h).quantile_outputs[..., 0].mT,
    "flowstate": lambda m, x, h: (
        m.module(past_values=x[..., None], prediction_length=h, scale_factor=1.0).quantile_outputs[..., 0].mT
    ),
}
"""Quantiles `(B, H, Q)` of the library's call, where the adapter does not pass them on."""


class Script(NamedTuple):
    """A surprising cell, by the library alone: a section of the page, whose code is written by hand."""

    family: str
    title: str
    code: str
    printed: str


SCRIPT = re.compile(
    r"^### ([\w.-]+): ([^\n]+)\n\n<!-- not run: [^\n]+ -->\n\n?```python\n(.*?)```\n\n```\n(.*?)\n```", re.S | re.M
)


def scripts(page: str) -> list[Script]:
    """Sections of the page with a script and what it prints."""
    return [Script(*match.groups()) for match in SCRIPT.finditer(page)]


def run_script(script: Script, path: Path) -> str:
    """What a script prints on a checkpoint."""
    torch.manual_seed(0)
    printed = io.StringIO()
    with redirect_stdout(printed), torch.no_grad():
        exec(script.code, {"torch": torch, "path": str(path)})
    return "\n".join(line for line in printed.getvalue().splitlines() if not line.startswith("Loading weights"))


def measure(name: str, path: Path) -> Contract:
    """The contract of a checkpoint, with the quantiles of its library's call."""
    model = load(str(path))
    lookback, horizon = fitting_setting(model.limits)
    given = QUANTILES.get(name)
    call = OfficialCall(model, quantiles=given and partial(given, model))
    return Examination(call, windows(lookback), horizon, known()[model.identity.family].promises).contract()


def rows(name: str, contract: Contract) -> dict[str, list[str]]:
    """Lines for the parts of the page: verdicts, gaps, and a sentence for what does not hold."""
    cells = [WORDS[one.verdict] for one in contract.findings if one.name in SHOWN]
    says = {one.name: one.says for one in contract.findings}
    parts = re.findall(r"([\w, ]+): ([\w ]+)", says["missing"].removeprefix("Missing values, "))
    gaps = {gap: kind for names, kind in parts for gap in names.strip().split(", ")}
    facts = [one for one in contract.findings if one.verdict == "does not hold" and one.name != "missing"]
    channels = [WORDS[one.verdict] for one in contract.findings if one.name in CHANNEL_PROPERTIES]
    takes = set(channels) != {WORDS["does not apply"]}
    return {
        "verdicts": [f"| {' | '.join((name, contract.setting, *cells, contract.library))} |"],
        "gaps": [f"| {' | '.join((name, *(gaps[gap] for gap in GAPS)))} |"],
        "channels": [f"| {' | '.join((name, *channels))} |"] if takes else [],
        "facts": [f"- **{name}**, {one.name}{' (promised)' if one.required else ''}: {one.says}" for one in facts],
    }


def merged(page: str, part: str, new: dict[str, list[str]], head: str = "") -> str:
    """The page with a part's entries replaced for the families that were measured; others are kept."""
    begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->"
    before, _, rest = page.partition(begin)
    old, _, after = rest.partition(end)
    entries = [(match[1], match[0].rstrip("\n")) for match in ENTRY.finditer(old)]
    kept = [(name, text) for name, text in entries if name not in ("family", "---", *new)]
    every = sorted([*kept, *((name, text) for name, texts in new.items() for text in texts)], key=lambda one: one[0])
    return "".join([before, begin, head, *(f"{text}\n" for _, text in every), end, after])


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    for name, family in tiny.families().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder, family.context():
            path = family.build(Path(folder) / name)
            found = rows(name, measure(name, path))
            page = PAGE.read_text(encoding="utf-8")
            for script in scripts(page):
                if script.family == name:
                    head, _, rest = page.partition(f"### {name}: {script.title}\n")
                    shown = rest.replace(f"```\n{script.printed}\n```", f"```\n{run_script(script, path)}\n```", 1)
                    page = f"{head}### {name}: {script.title}\n{shown}"
        for part, entries in found.items():
            page = merged(page, part, {name: entries}, HEADS.get(part, ""))
        PAGE.write_text(page, encoding="utf-8")
        print(*found["verdicts"])


if __name__ == "__main__":
    main()
