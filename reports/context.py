"""Needed context of each model and dataset, or of one explained series: as sentences, JSON, and part of a page."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from hrx.records.context import CutForecasts, NeededContext, context_from_columns, mean_context
from hrx.records.record import DONE
from hrx.reports.page import render_macro
from hrx.reports.text import INDENT, clean, counted, hanging, number_or_none

_GROUP = ["dataset", "channels", "lookback", "horizon", "context_bound", "context_windows", "draws", "protocol_version"]
"""Series are averaged only where these agree."""
_OUTCOMES = {
    "holds": "needed context: holds",
    "fails": "needed context: fails",
    "impossible": "not possible",
    "whole": "none within the bound",
}
_MOST_CHARTS = 24
_LEAST, _MOST = 1e-4, 10.0
"""Changes that a chart can show; others are drawn at its edge."""
_LEFT, _TOP, _WIDTH, _HEIGHT = 50, 8, 250, 110
_TICKS = (0.001, 0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class DatasetContext:
    """Needed context on a dataset at a setting: mean curves of its series, each of the same weight."""

    dataset: str
    setting: str
    series: tuple[NeededContext, ...]

    @property
    def mean(self) -> NeededContext:
        return mean_context(self.series)

    @property
    def range(self) -> tuple[int, int]:
        """Shortest and the longest needed context of a single series."""
        needed = [one.needed for one in self.series]
        return min(needed), max(needed)

    def as_json(self) -> dict[str, object]:
        """Entry of `context` in `hrx audit --json`, with null for what is unknown or was not measured."""
        mean = self.mean
        return {
            "dataset": self.dataset,
            "setting": self.setting,
            "series": len(self.series),
            "windows": mean.windows,
            "bound": mean.bound,
            "needed": mean.needed,
            "next_shorter": mean.next_shorter,
            "needed_of_series": list(self.range),
            "change": number_or_none(mean.change[mean.at]),
            "outcome": mean.outcome,
            "whole": {"mse": number_or_none(mean.mse[0]), "mase": number_or_none(mean.mase[0])},
            "cut": _cut_json(mean.check),
            "shortest_cut": _cut_json(mean.shortest_cut),
            "padded_to": mean.padded_to,
            "refusal": clean(mean.refusal) or None,
            "curves": {
                "kept": mean.kept.tolist(),
                "lookbacks": mean.lookbacks.tolist(),
                **{
                    name: [number_or_none(value) for value in getattr(mean, name)]
                    for name in ("change", "cut_change", "mse", "mase")
                },
            },
        }


def dataset_contexts(runs: pd.DataFrame) -> list[DatasetContext]:
    """Needed contexts of one model's runs, by dataset and setting; seeds of a series share theirs."""
    measured = runs[(runs["status"] == DONE) & runs["context_curves"].notna()]
    found = []
    for _, group in measured.groupby(_GROUP, sort=False, dropna=False):
        one_each = group.drop_duplicates("series_fingerprint", keep="last")
        contexts = []
        for row in one_each.to_dict("records"):
            with suppress(ValueError, KeyError, TypeError):  # not written by hrx
                contexts.append(context_from_columns({str(name): value for name, value in row.items()}))
        if contexts:
            first = one_each.iloc[0]
            setting = f"{first['lookback']}x{first['horizon']}"
            found.append(DatasetContext(str(first["dataset"]), setting, tuple(contexts)))
    return sorted(found, key=lambda one: (one.dataset, one.mean.lookback, one.setting))


def context_sentence(found: NeededContext) -> str:
    """Needed context, its check and the shortest cut, in plain sentences."""
    sentences = (_needed(found), _checked(found), _shortest(found))
    return " ".join(sentence for sentence in sentences if sentence)


def _needed(found: NeededContext) -> str:
    """How much is enough; `at most` where the grid leaves shorter contexts open."""
    shorter = found.next_shorter
    changes = [] if found.needed == found.lookback else [f"{share(found.change[found.at])} with {found.needed}"]
    changes += [] if shorter is None else [f"{share(found.change[found.at + 1])} with {shorter}"]
    most = "at most " if changes[1:] and shorter is not None and shorter < found.needed - 1 else ""
    values = f"all {found.lookback} values" if found.needed == found.lookback else f"{found.needed} of {found.lookback}"
    replaced = f" (change with all older values replaced: {', '.join(changes)})" if changes else ""
    return f"{most}{values}{replaced}."


def _checked(found: NeededContext) -> str:
    if found.check is None:
        if found.outcome == "whole":
            return ""
        reason = clean(found.refusal) or f"the model takes no shorter lookback from {found.needed} on"
        return f"Not checked by cutting: {reason}."
    figures = f"{share(found.check.change)}, {_figures(found, found.check)}"
    if found.outcome == "holds":
        return f"Really cut to {found.check.lookback}, the forecasts change by {figures}."
    return (
        f"But really cut to {found.check.lookback}, they change by {figures}: values older than that are hardly read, "
        "but the model needs them, as padding or for its statistics."
    )


