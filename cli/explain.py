"""`hrx explain`: explains forecasts of one or several series by one or several models, on a page."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from hrx.adapters import load
from hrx.adapters.inputs import POINT, Output
from hrx.api.audit_plan import context_bound
from hrx.api.explain import explain as explain_series
from hrx.api.explanation import Explanation
from hrx.api.score import score as score_matrix
from hrx.audit.protocol import Protocol
from hrx.audit.request import ExplainRequest, ScoreRequest, without_folder
from hrx.cli.terminal import note, progress, show
from hrx.errors import Exit, HrxError
from hrx.files import check_target, user_path
from hrx.gift_eval import cut, open_series
from hrx.gift_eval.series import TimedSeries
from hrx.gift_eval.sources import split_name
from hrx.gift_eval.tables import Options
from hrx.options import as_settings
from hrx.records.explanation import show_time
from hrx.records.quantities import GAINS, Quantities
from hrx.reports.context import context_sentence, padding_sentence, share
from hrx.reports.figures import check_format, save
from hrx.reports.page.explain import ExplainedPage, setting_name, trust_sentence, write_explanation, write_several
from hrx.reports.text import number_or_none, write_bytes


class Found(NamedTuple):
    """Explanation of one series by one model, and the command that makes it alone."""

    x: Explanation
    command: str


def explain(request: ExplainRequest) -> int:
    """Writes the page, and prints whether each explanation can be trusted."""
    _check_targets(request)
    found = _explanations(request)
    for sentence in dict.fromkeys(sentence for one in found for sentence in one.x.notes):
        note(f"{sentence}.")
    if request.json:
        print(json.dumps({"explanations": [_as_json(one.x) for one in found]}, indent=1, allow_nan=False))
    else:
        for one in found:
            about = f" ({one.x.model.name} on {one.x.items[0]})" if len(found) > 1 else ""
            show(f"Verdict{about}: {trust_sentence(one.x.held_out[0])}")
            if context := one.x.held_out[0].context:
                within = f"to keep the forecasts within {share(context.bound)} of their variance"
                show(f"Needed context, {within}: {context_sentence(context)}")
                if padding := padding_sentence([context]):
                    show(padding)
    progress.say("writing the page")
    written = _write(found, request)
    if not request.json:
        show(f"{written[0]}: open it in a browser; it needs no network.")
        for path in written[1:]:
            show(str(path))
    return Exit.DONE


def _explanations(request: ExplainRequest) -> list[Found]:
    """One explanation for each model and series; a name that is given twice counts once, as in an audit."""
    wanted = request.sweeps == "context"
    bound = context_bound(request.context_bound, requested=wanted)
    Output.parse(request.output)
    roles = {name: getattr(request, name) for name in ("target", "past", "future", "static")}
    columns = {**roles, "future_data": request.future_data, "unused": request.unused or ""}
    series = {text: find_series(text, Options(**columns)) for text in dict.fromkeys(request.series)}
    for timed in series.values():
        # Refused before a model is loaded.
        cut(timed.joint or timed.series, request.lookback, request.horizon, windows=1, seed=0)
    found = []
    for name in dict.fromkeys(request.models):
        progress.say(f"loading {name}")
        explained = explain_series(
            load(name, merge_adapter=request.merge_adapter),
            list(series.values()),
            request.horizon,
            lookback=request.lookback,
            estimator=request.estimator,
            **columns,
            output=request.output,
            held_out=True,
            context_bound=bound if wanted else None,
            report=progress.say,
        )
        targets = len(explained) // len(series)  # each with an explanation of its own
        texts = [text for text in series for _ in range(targets)]
        found += [Found(one, _command(name, text, request)) for one, text in zip(explained, texts, strict=True)]
    return found


def find_series(text: str, options: Options | None = None) -> TimedSeries:
    """Return the one series of `FILE`, `FILE:COLUMN`, for a long table `FILE:NAME`, or `sample:DATASET[:NAME]`."""
    progress.say(f"reading {text}")
    found = open_series(text, options)
    if len(found) != 1:
        names = [one.series.item for one in found]
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise HrxError(
            f"{text} holds {len(names)} series: {listed}. Name one, as in --series {text}:{names[0]}. For several, "
            "repeat --series."
        )
    return found[0]


def _check_targets(request: ExplainRequest) -> None:
    """Refuses files that cannot be written, before anything is read."""
    sources = [split_name(text)[0] for text in request.series]
    # The files that a name may mean, by any spelling.
    read = [user_path(name) for source in sources for name in (source, source.rpartition("?")[0]) if name]
    read += [user_path(name.removeprefix("module:").rpartition(":")[0]) for name in request.models if ":" in name]
    named: dict[Path, str] = {}
    for option, path in (("--out", request.out), ("--csv", request.csv), ("--png", request.png)):
        if path is None:
            continue
        check_target(path, option, inputs=read)
        if (other := named.setdefault(path.absolute(), option)) != option:
            raise HrxError(f"{other} and {option} name the same file, {path}. Give each a file of its own.")
    if request.png is not None:
        check_format(request.png)


def _command(model: str, series: str, request: ExplainRequest) -> str:
    """Return the command line of one forecast, with `PATH/` for folders."""
    settings = as_settings(replace(request, models=(model,), series=(series,)), without_folder)
    words = ["hrx", "explain", *settings.pop("models")]
    if settings.get("output") == str(POINT):
        del settings["output"]
    for name, value in settings.items():
        for one in value if isinstance(value, list) else [value]:
            words += [] if one in (None, False) else [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return shlex.join(words)


def _write(found: list[Found], request: ExplainRequest) -> list[Path]:
    """Write the page, the table of every entry, and the pictures.

    Of several forecasts, the page has all of them side by side, and each has a page and a picture beside it.
    """

    def beside(path: Path, number: int, x: Explanation) -> Path:
        return path if len(found) == 1 else path.with_name(f"{path.stem}--{number}--{setting_name(x)}{path.suffix}")

    if len(found) == 1:
        written = [write_explanation(found[0].x, request.out, found[0].command)]
    else:
        pages = []
        for number, (x, command) in enumerate(found, 1):
            path = beside(request.out.with_suffix(".html"), number, x)
            write_explanation(x, path, command)
            pages.append(ExplainedPage(x, path.name))
        written = [write_several(pages, request.out)]
    if request.csv is not None:
        table = pd.concat([one.x.to_frame().assign(model=one.x.model.name) for one in found], ignore_index=True)
        table.insert(0, "model", table.pop("model"))
        written.append(write_bytes(request.csv, table.to_csv(index=False).encode()))
    if request.png is not None:
        written += [save(one.x.plot(), beside(request.png, n, one.x)) for n, one in enumerate(found, 1)]
    return written


def score(request: ScoreRequest) -> int:
    """Print the quantities of a matrix."""
    series = find_series(request.series)
    progress.say(f"loading {request.model}")
    model = load(request.model, merge_adapter=request.merge_adapter)
    progress.say(f"scoring {request.matrix}")
    found = score_matrix(
        model,
        series,
        request.horizon,
        matrix=request.matrix,
        windows=request.windows,
        protocol=Protocol(draws=request.draws),
    )
    progress.pause()
    if request.json:
        about: dict[str, object] = {"model": model.identity.model, "series": series.series.item}
        about |= {"windows": found.windows, "draws": found.draws, "variance_of": found.variance_of}
        print(json.dumps(about | _gains(found), indent=1, allow_nan=False))
    else:
        show(str(found))
    return Exit.DONE


def _gains(quantities: Quantities) -> dict[str, object]:
    gains: dict[str, object] = {}
    for name in GAINS:
        found = (getattr(quantities, name), getattr(quantities.error, name), quantities.plus_minus(name))
        gains[name] = dict(zip(("value", "error", "plus_minus"), map(number_or_none, found), strict=True))
    others = ("gap_own", "p_margin", "rank", "effective_lookback", "support", "shared_rows")
    return gains | {name: number_or_none(getattr(quantities, name)) for name in others}


def _as_json(x: Explanation) -> dict[str, object]:
    """One forecast with its verdict, its figures and its matrix."""
    (held_out,), (times,), (series,) = x.held_out, x.times, x.items
    quantities, skill, context = held_out.quantities, held_out.skill, held_out.context
    gains = {} if quantities is None else _gains(quantities)
    channels = x.channels.astype(object).where(x.channels.notna(), None).to_dict("records")
    return {
        "model": x.model.name,
        "checkpoint": x.model.checkpoint,
        "fingerprint": x.model.fingerprint,
        "series": series,
        "estimator": x.method.estimator,
        "trust": held_out.trust.value,
        "verdict": trust_sentence(held_out),
        "notes": list(x.notes),
        **gains,
        "context": context
        and {
            "bound": context.bound,
            "needed": context.needed,
            "outcome": context.outcome,
            # Null where the lookback cannot be cut.
            "shortest_cut": context.shortest_cut and context.shortest_cut.lookback,
        },
        "errors": None if skill is None else {name: number_or_none(value) for name, value in skill._asdict().items()},
        "input_times": None if times is None else [show_time(time) for time in times.inputs],
        "forecast_times": None if times is None else [show_time(time) for time in times.forecasts],
        "x": x.x[0].tolist(),
        "forecast": x.forecast[0].tolist(),
        "steps": list(x.steps),
        "matrix": x.matrix[0].astype(np.float64).tolist(),
        **({"output": x.output} if x.output != "point" else {}),
        **({"channels": channels} if channels else {}),
    }
