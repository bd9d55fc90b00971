"""`hrx models` and `hrx datasets`: what is known, what is installed, what is on disk."""

from __future__ import annotations

import argparse
import json

from hrx.adapters import EMBEDDED, families, short_names
from hrx.cli.screen import show
from hrx.errors import Exit
from hrx.gift_eval import open_source
from hrx.reports import render_table


def models(options: argparse.Namespace) -> int:
    """The embedded checkpoint, the short names, and the families with their libraries."""
    known = families()
    listed = [
        {
            "name": name,
            "family": family,
            "source": source,
            "library": known[family].distribution,
            "installed": known[family].installed,
            "install": known[family].install_command,
        }
        for name, family, source in [
            (EMBEDDED, "chronos-bolt", "embedded"),
            *((released.name, released.family, released.hub_id) for released in short_names().values()),
        ]
    ]
    if options.json:
        print(json.dumps(listed, indent=1))
        return Exit.DONE
    rows = [(m["name"], m["family"], m["source"], m["installed"] or f"no: {m['install']}") for m in listed]
    show(render_table(("name", "family", "source", "installed"), rows))
    show("\nAlso: a hub id, a local directory, FAMILY:PATH, module:FILE.py:FACTORY.")
    return Exit.DONE


def datasets(options: argparse.Namespace) -> int:
    """The datasets of a source. Series are counted, not read."""
    found = open_source(options.data)
    listed = [
        {
            "name": dataset.name,
            "frequency": dataset.frequency,
            "season": dataset.season,
            "domain": dataset.domain,
            "series": dataset.count,
            "damage": dataset.damage,
        }
        for dataset in found
    ]
    if options.json:
        print(json.dumps(listed, indent=1))
        return Exit.DONE
    rows = [(d.name, d.frequency, str(d.season), str(d.count), d.damage or d.domain) for d in found]
    show(render_table(("name", "frequency", "season", "series", "domain"), rows))
    return Exit.DONE
