"""`hrx explain`: explains forecasts of one or several series by one or several models, on a page."""

import json
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.adapters import locate
from hrx.adapters.contract import library_errors
from hrx.api.audit_plan import context_bound
from hrx.audit.protocol import Protocol
from hrx.audit.request import ExplainRequest, without_folder
from hrx.audit.runner.held_out import explain_series
from hrx.cli.terminal import note, progress, show
from hrx.errors import Exit, HrxError
from hrx.files import check_target, user_path
from hrx.gift_eval import TimedSeries, cut, open_series, split_name
from hrx.records.explained import ExplainedForecast
from hrx.records.explanation import ExplainedModel, ExplainedTimes, Explanation, Method
from hrx.records.quantities import GAINS, NeededContext
from hrx.reports.context import context_sentence, padding_sentence, share
from hrx.reports.explained_figures import show_time
from hrx.reports.figures import check_format, save
from hrx.reports.heatmap import speaking_name
from hrx.reports.page.explain import trust_sentence, write_explanation
from hrx.reports.page.explain_several import ExplainedPage, write_several
from hrx.reports.text import number_or_none, write_bytes


class Explained(NamedTuple):
    """One forecast of one series by one model."""

    forecast: ExplainedForecast
    timed: TimedSeries
    command: str

    @property
    def label(self) -> str:
        return f"{self.forecast.model} on {self.forecast.series}"

    @property
    def file_name(self) -> str:
        setting = f"{len(self.forecast.x)}x{len(self.forecast.forecast)}"
        return speaking_name(self.forecast.model, self.forecast.series, setting)


def explain(options: ExplainRequest) -> int:
    """Writes the page, and prints whether each explanation can be trusted."""
    _check_targets(options)
    # A name that is given twice counts once, as in an audit.
    models, named = dict.fromkeys(options.models), dict.fromkeys(options.series)
    wanted = options.sweeps == "context"
    bound = context_bound(options.context_bound, requested=wanted)
    protocol = Protocol(estimator=options.estimator, context=wanted, context_bound=bound)
    chosen = [(text, find_series(text)) for text in named]
    for sentence in dict.fromkeys(timed.note for _, timed in chosen if timed.note):
        note(f"{sentence}.")
    for _, timed in chosen:
        cut(timed.series, options.lookback, options.horizon, windows=1, seed=0)  # refused before a model is loaded
    found = [one for name in models for one in _explain_model(name, chosen, protocol, options)]
    if options.json:
        print(json.dumps({"explanations": [_as_json(one) for one in found]}, indent=1, allow_nan=False))
    else:
        for one in found:
            about = f" ({one.label})" if len(found) > 1 else ""
            show(f"Verdict{about}: {trust_sentence(one.forecast)}")
            _show_context(one.forecast.context)
    progress.say("writing the page")
    written = [_write_page(found, options.out), *_write_files(found, options)]
    if not options.json:
        show(f"{written[0]}: open it in a browser; it needs no network.")
        for path in written[1:]:
            show(str(path))
    return Exit.DONE


def _show_context(found: NeededContext | None) -> None:
    """Prints how short the lookback can be, where that was measured."""
    if found is None:
        return
    within = f"to keep the forecasts within {share(found.bound)} of their variance"
    show(f"Needed context, {within}: {context_sentence(found)}")
    if padding := padding_sentence([found]):
        show(padding)


def _explain_model(
    name: str, chosen: list[tuple[str, TimedSeries]], protocol: Protocol, options: ExplainRequest
) -> list[Explained]:
    """The forecasts of every series by one model."""
    progress.say(f"loading {name}")
    model = locate(name, merge_adapter=options.merge_adapter).load()
    found = []
    for text, timed in chosen:
        fitting = model.for_season(timed.series.season) if timed.series.frequency else model
        with library_errors(model.identity.model, model.identity.library):
            forecast = explain_series(
                fitting,
                timed.series,
                options.lookback,
                options.horizon,
                protocol=protocol,
                labels=None if timed.times is None else tuple(show_time(time) for time in timed.times),
                report=progress.say,
            )
        found.append(Explained(forecast, timed, _command(name, text, options)))
    return found


def find_series(text: str) -> TimedSeries:
    """The one series of `FILE`, `FILE:COLUMN`, for a long table `FILE:NAME`, or `sample:DATASET[:NAME]`."""
    progress.say(f"reading {text}")
    found = open_series(text)
    if len(found) != 1:
        names = [one.series.item for one in found]
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise HrxError(
            f"{text} holds {len(names)} series: {listed}. Name one, as in --series {text}:{names[0]}. For several, "
            "repeat --series."
        )
    return found[0]


def _check_targets(options: ExplainRequest) -> None:
    """Refuses files that cannot be written, before anything is read."""
    read = [path for text in options.series for path in _files(text)]
    read += [user_path(name.removeprefix("module:").rpartition(":")[0]) for name in options.models if ":" in name]
    named: dict[Path, str] = {}
    for option, path in (("--out", options.out), ("--csv", options.csv), ("--png", options.png)):
        if path is None:
            continue
        check_target(path, option, inputs=read)
        if (other := named.setdefault(path.absolute(), option)) != option:
            raise HrxError(f"{other} and {option} name the same file, {path}. Give each a file of its own.")
    if options.png is not None:
        check_format(options.png)


