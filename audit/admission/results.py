"""Admission as the engine sees it: on which windows a setting is checked, what is stored of it, and what it refuses.

The checks themselves are in `admission`; how an admitted model is computed is chosen in `way`, and stored here too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hrx.adapters import Identity
from hrx.adapters.acceleration import Acceleration
from hrx.adapters.contract import ADAPTER_VERSION, Strategy
from hrx.audit.admission.checks import Check
from hrx.audit.ledger.record import Record
from hrx.audit.ledger.store import Ledger, StoredCheck, StoredWay
from hrx.audit.runner.plan import Run
from hrx.audit.runner.run import windows_of
from hrx.audit.scoring.baselines import Floats
from hrx.audit.way import Wanted, Way
from hrx.gift_eval import UnusableSeries

ADMISSION_WINDOWS = 4


class Gate:
    """The admission checks and the ways of a ledger: a setting has both once on the same windows."""

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._stored: dict[tuple[str, ...], list[StoredCheck]] = {}
        for check in ledger.checks():
            self._stored.setdefault((*check[:4], check.setting, check.windows), []).append(check)
        self._ways = {way[:7]: way for way in ledger.ways()}

    def stored(self, identity: Identity, setting: str, digest: str) -> Sequence[StoredCheck]:
        """The checks of these windows, empty where they were not checked yet."""
        return self._stored.get((*_about(identity), setting, digest), [])

    def store(self, identity: Identity, digest: str, checks: Sequence[Check]) -> Sequence[StoredCheck]:
        """Writes checks that were just made."""
        about = _about(identity)
        made = [
            StoredCheck(*about, identity.model, c.setting, c.check, c.passed, c.figure, c.limit, c.note, digest)
            for c in checks
        ]
        self._ledger.write_checks(made)
        return made

    def way(self, identity: Identity, setting: str, digest: str, wanted: Wanted) -> Way | None:
        """How the model is computed on these windows, None where that was not chosen yet."""
        stored = self._ways.get((*_about(identity), setting, digest, str(wanted)))
        if stored is None:
            return None
        kept = cast("tuple[Acceleration, ...]", tuple(stored.accelerations.split()))
        return Way(cast(Strategy, stored.rows), kept, stored.probe, tuple(json.loads(stored.notes)))

    def store_way(self, identity: Identity, setting: str, digest: str, wanted: Wanted, way: Way) -> None:
        """Writes a choice that was just made."""
        place = *_about(identity), setting, digest, str(wanted)
        made = str(way.rows), " ".join(way.accelerations), str(way.probe), json.dumps(way.notes)
        self._ledger.write_way(StoredWay(*place, *made))


def _about(identity: Identity) -> tuple[str, str, str, str]:
    return identity.fingerprint, identity.library, ADAPTER_VERSION, torch.__version__


def digest_of(windows: Tensor, season: int) -> str:
    """sha256 of the windows, and of the season where it makes another model."""
    return hashlib.sha256(windows.numpy().tobytes() + (f"season {season}".encode() if season else b"")).hexdigest()


def refusal_of(checks: Sequence[StoredCheck]) -> Record:
    """Why no run of the setting may be scored, as a part of their records; empty where they may."""
    for check in checks:
        if not check.passed:
            reason = f"{check.check}: {check.figure:.3g} against {check.limit:.3g} ({check.note})"
            return {"reason": reason, "check_failed": check.check}
    return {}


def admission_windows(runs: Sequence[Run]) -> Tensor | None:
    """Up to four real windows `(W, L)` that are not flat, of different series where there are several.

    A flat window has no derivative in a model that divides by its spread. None where no series has any window at all
    or only flat ones: then every run is excluded for a reason of its own.
    """
    found: dict[str, Floats] = {}
    tried: set[tuple[str, int]] = set()
    for run in runs:
        if len(found) == ADMISSION_WINDOWS:
            break
        if run.series is None or run.series.fingerprint in found or (run.series.fingerprint, run.seed) in tried:
            continue
        tried.add((run.series.fingerprint, run.seed))
        with suppress(UnusableSeries):
            for x in windows_of(run).x:
                if np.ptp(x) > 0:
                    found[run.series.fingerprint] = x
                    break
    return torch.as_tensor(np.stack(list(found.values())), dtype=torch.float32) if found else None
