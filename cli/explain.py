"""`hrx explain`: explains one forecast of one series on a page."""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from hrx.adapters import locate
from hrx.adapters.contract import library_errors
from hrx.audit.protocol import Protocol
from hrx.audit.runner.explain_series import explain_series
from hrx.cli.config import settings_without_paths
from hrx.cli.progress import progress
from hrx.cli.request import context_bound
from hrx.cli.terminal import show
from hrx.errors import Exit, HrxError, unknown
from hrx.files import check_target, user_path
from hrx.gift_eval import Series, cut, fill, open_source
from hrx.gift_eval.frequency import slots
from hrx.gift_eval.table_cells import InputTable, holds_dates, is_numeric, parse_numbers, read_table
from hrx.gift_eval.tables import Options, observe, open_table, parse_source
from hrx.gift_eval.tables import shown as shown_date
from hrx.reports.context import context_sentence, padding_sentence, share
from hrx.reports.page.explain import trust_sentence, write_explanation


class DatedSeries(NamedTuple):
    """A series, with the date of each value where there are dates."""

    series: Series
    dates: tuple[str, ...] | None


def explain(options: argparse.Namespace) -> int:
    """Writes the page of one forecast, and prints whether its explanation can be trusted."""
    check_target(options.out, "--out", inputs=_files(options))
    wanted = options.sweeps == "context"
    bound = context_bound(options.context_bound, requested=wanted)
    protocol = Protocol(estimator=options.estimator, context=wanted, context_bound=bound)
    progress.say(f"reading {options.series}")
    chosen = find_series(options.series)
    cut(chosen.series, options.lookback, options.horizon, windows=1, seed=0)  # refused before the model is loaded
    progress.say(f"loading {options.model}")
    model = locate(options.model).load()
    with library_errors(model.identity.model, model.identity.library):
        explained = explain_series(
            model,
            chosen.series,
            options.lookback,
            options.horizon,
            protocol=protocol,
            labels=chosen.dates,
            report=progress.say,
        )
    show(f"Verdict: {trust_sentence(explained)}")
    if explained.context is not None:
        within = f"to keep the forecasts within {share(explained.context.bound)} of their variance"
        show(f"Needed context, {within}: {context_sentence(explained.context)}")
        if padding := padding_sentence([explained.context]):
            show(padding)
    progress.say("writing the page")
    written = write_explanation(explained, options.out, _command(options))
    show(f"{written}: open it in a browser; it needs no network.")
    return Exit.DONE


def _files(options: argparse.Namespace) -> list[Path]:
    """The files that are read, by any spelling: the table, and the file of a model."""
    table, _ = _split(options.series)
    module = options.model.removeprefix("module:").rpartition(":")[0]
    return [user_path(text) for text in (table, table.rpartition("?")[0], module) if text]


def _command(options: argparse.Namespace) -> str:
    """The command line of this page, with `PATH/` for folders."""
    given = {name: getattr(options, name) for name in ("model", "series", "lookback", "horizon", "estimator")}
    shown = settings_without_paths(given)
    words = [word for name, value in shown.items() if name != "model" for word in (f"--{name}", str(value))]
    for name, value in (("sweeps", options.sweeps), ("context-bound", options.context_bound)):
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(["hrx", "explain", shown["model"], *words])


def find_series(text: str) -> DatedSeries:
    """The series named by `FILE`, `FILE:COLUMN`, for a long table `FILE:NAME`, or `sample:DATASET[:NAME]`."""
    if text.startswith("sample:"):
        return _embedded(text)
    source, column = _split(text)
    path, options = parse_source(source)
    table = read_table(path, "csv", least=1)
    if options.date or any(holds_dates(cells) for cells in table.columns.values()):
        if column in table.columns:
            source += f"{'&' if '?' in source else '?'}value={quote(column, safe='')}"
        return _dated(source, column, text)
    return _undated(table, column, options, text)


def _embedded(text: str) -> DatedSeries:
    """A series of the embedded sample."""
    name, _, item = text.removeprefix("sample:").partition(":")
    dataset, *others = open_source(f"sample:{name}")
    if others:
        raise HrxError(f"{text} names several datasets. Give one, as in --series sample:{dataset.name}.")
    series = [dataset.read(index) for index in range(dataset.count)]
    return DatedSeries(series[_choose([one.item for one in series], item, text)], None)


def _dated(source: str, column: str, text: str) -> DatedSeries:
    """A series of a table with dates, on the grid of its frequency."""
    (dataset,) = open_table("csv", source)
    path, options = parse_source(source)
    observed = observe(read_table(path, "csv"), options)
    values = observed.layout.values
    # A wide table names its series by their columns, a long one in a column of its own.
    names = [name or value for name in observed.names for value in values]
    index = 0 if (column,) == values and len(names) == 1 else _choose(names, column, text)
    series = dataset.read(index)
    stamps = observed.stamps[observed.sections[index // len(values)]]
    at = slots(stamps, dataset.frequency)
    dates = dict(zip(at.tolist(), map(shown_date, stamps), strict=True))
    # Leading missing values are not part of the series.
    first = int(at[-1]) + 1 - len(series.values)
    return DatedSeries(series, tuple(dates.get(place, "no row") for place in range(first, int(at[-1]) + 1)))


def _undated(table: InputTable, column: str, options: Options, text: str) -> DatedSeries:
    """A column of a table without dates; its rows are in the order of time."""
    names = list(table.columns) if column else [name for name, cells in table.columns.items() if is_numeric(cells)]
    name = names[_choose(names, column, text)]
    filled = fill(parse_numbers(table, [name], options.decimal)[:, 0])
    series = Series(Path(table.file).stem, name, "", options.season or 1, "", *filled)
    return DatedSeries(series, None)


def _choose(names: Sequence[str], asked: str, text: str) -> int:
    """The position of the requested series."""
    if asked and asked not in names:
        raise HrxError(f"{text}: " + unknown("column", asked, names))
    if asked:
        return list(names).index(asked)
    if len(names) != 1:
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise HrxError(f"{text} holds {len(names)} series: {listed}. Name one, as in --series {text}:{names[0]}.")
    return 0


def _split(text: str) -> tuple[str, str]:
    """File and column; the name of the file may contain a colon too."""
    if os.path.isfile(user_path(text)) or ":" not in text:
        return text, ""
    source, _, column = text.rpartition(":")
    return source, column
