"""Contract of a model that is given by its name: `hrx verify --contract`."""

import subprocess
import sys
from functools import partial
from math import inf
from tempfile import TemporaryDirectory
from typing import cast

import torch
from torch import Tensor

from hrx.adapters.contract import ModelError, library_errors
from hrx.adapters.families import families
from hrx.adapters.registry import locate, trained_setting
from hrx.adapters.wrapped import on_device, resolve_device
from hrx.api.progress import Progress, duration
from hrx.audit.contract import PROPERTIES, Examination, check_names, fitting_setting
from hrx.audit.official_call import OfficialCall
from hrx.audit.properties import windows
from hrx.audit.request import VerifyRequest
from hrx.audit.runner.plan import NAMED, parse_settings
from hrx.errors import HrxError
from hrx.records.contract import Contract

SOON = 20.0
"""Seconds of a contract that need no announcement."""
_CHILD = "import sys; from hrx.api.contract import forecast_for_parent; forecast_for_parent(*sys.argv[1:])"


def verify_contract(options: VerifyRequest, progress: Progress) -> Contract:
    """Measure the contract of a model at one setting; before a large model, tell what it will cost."""
    if options.channels or options.sanity or options.data != "sample":
        raise HrxError("--contract needs no data and forecasts single series. Drop --data, --channels and --sanity.")
    only = check_names([name for name in options.only.split(",") if name])
    settings = parse_settings(options.settings)
    if len(settings) > 1 and options.settings not in NAMED:
        raise HrxError("--contract measures one setting. Give one, as in --settings 96x24.")
    progress.say(f"finding {options.model}")
    located = locate(options.model, merge_adapter=options.merge_adapter)
    progress.say(f"loading {located.identity.model}")
    model = on_device(located.load(), resolve_device(options.device))
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
        done = subprocess.run([sys.executable, "-c", _CHILD, folder, *words], capture_output=True, text=True)
        if done.returncode:
            raise ModelError(f"Another process cannot forecast: {(done.stderr.splitlines() or ['no message'])[-1]}")
        return cast(Tensor, torch.load(f"{folder}/forecast", weights_only=True))


def forecast_for_parent(folder: str, model: str, device: str, merge_adapter: str, horizon: str) -> None:
    """Read the windows of `_forecast_elsewhere` from a folder and write their forecast there."""
    located = locate(model, merge_adapter=bool(merge_adapter))
    loaded = on_device(located.load(), resolve_device(device))
    torch.save(loaded.official(torch.load(f"{folder}/windows", weights_only=True), int(horizon)), f"{folder}/forecast")
