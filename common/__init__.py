"""hrx: what a forecasting checkpoint reads for each step of its forecast, and whether that reading is real.

    import hrx

    model = hrx.load("bolt-mini")              # or an id, a path; hrx.from_module(module) for anything differentiable
    x = hrx.explain(model, frame, horizon=24)  # a DataFrame, Series, array, tensor, …
    x.to_frame(), x.plot(), x.score()

The names are imported on first use: `import hrx` alone imports neither torch nor pandas.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hrx.adapters import from_callable, from_module, load
    from hrx.api.audit import run_audit
    from hrx.api.callbacks import LightningAudit as LightningAudit
    from hrx.api.callbacks import TrainerAudit as TrainerAudit
    from hrx.api.evaluate import evaluate
    from hrx.api.explain import explain
    from hrx.api.explanation import Explanation
    from hrx.api.revision import Revision, revision
    from hrx.api.score import score
    from hrx.audit.attribution import estimators
    from hrx.audit.protocol import Protocol
    from hrx.reports.compare import compare
    from hrx.reports.runs import read
    from hrx.reports.tables import tables

try:
    __version__ = version("hrx")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0"

__all__ = [
    "Explanation",
    "Protocol",
    "Revision",
    "compare",
    "estimators",
    "evaluate",
    "explain",
    "from_callable",
    "from_module",
    "load",
    "read",
    "revision",
    "run_audit",
    "score",
    "tables",
]
_HOME = {
    "hrx.adapters": ("from_callable", "from_module", "load"),
    "hrx.api.audit": ("run_audit",),
    "hrx.api.callbacks": ("LightningAudit", "TrainerAudit"),  # not in `__all__`: `*` would need their libraries
    "hrx.api.evaluate": ("evaluate",),
    "hrx.api.explain": ("explain",),
    "hrx.api.explanation": ("Explanation",),
    "hrx.api.revision": ("Revision", "revision"),
    "hrx.api.score": ("score",),
    "hrx.audit.attribution": ("estimators",),
    "hrx.audit.protocol": ("Protocol",),
    "hrx.reports": ("compare", "read", "tables"),
}
_MODULES = {name: module for module, names in _HOME.items() for name in names}
_PACKAGES = ("adapters", "api", "audit", "gift_eval", "records", "reports")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"hrx.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted((*_MODULES, *_PACKAGES, "__version__", "__doc__", "__file__", "__path__"))