def _shortest(found: NeededContext) -> str:
    """Shortest real cut, where it is another length than that of the check."""
    shortest, check = found.shortest_cut, found.check
    if shortest is None or (check is not None and shortest.lookback == check.lookback):
        return ""
    chance = ""
    if found.outcome == "holds" and check is not None and shortest.lookback > check.lookback:
        chance = "But a longer lookback does not keep them, so this may be chance. "
    if shortest.lookback == found.lookback:
        return chance.rstrip() or "No shorter lookback keeps the forecasts within the bound when it is really cut."
    figures = f"change {share(shortest.change)}, {_figures(found, shortest)}"
    return f"{chance}The shortest lookback that can really be cut to is {shortest.lookback} ({figures})."


def padding_sentence(found: Iterable[NeededContext]) -> str:
    """That the library pads, where it does: the model then reads the zeros, and computes as much."""
    lengths = " or ".join(str(one) for one in sorted({one.padded_to for one in found if one.padded_to is not None}))
    return lengths and f"The library fills a shorter window with zeros up to {lengths}: a cut saves no computation."


def _figures(found: NeededContext, cut: CutForecasts) -> str:
    """Errors from the whole lookback and from the cut one, and the time."""
    pairs = (("mse", found.mse[0], cut.mse), ("MASE", found.mase[0], cut.mase))
    shown = [f"{name} {figure(whole)} → {figure(after)}" for name, whole, after in pairs if not math.isnan(after)]
    return ", ".join([*shown, f"time {ratio(cut.time_ratio)}"])


def share(value: float) -> str:
    """A share of the variance as `0.85 %` or `240 %`; `-` where unknown."""
    return _known(value, f"{100 * value:.2g} %" if value < 1 else f"{100 * value:.0f} %")


def figure(value: float) -> str:
    """An error to three digits; `-` where unknown."""
    return _known(value, f"{value:.3g}")


def ratio(value: float) -> str:
    """A time relative to that of the whole lookback, as `0.50×`; `-` where unknown."""
    return _known(value, f"{value:.2f}×")


def _known(value: float, text: str) -> str:
    return text if math.isfinite(value) else "-"


def _cut_json(cut: CutForecasts | None) -> dict[str, float | None] | None:
    if cut is None:
        return None
    return {name: number_or_none(value) for name, value in cut._asdict().items()} | {"lookback": cut.lookback}


def context_lines(contexts: Sequence[DatasetContext], width: int) -> Iterator[str]:
    """Needed contexts of a model as terminal text."""
    if not contexts:
        return
    bounds = " or ".join(dict.fromkeys(share(one.mean.bound) for one in contexts))
    yield ""
    rule = f"the shortest that keeps the forecasts within {bounds} of their variance"
    yield from hanging(f"{INDENT}Needed context: ", rule, width)
    for one in contexts:
        low, high = one.range
        single = f" Single series: {low} to {high}." if low < high else ""
        text = f"{clean(one.dataset)} {one.setting}: {context_sentence(one.mean)}{single}"
        yield from hanging(f"{INDENT}  ", text, width)
    if padding := padding_sentence(one.mean for one in contexts):
        yield from hanging(f"{INDENT}  ", padding, width)


_HEADS = (
    ("model", ""), ("dataset", ""), ("setting", ""), ("needed", "number"), ("change, older replaced", "number"),
    ("really cut to", "number"), ("change", "number"), ("mse", "number"), ("MASE", "number"), ("time", "number"),
    ("this cut", ""),
)  # fmt: skip
_SERIES_HEADS = (
    ("context", "number"), ("change, older values replaced", "number"), ("cut to", "number"),
    ("change by cutting", "number"), ("mse", "number"), ("MASE", "number"),
)  # fmt: skip


def context_section(models: Sequence[tuple[str, Sequence[DatasetContext]]]) -> Markup:
    """Section of a report on models by label; empty where nothing was measured."""
    rows = [row for label, contexts in models for one in contexts for row in _rows(label, one)]
    named = [
        (f"{label}, {one.dataset} {one.setting}" if len(models) > 1 else f"{one.dataset} {one.setting}", one.mean)
        for label, contexts in models
        for one in contexts
    ]
    if not rows:
        return Markup()
    return render_macro("context.html", "section", rows, _HEADS, _notes(models), _charts(named))


def series_context(found: NeededContext) -> Markup:
    """Part of the page of one explained series."""
    curves = (found.kept, found.change, found.lookbacks, found.cut_change, found.mse, found.mase)
    rows = [
        (kept, share(change), lookback, share(cut), figure(mse), figure(mase))
        for kept, change, lookback, cut, mse, mase in zip(*curves, strict=True)
    ]
    sentence = f"{context_sentence(found)} {padding_sentence([found])}".rstrip()
    whole = (
        f"Needed to keep the forecasts within {share(found.bound)} of their variance: {sentence} Measured on "
        f"{counted(found.windows, 'window')} of the test region; changes are shares of that variance."
    )
    drawn = _charts([("Change of the forecasts", found)])
    return render_macro("context.html", "of_series", whole, _SERIES_HEADS, rows, drawn)


