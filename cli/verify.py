"""`hrx verify`: the admission checks of a model at every setting, and sanity checks on request."""

import argparse
import json
from collections.abc import Sequence
from typing import NamedTuple

from hrx.adapters import Forecaster, locate
from hrx.adapters.device import on_device, resolve_device
from hrx.audit.admission.checks import Check, admit
from hrx.audit.admission.sanity import sanity
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Run, Setting, admission_windows, parse_settings, plan
from hrx.cli.request import refuse_empty_plan
from hrx.cli.terminal import show
from hrx.errors import Exit, HrxError
from hrx.gift_eval import open_source
from hrx.reports import render_table
from hrx.reports.text import number_or_none


class _Checks(NamedTuple):
    """The checks of one setting."""

    admission: Sequence[Check]
    sanity: Sequence[Check] = ()
    """Not part of admission."""


def verify(options: argparse.Namespace) -> int:
    """Shows every check with its figure; exit code 1 where one failed."""
    settings = parse_settings(options.settings)
    device = resolve_device(options.device)
    located = locate(options.model)
    datasets = open_source(options.data)
    runs = plan([located.identity], datasets, settings, series=3, seeds=1, windows=4, protocol=Protocol())
    refuse_empty_plan(runs, options.data)
    model = on_device(located.load(), device)
    by_setting = {setting: _check(model, setting, runs, options.sanity) for setting in settings}
    checked = [checks for checks in by_setting.values() if checks is not None]
    if not checked:
        raise HrxError(f"No series of {options.data} has a window for these settings. Give other --settings or --data.")
    admitted = all(check.passed for checks in checked for check in checks.admission)
    every = [check for checks in checked for check in (*checks.admission, *checks.sanity)]
    name = model.identity.model
    if options.json:
        figures = [vars(check) | {"figure": number_or_none(check.figure)} for check in every]
        print(json.dumps({"model": name, "admitted": admitted, "checks": figures}, indent=1))
    else:
        show(_table(every))
        show(f"\n{name} ({model.identity.library}) is {'admitted' if admitted else 'NOT admitted'} at these settings.")
        for setting in (setting for setting, checks in by_setting.items() if checks is None):
            show(f"{setting} was not checked: no series of {options.data} has a window for it.")
        for note in dict.fromkeys(f"{c.check} at {c.setting}: {c.note}." for c in every if not c.passed):
            show(note)
    return Exit.DONE if all(check.passed for check in every) else Exit.GATE_FAILED


def _check(model: Forecaster, setting: Setting, runs: Sequence[Run], with_sanity: bool) -> _Checks | None:
    """The checks of a setting; None where the data have no window for it."""
    if refusal := model.limits.refusal(setting.lookback, setting.horizon):
        note = f"{model.identity.model} {refusal}"
        return _Checks([Check("limits", str(setting), False, float(setting.lookback), 0.0, note)])
    windows = admission_windows(run for run in runs if run.setting == setting)
    if windows is None:
        return None
    extra = sanity(model, windows, setting.horizon) if with_sanity else ()
    return _Checks(admit(model, windows, setting.horizon), extra)


def _table(checks: Sequence[Check]) -> str:
    rows = [(c.setting, c.check, "pass" if c.passed else "FAIL", f"{c.figure:.2g}", f"{c.limit:.2g}") for c in checks]
    return render_table(("setting", "check", "", "figure", "limit"), rows)
