"""`hrx report`, `tables`, `compare`, `merge` and `export`: everything that reads ledgers and measures nothing."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hrx.audit.ledger.export import export as write_out
from hrx.audit.ledger.merge import merge as join
from hrx.cli.terminal import refuse_ledger, show, terminal_width, write
from hrx.errors import Exit, HrxError
from hrx.reports import ReportTable, compare_report, read, write_report
from hrx.reports import compare as make_comparison
from hrx.reports import tables as make_tables
from hrx.reports.table import html_page, latex_document, latex_frame
from hrx.reports.text import counted

SUFFIXES = {"text": "txt", "md": "md", "tex": "tex", "csv": "csv", "html": "html", "json": "json"}
STDOUT = Path("-")
_TABLES_WIDTH, _COMPARE_WIDTH = 120, 100


def report(options: argparse.Namespace) -> int:
    """Writes the page and its figures, and prints where they are."""
    written = write_report(options.ledger, options.out)
    size = written.page.stat().st_size / 1e6
    show(f"{written.page}: {counted(written.runs, 'run')}, {size:.1f} MB. Open it in a browser; it needs no network.")
    show(f"Figures for print: {counted(len(written.figures), 'file')} in {options.out / 'figures'}")
    return Exit.DONE


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
        if options.format == "tex":
            inputs = "\n".join(rf"\input{{{table.name}}}" + "\n" + r"\clearpage" for table in made)
            write(options.out / "all.tex", latex_frame(inputs), "--out")
        print(f"{counted(len(made), 'table')} in {options.out}", file=sys.stderr)
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
    """All tables in one format, one below the other; several LaTeX tables are a document, one is a part of one."""
    if options.format == "json":
        return json.dumps({"tables": [table.as_json() for table in made]}, indent=1, allow_nan=False) + "\n"
    if options.format == "html":
        return html_page(made)
    if options.format == "tex" and len(made) > 1:
        return latex_document(made)
    width = terminal_width(_TABLES_WIDTH)
    formats: dict[str, Callable[[ReportTable], str]] = {
        "text": lambda table: table.to_text(width),
        "md": ReportTable.to_markdown,
        "tex": ReportTable.to_latex,
        "csv": ReportTable.to_csv,
    }
    return "\n".join(formats[options.format](table) for table in made)


def compare(options: argparse.Namespace) -> int:
    """Compares, and writes every report before the exit code is decided."""
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
        undecided=options.undecided,
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
        show(compare_report.text(comparison, terminal_width(_COMPARE_WIDTH)))
    return comparison.exit


def merge(options: argparse.Namespace) -> int:
    """Joins ledgers; exit code 3 where a damaged one could not give all of its runs."""
    done = join(options.ledgers, options.into)
    show(f"{options.into}: {counted(done.added, 'run')} added, {done.known} known already.")
    if done.unreadable:
        lost = counted(done.unreadable, "run")
        show(f"{lost} of a damaged ledger cannot be read any more: audit again into this one.")
    return Exit.INCOMPLETE if done.unreadable else Exit.DONE


def export(options: argparse.Namespace) -> int:
    """Writes the records of a ledger for other tools."""
    out = options.out or options.ledger.with_suffix(f".{options.format}")
    refuse_ledger(out, "--out")
    show(f"{out}: {counted(write_out(options.ledger, out, options.format), 'run')}.")
    return Exit.DONE