def _rows(label: str, one: DatasetContext) -> Iterator[list[str]]:
    """Check of the needed context, and the shortest cut where it is another one."""
    mean, (low, high) = one.mean, one.range
    single = f" ({low} to {high})" if low < high else ""
    known = ((mean.needed, mean.at), (mean.next_shorter, mean.at + 1))
    changes = ", ".join(f"{share(mean.change[at])} at {kept}" for kept, at in known[not mean.at :] if kept is not None)
    about = [label, one.dataset, one.setting, f"{mean.needed}{single}", changes]
    check, shortest = mean.check, mean.shortest_cut
    other = shortest is not None and shortest.lookback not in (mean.lookback, check and check.lookback)
    if check is not None or not other:
        outcome = _OUTCOMES["impossible" if shortest is None else mean.outcome]
        yield [*about, *_cut_cells(mean, check), outcome]
    if other:
        yield [*about, *_cut_cells(mean, shortest), "shortest cut"]


def _cut_cells(found: NeededContext, cut: CutForecasts | None) -> list[str]:
    """Lookback, change, mse, MASE and time of a cut; dashes where there is none."""
    if cut is None:
        return ["–"] * 5
    pairs = ((found.mse[0], cut.mse), (found.mase[0], cut.mase))
    errors = ["–" if math.isnan(after) else f"{figure(whole)} → {figure(after)}" for whole, after in pairs]
    return [str(cut.lookback), share(cut.change), *errors, ratio(cut.time_ratio)]


def _notes(models: Sequence[tuple[str, Sequence[DatasetContext]]]) -> list[str]:
    """How to read the table, with what limits it."""
    every = [one.mean for _, contexts in models for one in contexts]
    bounds = " or ".join(dict.fromkeys(share(one.bound) for one in every))
    notes = [
        f"Changes are shares of the variance of the forecasts, of which {bounds} counts as none. “Needed” is the "
        "shortest context of a grid (3/4, 1/2, 3/8, … of the lookback) that stays within it together with every longer "
        "one: the true value lies above the next shorter of the grid. In brackets, the range over single series.",
        "Errors are those of the whole lookback → the cut one, on the same windows; times are relative to the whole. "
        "The shortest cut is found by cutting alone: a replaced value can disturb a model more than an absent one.",
    ]
    if any(one.outcome == "fails" for one in every):
        notes.append(
            "“Fails”: the older values are hardly read, but the model needs them, as padding or for statistics."
        )
    for label, contexts in models:
        if padding := padding_sentence(one.mean for one in contexts):
            notes.append(f"{label}: {padding}")
    if reasons := dict.fromkeys(clean(one.refusal) for one in every if one.refusal):
        notes.append(f"Not forecast from: {'; '.join(reasons)}.")
    return notes


def _charts(named: Sequence[tuple[str, NeededContext]]) -> dict[str, object]:
    """A chart of both curves for each name, and how many are left out."""
    shown = [(name, _chart(found)) for name, found in named[:_MOST_CHARTS]]
    return {"shown": shown, "left_out": len(named[_MOST_CHARTS:])}


def _chart(found: NeededContext) -> dict[str, object]:
    """Places in an SVG: labels of both axes, the bound, and lines over the contexts."""
    contexts = {found.lookback, *(int(kept) for kept in found.kept[2::4])} if found.lookback > 1 else {1}
    return {
        "left": _LEFT,
        "right": _LEFT + _WIDTH,
        "bottom": _TOP + _HEIGHT,
        "changes": [(f"{_y(tick) + 4:.1f}", share(tick)) for tick in _TICKS],
        "contexts": [(f"{_x(kept, found):.1f}", kept) for kept in contexts],
        "bound": f"{_y(found.bound):.1f}",
        "lines": {
            "replaced": _line(found, zip(found.kept, found.change, strict=True)),
            "cut": _line(found, zip(found.lookbacks, found.cut_change, strict=True)),
        },
    }


def _line(found: NeededContext, points: Iterable[tuple[int, float]]) -> str:
    """Points of a polyline over the contexts shorter than the lookback, whose change is known."""
    known = [(int(at), change) for at, change in points if at < found.lookback and math.isfinite(change)]
    return " ".join(f"{_x(at, found):.1f},{_y(change):.1f}" for at, change in known)


def _x(kept: int, found: NeededContext) -> float:
    return _LEFT + _WIDTH * math.log(kept) / (math.log(found.lookback) or 1.0)


def _y(change: float) -> float:
    shown = min(max(change, _LEAST), _MOST)
    return _TOP + _HEIGHT * math.log(_MOST / shown) / math.log(_MOST / _LEAST)
