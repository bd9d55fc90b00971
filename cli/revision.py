"""`hrx revision`: why the forecasts of some dates changed between two origins."""

import json

import numpy as np

from hrx.adapters import load
from hrx.api.revision import Revision
from hrx.api.revision import revision as revise
from hrx.audit.request import RevisionRequest
from hrx.cli.explain import find_series
from hrx.cli.terminal import note, progress, show, terminal_width
from hrx.errors import Exit
from hrx.files import check_target
from hrx.records.explanation import show_time
from hrx.reports.figures import check_format, save
from hrx.reports.text import render_table, write_bytes

_MOST_ROWS = 12
_MOST_NAMED = 5


def revision(request: RevisionRequest) -> int:
    """Print the parts of each date's revision, and the new values that moved the forecasts most."""
    for option, path in (("--csv", request.csv), ("--png", request.png)):
        if path is not None:
            check_target(path, option)
    if request.png is not None:
        check_format(request.png)
    series = find_series(request.series)
    progress.say(f"loading {request.model}")
    r = revise(
        load(request.model, merge_adapter=request.merge_adapter),
        series,
        request.horizon,
        since=request.from_,
        until=request.to,
        lookback=request.lookback,
        report=progress.say,
    )
    progress.pause()
    for sentence in r.notes:
        note(f"{sentence}.")
    if request.json:
        print(json.dumps(_as_json(r), indent=1, allow_nan=False))
    else:
        _show(r)
    if request.csv is not None:
        write_bytes(request.csv, r.to_frame().to_csv(index=False).encode())
    if request.png is not None:
        largest = request.png.with_stem(f"{request.png.stem}-largest")
        written = save(r.plot_calendar(), request.png), save(r.plot_waterfall(), largest)
        if not request.json:
            show(f"Figures: {written[0]}, {written[1]}")
    return Exit.DONE


def _show(r: Revision) -> None:
    old, new = map(show_time, r.origins)
    show(f"Forecasts of {r.item} by {r.model.name} from {old} and from {new}, {len(r.arrived)} values later")
    columns = {"old": r.old, "new": r.new, "revision": r.change, "drift": r.drift, "dropped": r.dropped}
    columns |= {"news": r.news.sum(axis=1), "remainder": r.remainder}
    known = {name: values for name, values in columns.items() if values is not None}
    at = sorted({round(n) for n in np.linspace(0, len(r) - 1, min(len(r), _MOST_ROWS))})
    rows = [(show_time(r.dates[n]), *(f"{values[n]:.4g}" for values in known.values())) for n in at]
    show(render_table(("date", *known), rows, terminal_width(100)))
    if len(at) < len(r):
        show(f"{len(at)} of {len(r)} dates; --csv FILE writes all.")
    if r.dropped is None:
        longer = r.lookback + len(r.arrived)
        show(f"The drift holds the values that left the window too: {r.model.name} takes no window of {longer} values.")
    size = np.abs(r.news).mean(axis=0)
    named = [
        f"{show_time(r.arrived[n])} ({r.values[n]:.4g}, expected {r.expected[n]:.4g}) by {size[n]:.3g}"
        for n in np.argsort(-size, kind="stable")[:_MOST_NAMED]
    ]
    show(f"New values that moved the forecasts most, on average: {'; '.join(named)}. By {r.method}.")


def _as_json(r: Revision) -> dict[str, object]:
    dates = []
    for n, date in enumerate(r.dates):
        about: dict[str, object] = {"date": show_time(date), "old": r.old[n], "new": r.new[n], "drift": r.drift[n]}
        about |= {"dropped": None if r.dropped is None else r.dropped[n], "news": r.news[n].tolist()}
        dates.append(about | {"remainder": r.remainder[n]})
    arrived = [
        {"time": show_time(time), "value": value, "expected": expected}
        for time, value, expected in zip(r.arrived, r.values.tolist(), r.expected.tolist(), strict=True)
    ]
    return {
        "model": r.model.name,
        "series": r.item,
        "lookback": r.lookback,
        "horizon": r.horizon,
        "from": show_time(r.origins[0]),
        "to": show_time(r.origins[1]),
        "method": r.method,
        "arrived": arrived,
        "dates": dates,
        "notes": list(r.notes),
    }
