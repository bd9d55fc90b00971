"""`hrx merge` and `hrx export`: what can be done with ledgers without measuring anything."""

from __future__ import annotations

import argparse

from hrx.audit.ledger.export import export as write_out
from hrx.audit.ledger.merge import merge as join
from hrx.cli.terminal import refuse_ledger, show
from hrx.errors import Exit


def merge(options: argparse.Namespace) -> int:
    """Joins ledgers; exit code 3 where a damaged one could not give all of its runs."""
    done = join(options.ledgers, options.into)
    show(f"{options.into}: {done.added} runs added, {done.known} known already.")
    if done.unreadable:
        show(f"{done.unreadable} runs of a damaged ledger cannot be read any more: audit them again into this one.")
    return Exit.INCOMPLETE if done.unreadable else Exit.DONE


def export(options: argparse.Namespace) -> int:
    """Writes the records of a ledger for other tools."""
    out = options.out or options.ledger.with_suffix(f".{options.format}")
    refuse_ledger(out, "--out")
    show(f"{out}: {write_out(options.ledger, out, options.format)} runs.")
    return Exit.DONE
