"""`hrx verify`: the admission checks of a model, or with `--contract` the contract of its official call."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from tempfile import TemporaryDirectory
from typing import cast

import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster, ModelError, library_errors
from hrx.adapters.families import families
from hrx.adapters.registry import Located, locate, trained_setting
from hrx.adapters.wrapped import on_device, resolve_device
from hrx.api.audit_plan import refuse_empty_plan
from hrx.api.progress import Progress, duration
from hrx.audit.admission import Check, admit, admit_channels, sanity
from hrx.audit.contract import PROPERTIES, Examination, check_names, fitting_setting
from hrx.audit.official_call import OfficialCall, Stopped
from hrx.audit.properties import windows
from hrx.audit.protocol import Protocol
from hrx.audit.request import VerifyRequest
from hrx.audit.runner.plan import NAMED, Run, Setting, admission_windows, parse_settings, plan
from hrx.audit.runner.run import no_channel_axis
from hrx.errors import Exit, HrxError
from hrx.gift_eval import open_source
from hrx.records.contract import Contract

SOON = 20.0
"""Seconds of a contract that need no announcement."""
ELSEWHERE_SECONDS = 1800.0
"""How long another process may take to load the model and forecast; a loaded machine takes less."""
_CHILD = "import sys; from hrx.api.verify import forecast_for_parent; forecast_for_parent(*sys.argv[1:])"


@dataclass(frozen=True)
class Verified:
    """Admission checks of a model."""

    model: str
    library: str
    official_call: str
    admitted: bool
    checks: Sequence[Check]
    """Of every setting; sanity checks, which are not part of admission, after the others of the setting."""
    unchecked: Sequence[Setting]
    """Settings for which no series has a window."""

    @property
    def exit(self) -> Exit:
        return Exit.DONE if all(check.passed for check in self.checks) else Exit.GATE_FAILED


def verify(options: VerifyRequest, progress: Progress) -> Verified:
    """Check a model at every setting."""
    if options.channels and options.sanity:
        raise HrxError("--sanity checks windows of one variate. Drop --channels, or drop --sanity.")
    settings = parse_settings(options.settings)
    device = resolve_device(options.device)
    located = _locate(options, progress)
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
    model = _load(located, device, progress)
    if options.channels:
        if (together := model.multivariate()) is None:
            raise HrxError(f"{no_channel_axis(model.identity)}. Drop --channels.")
        model = together
    identity = model.identity
    runs = _that_fit(model, runs, options.data, channels=options.channels)
    checks, unchecked, admitted = list[Check](), list[Setting](), True
    progress.expect(len(settings), {str(one): float(one.lookback + one.horizon) for one in settings}, "settings")
    with library_errors(identity.model, identity.library):
        for setting in settings:
            progress.say(f"checking {identity.model} at {setting}")
            refusal = model.limits.refusal(setting.lookback, setting.horizon)
            x = None if refusal else admission_windows(run for run in runs if run.setting == setting)
            if x is not None:
                found = (admit_channels if x.ndim == 3 else admit)(model, x, setting.horizon)
                admitted &= all(check.passed for check in found)
                checks += [*found, *(sanity(model, x, setting.horizon) if options.sanity else ())]
            elif refusal:
                admitted, note = False, f"{identity.model} {refusal}"
                checks.append(Check("limits", str(setting), False, float(setting.lookback), 0.0, note))
            else:
                unchecked.append(setting)
            progress.step(str(setting), f"{identity.model} at {setting} checked")
    if not checks:
        raise HrxError(f"No series of {options.data} has a window for these settings. Give other --settings or --data.")
    return Verified(identity.model, identity.library, model.official_call, admitted, checks, unchecked)


def _that_fit(model: Forecaster, runs: Sequence[Run], source: str, *, channels: bool) -> list[Run]:
    """Runs on items with as many variates as the model reads; those of the first count where it takes any."""
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


def _locate(options: VerifyRequest, progress: Progress) -> Located:
    progress.say(f"finding {options.model}")
    return locate(options.model, merge_adapter=options.merge_adapter)


def _load(located: Located, device: torch.device, progress: Progress) -> Forecaster:
    progress.say(f"loading {located.identity.model}")
    return on_device(located.load(), device)


def verify_contract(options: VerifyRequest, progress: Progress) -> Contract:
    """Measure the contract of a model at one setting; before a large model, tell what it will cost."""
    if options.channels or options.sanity or options.data != "sample":
        raise HrxError("--contract needs no data and forecasts single series. Drop --data, --channels and --sanity.")
    only = check_names([name for name in options.only.split(",") if name])
    settings = parse_settings(options.settings)
    if len(settings) > 1 and options.settings not in NAMED:
        raise HrxError("--contract measures one setting. Give one, as in --settings 96x24.")
    device = resolve_device(options.device)
    located = _locate(options, progress)
    model = _load(located, device, progress)
    if options.settings in NAMED:
        lookback, horizon = trained_setting(located) or fitting_setting(model.limits)
    else:
        lookback, horizon = settings[0].lookback, settings[0].horizon
        if refusal := model.limits.refusal(lookback, horizon):
            raise HrxError(f"{model.identity.model} {refusal}. Give other --settings.")
    progress.say(f"measuring the contract of {model.identity.model} at {lookback}x{horizon}")
    family = families().get(model.identity.family)
    call = OfficialCall(
        model,
        elsewhere=partial(_forecast_elsewhere, options),
        seconds=inf if options.budget is None else options.budget,
    )
    with library_errors(model.identity.model, model.identity.library):
        found = Examination(call, windows(lookback), horizon, family.promises if family else ())
    calls, expected = found.estimate(only)
    if expected > SOON:
        progress.note(f"About {calls} official calls, {duration(expected)}; --only NAME,… measures less.")
    progress.expect(len(only), {name: float(PROPERTIES[name].calls + 5) for name in only}, "properties")
    for name in only:
        progress.say(f"measuring {name}")
        progress.step(name, f"{name}: {found.finding(name).verdict}")
    return found.contract(only)


def _forecast_elsewhere(options: VerifyRequest, x: Tensor, horizon: int) -> Tensor:
    """`(B, L) -> (B, H)` by a new process, with other hashes and seeds, that loads the model by its name."""
    words = [options.model, options.device, "merge" if options.merge_adapter else "", str(horizon)]
    with TemporaryDirectory() as folder:
        torch.save(x, f"{folder}/windows")
        command = [sys.executable, "-c", _CHILD, folder, *words]
        limit = ELSEWHERE_SECONDS if options.budget is None else min(options.budget, ELSEWHERE_SECONDS)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise Stopped from error
        if done.returncode:
            raise ModelError(f"Another process cannot forecast: {(done.stderr.splitlines() or ['no message'])[-1]}")
        return cast(Tensor, torch.load(f"{folder}/forecast", weights_only=True))


def forecast_for_parent(folder: str, model: str, device: str, merge_adapter: str, horizon: str) -> None:
    """Read the windows of `_forecast_elsewhere` from a folder and write their forecast there."""
    loaded = on_device(locate(model, merge_adapter=bool(merge_adapter)).load(), resolve_device(device))
    torch.save(loaded.official(torch.load(f"{folder}/windows", weights_only=True), int(horizon)), f"{folder}/forecast")
