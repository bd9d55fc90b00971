"""`hrx verify`: the admission checks of a model on every setting, sanity checks on request, and nothing else."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import NamedTuple

from hrx.adapters import Forecaster, locate
from hrx.audit.admission import Check, admit
from hrx.audit.gate import admission_windows
from hrx.audit.plan import Run, Setting, parse_settings, plan
from hrx.audit.protocol import Protocol
from hrx.audit.sanity import sanity
from hrx.cli.screen import show
from hrx.errors import Exit, HrxError
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
    model = located.load()
    by_setting = {setting: _checks(model, setting, runs, options.sanity) for setting in settings}
    found = [one for one in by_setting.values() if one is not None]
    if not found:
        raise HrxError(f"No series of {options.data} has a window for these settings. Give other --settings or --data.")
    admitted = all(check.passed for one in found for check in one.admission)
    checks = [check for one in found for check in (*one.admission, *one.sanity)]
    name = model.identity.model
    if options.json:
        told = [vars(check) | {"figure": number_or_none(check.figure)} for check in checks]
        print(json.dumps({"model": name, "admitted": admitted, "checks": told}, indent=1))
    else:
        show(_table(checks))
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


def _checks(model: Forecaster, setting: Setting, runs: Sequence[Run], with_sanity: bool) -> _Checks | None:
    """The checks of a setting; None where the data have no window for it."""
    if refusal := model.limits.refusal(setting.lookback, setting.horizon):
        note = f"{model.identity.model} {refusal}"
        return _Checks([Check("limits", str(setting), False, float(setting.lookback), 0.0, note)])
    windows = admission_windows([run for run in runs if run.setting == setting])
    if windows is None:
        return None
    return _Checks(
        admit(model, windows, setting.horizon), sanity(model, windows, setting.horizon) if with_sanity else ()
    )


def _table(checks: Sequence[Check]) -> str:
    rows = [(c.setting, c.check, "pass" if c.passed else "FAIL", f"{c.figure:.2g}", f"{c.limit:.2g}") for c in checks]
    return render_table(("setting", "check", "", "figure", "limit"), rows)