def _files(text: str) -> list[Path]:
    """The files that a name may mean, by any spelling."""
    source, _ = split_name(text)
    return [user_path(name) for name in (source, source.rpartition("?")[0]) if name]


def _command(model: str, series: str, options: ExplainRequest) -> str:
    """The command line of one forecast, with `PATH/` for folders."""
    given = {"model": model, "series": series}
    given |= {name: getattr(options, name) for name in ("lookback", "horizon", "estimator")}
    shown = {name: without_folder(value) if isinstance(value, str) else value for name, value in given.items()}
    words = [word for name, value in shown.items() if name != "model" for word in (f"--{name}", str(value))]
    for name, value in (("sweeps", options.sweeps), ("context-bound", options.context_bound)):
        words += [] if value is None else [f"--{name}", str(value)]
    words += ["--merge-adapter"] if options.merge_adapter else []
    return shlex.join(["hrx", "explain", shown["model"], *words])


def _write_page(found: list[Explained], path: Path) -> Path:
    """The page of one forecast; of several, a page with all of them side by side, and one of each beside it."""
    if len(found) == 1:
        return write_explanation(found[0].forecast, path, found[0].command)
    pages = []
    for number, one in enumerate(found):
        beside = path.with_name(f"{path.stem}--{number + 1}--{one.file_name}.html")
        write_explanation(one.forecast, beside, one.command)
        pages.append(ExplainedPage(one.forecast, beside.name, as_explanation(one).plot()))
    return write_several(pages, path)


def _write_files(found: list[Explained], options: ExplainRequest) -> list[Path]:
    """The table of every entry, and the pictures; of several forecasts, one picture each."""
    written = []
    if options.csv is not None:
        frames = [as_explanation(one).to_frame().assign(model=one.forecast.model) for one in found]
        table = pd.concat(frames, ignore_index=True)
        table = table[["model", *(name for name in table if name != "model")]]
        written.append(write_bytes(options.csv, table.to_csv(index=False).encode()))
    if options.png is not None:
        for number, one in enumerate(found):
            name = options.png.name if len(found) == 1 else f"{options.png.stem}--{number + 1}--{one.file_name}"
            path = options.png if len(found) == 1 else options.png.with_name(name + options.png.suffix)
            written.append(save(as_explanation(one).plot(), path))
    return written


def as_explanation(one: Explained) -> Explanation:
    """The forecast as `hrx.explain` gives it, for its frame and its figure."""
    forecast, timed = one.forecast, one.timed
    lookback, after = len(forecast.x), timed.after(len(forecast.forecast))
    observed = np.ones(lookback, dtype=bool)
    if timed.series.observed is not None:
        observed = timed.series.observed[-lookback:]
    times = None
    if timed.times is not None and after is not None:
        times = ExplainedTimes(timed.times[-lookback:], after)
    return Explanation(
        matrix=forecast.matrix[None],
        signed=None,
        forecast=forecast.forecast[None],
        x=forecast.x[None],
        observed=observed[None],
        steps=tuple(step + 1 for step in forecast.steps),
        items=(forecast.series,),
        times=(times,),
        seasons=(timed.series.season,),
        model=ExplainedModel(forecast.model, forecast.checkpoint, forecast.fingerprint, forecast.library),
        method=Method(forecast.estimator, "", "", 0),
    )


def _context_json(found: NeededContext) -> dict[str, object]:
    """The needed context; `shortest_cut` is null where the lookback cannot be cut."""
    shortest = found.shortest_cut
    return {
        "bound": found.bound,
        "needed": found.needed,
        "outcome": found.outcome,
        "shortest_cut": None if shortest is None else shortest.lookback,
    }


def _as_json(one: Explained) -> dict[str, object]:
    """One forecast with its verdict, its figures and its matrix."""
    forecast, explanation = one.forecast, as_explanation(one)
    (times,) = explanation.times
    quantities, skill = forecast.quantities, forecast.skill
    gains: dict[str, object] = {}
    if quantities is not None:
        gains = {
            name: {
                "value": number_or_none(getattr(quantities, name)),
                "error": number_or_none(getattr(quantities.error, name)),
            }
            for name in GAINS
        } | {
            "rank": number_or_none(quantities.rank),
            "effective_lookback": number_or_none(quantities.effective_lookback),
        }
    return {
        "model": forecast.model,
        "checkpoint": forecast.checkpoint,
        "fingerprint": forecast.fingerprint,
        "series": forecast.series,
        "estimator": forecast.estimator,
        "trust": forecast.trust.value,
        "verdict": trust_sentence(forecast),
        **gains,
        "context": None if forecast.context is None else _context_json(forecast.context),
        "errors": None if skill is None else {name: number_or_none(value) for name, value in skill._asdict().items()},
        "input_times": None if times is None else [show_time(time) for time in times.inputs],
        "forecast_times": None if times is None else [show_time(time) for time in times.forecasts],
        "x": explanation.x[0].tolist(),
        "forecast": explanation.forecast[0].tolist(),
        "steps": list(explanation.steps),
        "matrix": explanation.matrix[0].astype(np.float64).tolist(),
    }
