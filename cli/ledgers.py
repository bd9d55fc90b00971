"""`hrx report`, `tables`, `compare`, `merge`, `export`, `check`: what reads ledgers and measures nothing."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hrx.cli.main import Check, CompareRequest, Export, Merge, Report, Tables
from hrx.cli.terminal import check_targets, incomplete_if_damaged, note, show, terminal_width, write, write_all
from hrx.errors import Exit, HrxError
from hrx.files import check_directory, check_target, regular_file
from hrx.records.contract import Contract, read_contract
from hrx.records.ledger import MOST_NAMED, SCHEMA_VERSION, TABLES, Ledger, LedgerError
from hrx.records.merge import check as verify
from hrx.records.merge import export as write_out
from hrx.records.merge import merge as join
from hrx.reports import ReportTable, read, render_table, write_report
from hrx.reports import compare as make_comparison
from hrx.reports import tables as make_tables
from hrx.reports.contract import comparison_exit, comparison_json, comparison_text
from hrx.reports.latex import latex_document
from hrx.reports.page.compare import render_comparison
from hrx.reports.runs import overall_progress, rests_on
from hrx.reports.table import html_page
from hrx.reports.text import counted
from hrx.text import message as one_line

SUFFIXES = {"text": "txt", "md": "md", "tex": "tex", "csv": "csv", "html": "html", "json": "json"}
STDOUT = Path("-")
_TABLES_WIDTH, _COMPARE_WIDTH = 120, 100


@incomplete_if_damaged
def report(options: Report) -> int:
    """Write the page and its figures, and print where they are."""
    check_directory(options.out, "--out")
    written = write_report(options.ledger, options.out, [*map(read_contract, options.contract)])
    size = written.page.stat().st_size / 1e6
    show(f"{written.page}: {counted(written.runs, 'run')}, {size:.1f} MB. Open it in a browser; it needs no network.")
    show(f"Figures for print: {counted(len(written.figures), 'file')} in {options.out / 'figures'}")
    return Exit.DONE


@incomplete_if_damaged
def tables(options: Tables) -> int:
    """Make the tables and print or write them."""
    folder = options.out if options.out and (os.path.isdir(options.out) or not options.out.suffix) else None
    if folder:
        check_directory(folder, "--out")
    elif options.out:
        check_target(options.out, "--out")
    frame = read(options.ledger)
    made: Sequence[ReportTable] = make_tables(
        frame, options.table or None, against=options.against, estimator=options.estimator, fold=not options.pool_seeds
    )
    with Ledger.open(options.ledger, create=False, warn=False) as ledger:
        plan = overall_progress(frame, ledger.plans())
    if plan is not None and not plan.complete:
        sentence = f"{rests_on(plan.stored, plan.planned)} of this ledger."
        if options.format == "csv":
            note(sentence)  # a CSV table has no line for it
        made = [replace(table, note=f"{table.note} {sentence}".strip()) for table in made]
    if folder:
        for table in made:
            write(folder / f"{table.name}.{SUFFIXES[options.format]}", _rendered([table], options), "--out")
        if options.format == "tex":
            inputs = (rf"\input{{{table.name}}}" for table in made)
            write(folder / "all.tex", latex_document(inputs), "--out")
        note(f"{counted(len(made), 'table')} in {options.out}")
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


def _rendered(made: Sequence[ReportTable], options: Tables) -> str:
    """All tables in one format, one below the other; several LaTeX tables are a document, one is a part of one."""
    if options.format == "json":
        return json.dumps({"tables": [table.as_json() for table in made]}, indent=1, allow_nan=False) + "\n"
    if options.format == "html":
        return html_page(made)
    if options.format == "tex" and len(made) > 1:
        return latex_document(table.to_latex() for table in made)
    width = terminal_width(_TABLES_WIDTH)
    formats: dict[str, Callable[[ReportTable], str]] = {
        "text": lambda table: table.to_text(width),
        "md": ReportTable.to_markdown,
        "tex": ReportTable.to_latex,
        "csv": ReportTable.to_csv,
    }
    return "\n".join(formats[options.format](table) for table in made)


@incomplete_if_damaged
def compare(options: CompareRequest) -> int:
    """Compares, and writes every report before the exit code is decided."""
    files = {"--summary": options.summary, "--junit": options.junit, "--page": options.page}
    files |= {} if options.json == STDOUT else {"--json": options.json}
    check_targets(files)
    if options.new and options.base.suffix == options.new.suffix == ".json":
        return _compare_contracts(read_contract(options.base), read_contract(options.new), options)
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
    report = json.dumps(comparison.as_json(), indent=1, allow_nan=False) + "\n"
    if options.json == STDOUT:
        sys.stdout.write(report)
    else:
        show(comparison.to_text(terminal_width(_COMPARE_WIDTH)))
    texts = {"--summary": comparison.to_markdown(), "--junit": comparison.to_junit(), "--json": report}
    texts |= {"--page": render_comparison(comparison)} if options.page else {}
    return write_all("compare", files, texts, comparison.exit)


def _compare_contracts(base: Contract, new: Contract, options: CompareRequest) -> int:
    if options.gate or options.summary or options.junit or options.page:
        raise HrxError("Contracts are compared without gates. Drop --gate, --summary, --junit and --page.")
    report = json.dumps(comparison_json(base, new), indent=1, allow_nan=False) + "\n"
    if options.json == STDOUT:
        sys.stdout.write(report)
    else:
        show(comparison_text(base, new, terminal_width(_COMPARE_WIDTH)))
        if options.json:
            write(options.json, report, "--json")
    return comparison_exit(base, new)


def merge(options: Merge) -> int:
    """Join ledgers; exit code 3 where something of them is damaged and was left out."""
    for ledger in options.ledgers:
        regular_file(ledger)
    if not os.path.exists(options.into):
        check_target(options.into, "--into")
    done = join(options.ledgers, options.into)
    show(f"{options.into}: {counted(done.added, 'run')} added, {done.known} known already.")
    for line in done.tied[:MOST_NAMED]:
        note(f"same but for the order of nearly tied positions: {line}")
    for line in done.damaged[:MOST_NAMED]:
        note(f"left out: {line}")
    if len(done.damaged) > MOST_NAMED:
        note(f"… and {len(done.damaged) - MOST_NAMED} more; hrx check names all")
    if done.damaged:
        note("Runs that were left out are measured again by an audit into the merged ledger.")
    return Exit.INCOMPLETE if done.damaged else Exit.DONE


def check(options: Check) -> int:
    """Verify ledgers; exit code 3 where one is damaged, 2 where one is not a ledger."""
    codes, documents = [Exit.DONE], list[dict[str, Any]]()
    for path in options.ledgers:
        try:
            found = verify(path)
        except LedgerError as error:
            codes.append(Exit.WRONG_REQUEST)
            documents.append({"ledger": str(path), "verdict": "not a ledger", "error": str(error)})
            note(one_line(f"hrx check: {error}"))
            continue
        codes.append(Exit.INCOMPLETE if found.damaged else Exit.DONE)
        documents.append(
            {
                "ledger": str(path),
                "verdict": found.verdict,
                "schema": SCHEMA_VERSION,
                "tables": {table: {"sound": sound} for table, sound in found.sound.items()},
                "damaged": [str(damage) for damage in found.damaged],
            }
        )
        if not options.json:  # every count and every bad row, by name
            advice = f". To save the rest: hrx merge {path} --into NEW.db" if found.damaged else ""
            rows = [(f"{TABLES[table].word}s", str(sound)) for table, sound in found.sound.items()]
            table = render_table(("rows", "as written"), rows).rstrip("\n")
            show("\n".join([f"{path}: {found.verdict}{advice}", "", table, *(f"DAMAGED {d}" for d in found.damaged)]))
    if options.json:
        print(json.dumps(documents, indent=1))
    return Exit.WRONG_REQUEST if Exit.WRONG_REQUEST in codes else max(codes)


@incomplete_if_damaged
def export(options: Export) -> int:
    """Write the records of a ledger for other tools."""
    out = options.out or options.ledger.with_suffix(f".{options.format}")
    check_target(out, "--out", inputs=[options.ledger])
    show(f"{out}: {counted(write_out(options.ledger, out, options.format), 'run')}.")
    return Exit.DONE
