"""Admission results in the ledger: a setting is checked once per model, versions and windows."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from hrx.adapters import Identity
from hrx.adapters.contract import ADAPTER_VERSION
from hrx.audit.admission.checks import CHECK_NAMES, Check
from hrx.records.ledger import Ledger, StoredCheck


class AdmissionResults:
    """The admission checks that a ledger holds."""

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._stored: dict[tuple[str, ...], list[StoredCheck]] = {}
        for check in ledger.checks():
            self._stored.setdefault((*check[:4], check.setting, check.windows), []).append(check)

    def find(self, identity: Identity, setting: str, digest: str) -> Sequence[StoredCheck]:
        """The checks on these windows; empty where they have not been made.

        A check that is missing, as one whose row is damaged, counts as none of them made unless another one failed.
        """
        checks = self._stored.get((*_versions(identity), setting, digest), [])
        complete = {check.check for check in checks} >= CHECK_NAMES
        return checks if complete or failed_check(checks) else []

    def store(self, identity: Identity, digest: str, checks: Sequence[Check]) -> Sequence[StoredCheck]:
        """Writes new checks."""
        stored = [to_stored(identity, check, digest) for check in checks]
        self._ledger.write_checks(stored)
        return stored


def to_stored(identity: Identity, check: Check, digest: str = "") -> StoredCheck:
    """A check with the model and versions it was made with."""
    return StoredCheck(
        *_versions(identity),
        model=identity.model,
        setting=check.setting,
        check=check.check,
        passed=check.passed,
        figure=check.figure,
        limit=check.limit,
        note=check.note,
        windows=digest,
    )


def _versions(identity: Identity) -> tuple[str, str, str, str]:
    return identity.fingerprint, identity.library, ADAPTER_VERSION, torch.__version__


def windows_digest(windows: Tensor, season: int) -> str:
    """sha256 of the windows, and of the season where the model depends on it."""
    return hashlib.sha256(windows.numpy().tobytes() + (f"season {season}".encode() if season else b"")).hexdigest()


def failed_check(checks: Sequence[StoredCheck]) -> StoredCheck | None:
    """The first check that failed, or None where the model is admitted."""
    return next((check for check in checks if not check.passed), None)
