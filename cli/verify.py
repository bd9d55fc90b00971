"""`hrx verify`: the admission checks of a model at every setting, and sanity checks on request."""

import argparse
import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from hrx.adapters import Forecaster, locate, trained_setting
from hrx.adapters.contract import library_errors
from hrx.adapters.device import on_device, resolve_device
from hrx.audit.admission.checks import Check, admit, admit_channels
from hrx.audit.admission.sanity import sanity
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import NAMED, Run, Setting, admission_windows, parse_settings, plan
from hrx.audit.runner.run import no_channel_axis
from hrx.cli.progress import progress
from hrx.cli.request import refuse_empty_plan
from hrx.cli.terminal import show
from hrx.errors import Exit, HrxError
from hrx.gift_eval import open_source
from hrx.reports import render_table
from hrx.reports.summary import worst_parity
from hrx.reports.text import number_or_none


class _Checks(NamedTuple):
    """The checks of one setting."""

    admission: Sequence[Check]
    sanity: Sequence[Check] = ()
    """Not part of admission."""


def verify(options: argparse.Namespace) -> int:
    """Shows every check with its figure; exit code 1 where one failed."""
    if options.channels and options.sanity:
        raise HrxError("--sanity checks windows of one variate. Drop --channels, or drop --sanity.")
    settings = parse_settings(options.settings)
    device = resolve_device(options.device)
    progress.say(f"finding {options.model}")
    located = locate(options.model, merge_adapter=options.merge_adapter)
    if options.settings in NAMED and (own := trained_setting(located)):
        settings = (Setting(*own),)
    runs = plan(
        [located.identity],
        open_source(options.data),
        settings,
        series=3,
        seeds=1,
        windows=4,
        protocol=Protocol(),
        channels=options.channels,
    )
    if runs or not options.channels:  # a source without several variates gets its own sentence below
        refuse_empty_plan(runs, options.data)
    progress.say(f"loading {located.identity.model}")
    model = on_device(located.load(), device)
    if options.channels:
        model = _with_channels(model)
    runs = _that_fit(model, runs, options.data, channels=options.channels)
    by_setting: dict[Setting, _Checks | None] = {}
    progress.expect(len(settings), {str(one): float(one.lookback + one.horizon) for one in settings}, "settings")
    with library_errors(model.identity.model, model.identity.library):
        for setting in settings:
            progress.say(f"checking {model.identity.model} at {setting}")
            by_setting[setting] = _check(model, setting, runs, options.sanity)
            progress.step(str(setting), f"{model.identity.model} at {setting} checked")
    checked = [checks for checks in by_setting.values() if checks is not None]
    if not checked:
        raise HrxError(f"No series of {options.data} has a window for these settings. Give other --settings or --data.")
    admitted = all(check.passed for checks in checked for check in checks.admission)
    every = [check for checks in checked for check in (*checks.admission, *checks.sanity)]
    name = model.identity.model
    parity = worst_parity(every)
    if options.json:
        figures = [vars(check) | {"figure": number_or_none(check.figure)} for check in every]
        about = {"model": name, "admitted": admitted, "official_call": model.official_call}
        print(json.dumps(about | {"parity": number_or_none(parity), "checks": figures}, indent=1))
    else:
        show(_table(every))
        worst = "" if math.isnan(parity) else f", worst parity {parity:.1e}"
        outcome = "admitted" if admitted else "NOT admitted"
        show(f"\n{name} ({model.identity.library}) is {outcome} at these settings{worst}.")
        show(f"The forward was compared with {model.official_call}.")
        for setting in (setting for setting, checks in by_setting.items() if checks is None):
            show(f"{setting} was not checked: no series of {options.data} has a window for it.")
        for note in dict.fromkeys(f"{c.check} at {c.setting}: {c.note}." for c in every if not c.passed):
            show(note)
    return Exit.DONE if all(check.passed for check in every) else Exit.GATE_FAILED


def _with_channels(model: Forecaster) -> Forecaster:
    together = model.multivariate()
    if together is None:
        raise HrxError(f"{no_channel_axis(model.identity)}. Drop --channels.")
    return together


def _that_fit(model: Forecaster, runs: Sequence[Run], source: str, *, channels: bool) -> list[Run]:
    """The runs on items with as many variates as the model reads; those of the first count where it takes any."""
    counts = list(dict.fromkeys(run.channels for run in runs if run.series is not None))
    if channels and not counts:
        wanted = model.limits.channels or "several"
        raise HrxError(f"No dataset of {source} has {wanted} variates. Give other --data.")
    refusals = {count: model.limits.refusal_of_channels(count) for count in counts}
    fitting = [count for count in counts if refusals[count] is None]
    if counts and not fitting:
        asked = "" if channels else " and --channels"
        raise HrxError(f"{model.identity.model} {refusals[counts[0]]}{asked}.")
    # Windows of one batch have one number of variates.
    return [run for run in runs if run.series is None or run.channels == fitting[0]]


def _check(model: Forecaster, setting: Setting, runs: Sequence[Run], with_sanity: bool) -> _Checks | None:
    """The checks of a setting; None where the data have no window for it."""
    if refusal := model.limits.refusal(setting.lookback, setting.horizon):
        note = f"{model.identity.model} {refusal}"
        return _Checks([Check("limits", str(setting), False, float(setting.lookback), 0.0, note)])
    windows = admission_windows(run for run in runs if run.setting == setting)
    if windows is None:
        return None
    if windows.ndim == 3:
        return _Checks(admit_channels(model, windows, setting.horizon))
    extra = sanity(model, windows, setting.horizon) if with_sanity else ()
    return _Checks(admit(model, windows, setting.horizon), extra)


def _table(checks: Sequence[Check]) -> str:
    rows = [(c.setting, c.check, "pass" if c.passed else "FAIL", f"{c.figure:.2g}", f"{c.limit:.2g}") for c in checks]
    return render_table(("setting", "check", "", "figure", "limit"), rows)
