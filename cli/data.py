"""`hrx data fetch` and `hrx data check`: the official download of GIFT-Eval, and whether what is here is right."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from hrx.cli.terminal import StatusLine, show
from hrx.errors import Exit
from hrx.gift_eval import data_root
from hrx.gift_eval.catalogue import Folder, choose
from hrx.gift_eval.download import Checked, State, check, extra_files, fetch


def data(options: argparse.Namespace) -> int:
    """The verb."""
    root, chosen = data_root(options.data), choose(options.names)
    act = _fetch if options.action == "fetch" else _check
    return act(root, chosen, options.json)


def _fetch(root: Path, chosen: tuple[Folder, ...], as_json: bool) -> int:
    results = fetch(root, chosen)
    if as_json:
        print(json.dumps({"root": str(root), "folders": [_named(each._asdict()) for each in results]}, indent=1))
    else:
        for each in results:
            if each.bytes:
                show(f"{each.folder}: {_size(each.bytes)} fetched")
        right = sum(each.state is State.RIGHT for each in results)
        show(f"{right} of {len(results)} folders are in {root} and verified.")
    for reason in dict.fromkeys(each.reason for each in results if each.reason):
        print(f"hrx data: {reason}", file=sys.stderr)
    return _exit(each.state for each in results)


def _check(root: Path, chosen: tuple[Folder, ...], as_json: bool) -> int:
    line = StatusLine()
    results = check(root, chosen, report=lambda folder: line.say(f"{folder.name}: {_size(folder.bytes)}"))
    line.clear()
    extra = extra_files(root, chosen)
    if as_json:
        folders = [_named(each._asdict() | {"problems": [one._asdict() for one in each.problems]}) for each in results]
        print(json.dumps({"root": str(root), "folders": folders, "extra": extra}, indent=1))
    else:
        show(_report(root, results, extra))
    return _exit(each.state for each in results)


def _report(root: Path, results: list[Checked], extra: list[str]) -> str:
    lines = [f"{problem.path}: {problem.reason}" for each in results for problem in each.problems if _partly(each)]
    absent = [each.folder for each in results if each.problems and not _partly(each)]
    if absent:
        lines.append(f"Not here: {', '.join(absent)}.")
    if extra:
        lines.append(f"Extra, not part of GIFT-Eval: {', '.join(extra)}.")
    right = sum(each.state is State.RIGHT for each in results)
    lines.append(f"{right} of {len(results)} folders in {root} are right.")
    if right < len(results):
        lines.append("`hrx data fetch` brings what is missing and replaces what is damaged.")
    return "\n".join(lines)


def _partly(checked: Checked) -> bool:
    """Whether something of the folder is here; of a folder that is not, its three files need no line each."""
    return checked.state is State.DAMAGED or len(checked.problems) < 3


def _named(result: dict[str, object]) -> dict[str, object]:
    return {"name": result.pop("folder"), **result}


def _exit(states: Iterable[State]) -> int:
    return Exit.DONE if all(state is State.RIGHT for state in states) else Exit.INCOMPLETE


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
