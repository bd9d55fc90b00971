"""`hrx compare`: two checkpoints on the same runs. Every report is written before the exit code is decided."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hrx.cli.terminal import refuse_ledger, show, terminal_width, write
from hrx.errors import HrxError
from hrx.reports import compare as make_comparison
from hrx.reports import compare_report, read

STDOUT = Path("-")
_PIPED_WIDTH = 100


def compare(options: argparse.Namespace) -> int:
    """Compares, reports, and returns the exit code."""
    files = {"--summary": options.summary, "--junit": options.junit, "--json": options.json}
    for option, path in files.items():
        if path is not None and path != STDOUT:
            refuse_ledger(path, option)
    if options.new is None and not (options.base_model and options.new_model):
        raise HrxError(
            f"Only one ledger was given ({options.base}). Give a second one, "
            "or name two models of this one with --base-model and --new-model."
        )
    base = read(options.base)
    comparison = make_comparison(
        base,
        base if options.new is None else read(options.new),
        options.gate,
        base_model=options.base_model,
        new_model=options.new_model,
        strict=options.strict,
        informational=options.informational,
        min_pairs=options.min_pairs,
    )
    if options.summary:
        write(options.summary, compare_report.markdown(comparison), "--summary")
    if options.junit:
        write(options.junit, compare_report.junit(comparison), "--junit")
    report = json.dumps(compare_report.as_json(comparison), indent=1, allow_nan=False) + "\n"
    if options.json == STDOUT:
        sys.stdout.write(report)
    else:
        if options.json:
            write(options.json, report, "--json")
        show(compare_report.text(comparison, terminal_width(_PIPED_WIDTH)))
    return comparison.exit
