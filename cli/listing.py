"""`hrx models`: the known models, and which are installed."""

from __future__ import annotations

import argparse
import json

from hrx.adapters import EMBEDDED, families, short_names
from hrx.adapters.model_card import published_card
from hrx.cli.terminal import show, terminal_width
from hrx.errors import Exit
from hrx.reports import render_table

_PIPED_WIDTH = 80


def models(options: argparse.Namespace) -> int:
    """The embedded checkpoint and the short names, with their model cards and whether their library is installed."""
    known = families()
    listed = [
        {
            "name": name,
            "family": family,
            "source": source,
            "library": known[family].distribution,
            "installed": known[family].installed,
            "install": known[family].install_command,
            **_declared(name if source == "embedded" else source),
        }
        for name, family, source in [
            (EMBEDDED, "chronos-bolt", "embedded"),
            *((released.name, released.family, released.hub_id) for released in short_names().values()),
        ]
    ]
    if options.json:
        print(json.dumps(listed, indent=1))
        return Exit.DONE
    rows = [
        (str(m["name"]), _size(m["parameters"]), str(m["licence"]), str(m["gift_eval"]), str(m["installed"] or "no"))
        for m in listed
    ]
    headings = ("name", "size", "licence", "GIFT-Eval", "installed")
    show(render_table(headings, rows, terminal_width(_PIPED_WIDTH)))
    show("\nGIFT-Eval: the part of the benchmark that the model is declared to have been trained on. More with --json.")
    commands = dict.fromkeys(str(m["install"]) for m in listed if not m["installed"])
    show("".join(f"\nTo install a missing library: {command}" for command in commands).lstrip("\n"))
    show("Also: a hub id, a local directory, FAMILY:PATH, module:FILE.py:FACTORY.")
    return Exit.DONE


def _declared(hub_id: str) -> dict[str, object]:
    known = published_card(hub_id)
    if known.synthetic:
        seen = "nothing real"
    elif known.saw_all:
        seen = "training splits"
    elif known.seen is not None:
        seen = f"{len(known.seen)} datasets"
    else:
        seen = {"none": "nothing", "train": "in part", "test": "in part", None: "unknown"}[known.benchmark]
    return {
        "parameters": known.parameters,
        "licence": known.licence,
        "native_lookback": known.native_lookback,
        "native_horizon": known.native_horizon,
        "pretraining": known.pretraining,
        "gift_eval": seen,
        "seen": sorted(known.seen or ()),
        "sources": list(known.sources),
    }


def _size(parameters: object) -> str:
    if not isinstance(parameters, int):
        return "unknown"
    return f"{parameters / 1e6:.0f} M" if parameters >= 1e7 else f"{parameters / 1e6:.1f} M"
