"""`hrx tables`: the paper's tables from a ledger, in one of six formats."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hrx.cli.output import write
from hrx.cli.screen import terminal_width
from hrx.errors import Exit, HrxError
from hrx.reports import ReportTable, read
from hrx.reports import tables as make_tables

SUFFIXES = {"text": "txt", "md": "md", "tex": "tex", "csv": "csv", "html": "html", "json": "json"}
_PIPED_WIDTH = 120
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>hrx tables</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; margin-top: 2.5rem }}
caption {{ font-weight: 600; text-align: left; padding-bottom: .4rem }}
th, td {{ padding: .2rem .7rem; text-align: left; overflow-wrap: anywhere; border-bottom: 1px solid #8884 }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }}
tbody th {{ font-weight: 400 }}
.bold {{ font-weight: 700 }}
.red {{ color: light-dark(#a81a26, #ff8a8f) }}
.blue {{ color: light-dark(#1a3e94, #8fb0ff) }}
.faint, .hrx-note {{ opacity: .75 }}
.section th {{ font-style: italic; padding-top: .6rem }}
</style>
{body}</html>
"""


def tables(options: argparse.Namespace) -> int:
    """Makes the tables and prints or writes them."""
    made = make_tables(
        read(options.ledger),
        options.table or None,
        against=options.against,
        estimator=options.estimator,
        fold=not options.pool_seeds,
    )
    if _is_folder(options.out):
        for table in made:
            write(options.out / f"{table.name}.{SUFFIXES[options.format]}", _rendered([table], options), "--out")
        print(f"{len(made)} tables in {options.out}", file=sys.stderr)
        return Exit.DONE
    if options.format == "csv" and len(made) > 1:
        raise HrxError(
            f"A CSV file holds one table, and there are {len(made)}: {', '.join(table.name for table in made)}. "
            "Name one with --table, or give a directory with --out, as in --out tables/."
        )
    text = _rendered(made, options)
    if options.out:
        write(Path(options.out), text, "--out")
    else:
        sys.stdout.write(text)
    return Exit.DONE


def _is_folder(out: Path | None) -> bool:
    return out is not None and (out.is_dir() or not out.suffix)


def _rendered(made: Sequence[ReportTable], options: argparse.Namespace) -> str:
    """All tables in one format, one below the other."""
    if options.format == "json":
        return json.dumps({"tables": [table.as_json() for table in made]}, indent=1, allow_nan=False) + "\n"
    width = terminal_width(_PIPED_WIDTH)
    formats: dict[str, Callable[[ReportTable], str]] = {
        "text": lambda table: table.to_text(width),
        "md": ReportTable.to_markdown,
        "tex": ReportTable.to_latex,
        "csv": ReportTable.to_csv,
        "html": ReportTable.to_html,
    }
    body = "\n".join(formats[options.format](table) for table in made)
    return _PAGE.format(body=body) if options.format == "html" else body
