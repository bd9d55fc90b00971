"""`hrx verify`: the admission checks of a model on every setting and how it is computed; sanity checks on request."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from torch import Tensor

from hrx.adapters import Forecaster, locate
from hrx.audit.admission.checks import Check, admit
from hrx.audit.admission.results import admission_windows
from hrx.audit.admission.sanity import sanity
from hrx.audit.memory import Budget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Run, Setting, parse_settings, plan
from hrx.audit.way import Wanted, Way, choose
from hrx.cli.request import wanted_way
from hrx.cli.screen import show
from hrx.errors import Exit, HrxError, describe_error
from hrx.gift_eval import open_source
from hrx.reports import render_table
from hrx.reports.words import number_or_none


def verify(options: argparse.Namespace) -> int:
    """Shows every check with its figure; exit code 1 where one failed."""
    settings = parse_settings(options.settings)
    located = locate(options.model)
    runs = plan(
        [located.identity],
        open_source(options.data),
        settings,
        series=3,
        seeds=1,
        windows=4,
        protocol=Protocol(),
    )
    wanted = wanted_way(options)
    model = located.load()
    by_setting = {setting: _checks(model, setting, runs, wanted, options.sanity) for setting in settings}
    found = [one for one in by_setting.values() if one is not None]
    if not found:
        raise HrxError(f"No series of {options.data} has a window for these settings. Give other --settings or --data.")
    admitted = all(check.passed for one in found for check in one.admission)
    checks = [check for one in found for check in (*one.admission, *one.sanity)]
    name = model.identity.model
    if options.json:
        figures = [vars(check) | {"figure": number_or_none(check.figure)} for check in checks]
        ways = [_as_json(setting, one.way) for setting, one in by_setting.items() if one and one.way]
        print(json.dumps({"model": name, "admitted": admitted, "checks": figures, "ways": ways}, indent=1))
    else:
        show(_table(checks))
        for setting, one in by_setting.items():
            if one and one.way:
                show("\n".join(_said(setting, one.way)))
        show(f"\n{name} ({model.identity.library}) is {'admitted' if admitted else 'NOT admitted'} at these settings.")
        for setting in (setting for setting, found in by_setting.items() if found is None):
            show(f"{setting} was not checked: no series of {options.data} has a window for it.")
        for note in dict.fromkeys(f"{c.check} at {c.setting}: {c.note}." for c in checks if not c.passed):
            show(note)
    return Exit.DONE if all(check.passed for check in checks) else Exit.GATE_FAILED


class _Checks(NamedTuple):
    """The checks of one setting."""

    admission: Sequence[Check]
    sanity: Sequence[Check] = ()
    """No part of admission."""
    way: Way | None = None
    """How the model is computed, where it is admitted."""


def _checks(
    model: Forecaster, setting: Setting, runs: Sequence[Run], wanted: Wanted, with_sanity: bool
) -> _Checks | None:
    """The checks of a setting; None where the data have no window for it."""
    if refusal := model.limits.refusal(setting.lookback, setting.horizon):
        note = f"{model.identity.model} {refusal}"
        return _Checks([Check("limits", str(setting), False, float(setting.lookback), 0.0, note)])
    windows = admission_windows([run for run in runs if run.setting == setting])
    if windows is None:
        return None
    checks = admit(model, windows, setting.horizon)
    admitted = all(check.passed for check in checks)
    return _Checks(
        checks,
        sanity(model, windows, setting.horizon) if with_sanity else (),
        _way(model, windows, setting.horizon, wanted) if admitted else None,
    )


def _way(model: Forecaster, windows: Tensor, horizon: int, wanted: Wanted) -> Way:
    try:
        return choose(model, windows, horizon, wanted, Budget()).way
    except Exception as error:  # a library may raise anything: the checks are worth their table without it
        return Way(notes=(f"the probe failed: {describe_error(error)}.",))


def _as_json(setting: Setting, way: Way) -> dict[str, Any]:
    return {"setting": str(setting)} | asdict(way) | {"probe": json.loads(way.probe or "{}")}


def _said(setting: Setting, way: Way) -> Iterator[str]:
    """A sentence about each choice."""
    seconds: dict[str, float] = json.loads(way.probe or "{}").get("rows", {})
    timed = ", ".join(f"{name} {1000 * value:.3g}" for name, value in sorted(seconds.items(), key=lambda one: one[1]))
    times = f" (milliseconds a window: {timed})" if timed else ""
    yield f"{setting}: rows are {way.rows or 'as the family declares'}{times}."
    yield from (f"{setting}: {name} is on." for name in way.accelerations)
    yield from (f"{setting}: {note}" for note in way.notes)


def _table(checks: Sequence[Check]) -> str:
    rows = [(c.setting, c.check, "pass" if c.passed else "FAIL", f"{c.figure:.2g}", f"{c.limit:.2g}") for c in checks]
    return render_table(("setting", "check", "", "figure", "limit"), rows)
