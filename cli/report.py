"""`hrx report`: a ledger as a page."""

from __future__ import annotations

import argparse

from hrx.cli.terminal import show
from hrx.errors import Exit
from hrx.reports import write_report


def report(options: argparse.Namespace) -> int:
    """Writes the page and its figures, and prints where they are."""
    written = write_report(options.ledger, options.out)
    size = written.page.stat().st_size / 1e6
    show(f"{written.page}: {written.runs} runs, {size:.1f} MB. Open it in a browser; it needs no network.")
    show(f"Figures for print: {len(written.figures)} files in {options.out / 'figures'}")
    return Exit.DONE
