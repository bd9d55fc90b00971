"""Audits of a model while it trains: `LightningAudit` for Lightning, `TrainerAudit` for transformers' `Trainer`.

A copy of the module in training is audited in memory, with the plan and the measurement of `hrx audit`, until the time
is up. The module itself, its gradients, its training mode and the random generators are left as they are: the weights
after training are those without the callback. The callbacks import their library on first use.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hrx.adapters.contract import Forecaster
from hrx.adapters.formats.module import from_module, frozen_copy
from hrx.adapters.wrapped import OnDevice
from hrx.api.audit_plan import held_datasets
from hrx.audit.memory import MemoryBudget
from hrx.audit.protocol import Protocol
from hrx.audit.runner.plan import Run, Setting, plan
from hrx.audit.runner.run import measure_run
from hrx.audit.torch_state import kept_random_state
from hrx.errors import HrxError, describe_error, install_command
from hrx.gift_eval import Dataset, open_source, read_series
from hrx.gift_eval.tables import Options
from hrx.records.record import DONE, Record

AsForecaster = Callable[[torch.nn.Module], Any]
"""Makes a forecaster of the module in training: a `Forecaster`, or a module or function `(B, L) -> (B, H)`."""
Data = str | Dataset | Mapping[str, Any] | Iterable[Any]
"""What `--data` takes, a dataset, or series as `hrx.explain` takes them, oldest value first."""
MEDIANS = ("g_own", "g_margin", "rank", "context_needed")
"""Columns of a record whose median over the scored runs is logged."""
LOG = logging.getLogger("hrx.api.callbacks")


@dataclass(frozen=True)
class TrainingAudit:
    """What is audited while a model trains, how often, and for how long."""

    as_forecaster: AsForecaster
    data: Data
    lookback: int
    horizon: int
    every: int = 500
    """Optimiser steps from one audit to the next."""
    seconds: float = 30.0
    """No further run is started after this time; the first run of an audit is always made."""
    series: int = 8
    """Series of each dataset, at most."""
    season: int = 1
    """Season of series that are given as arrays, for the seasonal-naive forecast."""
    protocol: Protocol = field(default_factory=lambda: Protocol(draws=2, context=True))
    """By default one pair of draws, and the needed context."""

    def __post_init__(self) -> None:
        for name in ("lookback", "horizon", "every", "series", "season"):
            if not (isinstance(value := getattr(self, name), int) and value >= 1):
                raise HrxError(f"{name}={value!r} of an audit while training must be a whole number from 1.")
        if not self.seconds > 0:
            raise HrxError(f"seconds={self.seconds!r} of an audit while training must be above 0, for example 30.")

    def due(self, step: int) -> bool:
        """Whether an audit follows this optimiser step."""
        return step > 0 and step % self.every == 0

    def check(self, module: torch.nn.Module) -> None:
        """Raises, before training, where the module cannot be audited on the data."""
        with kept_random_state():
            model = self._forecaster(module)
            runs = self._runs(model)
            usable = [run for run in runs if not run.refusal]
            if not usable:
                raise HrxError(f"No series can be audited: {runs[0].refusal if runs else 'the data holds none'}.")
            with torch.no_grad():
                model.forward(torch.as_tensor(usable[0].cut_windows().x, dtype=torch.float32), self.horizon)

    def measure(self, module: torch.nn.Module, step: int = 0) -> dict[str, float]:
        """Return the numbers of one audit of a copy of the module, by name; one that is unknown is left out.

        `hrx/runs` counts scored runs, `hrx/runs_left` those that the time did not allow, `hrx/beats_naive` is the share
        of scored runs that beat both naive forecasts, and `hrx/g_margin_skilled` the median of those alone.
        """
        start = time.monotonic()
        records: list[Record] = []
        with kept_random_state():
            try:
                model = self._forecaster(module)
                runs = self._runs(model)
                for run in runs:
                    if records and time.monotonic() - start > self.seconds:
                        break
                    records.append(measure_run(model, run, MemoryBudget()).record)
            except Exception as error:  # a failed audit must not end the training
                LOG.warning("Step %d: the audit failed: %s", step, describe_error(error))
                return {}
        if not any(record.status == DONE for record in records):
            reason = records[0].reason if records else "the data holds no series"
            LOG.warning("Step %d: no run of %d could be scored: %s", step, len(records), reason)
        return _summary(records, len(runs) - len(records), time.monotonic() - start)

    def _forecaster(self, module: torch.nn.Module) -> Forecaster:
        copied = frozen_copy(module)
        made = self.as_forecaster(copied)
        model = made if isinstance(made, Forecaster) else from_module(made, copy=False)
        first = next(copied.parameters(), None)
        return model if first is None or first.device.type == "cpu" else _Resident(model, model, first.device)

    def _runs(self, model: Forecaster) -> list[Run]:
        setting = Setting(self.lookback, self.horizon)
        about = {"series": self.series, "seeds": 1, "windows": 1, "protocol": self.protocol}
        return plan([model.identity], self._datasets, [setting], **about)  # type: ignore[arg-type]

    @cached_property
    def _datasets(self) -> list[Dataset]:
        if isinstance(self.data, str):
            return open_source(self.data)
        if isinstance(self.data, Dataset):
            return [self.data]
        return held_datasets(read_series(self.data, Options(season=self.season)).series, "validation")


class _Resident(OnDevice):
    """A forecaster whose module already is on a device; its official call runs there too."""

    def official(self, x: Tensor, horizon: int) -> Tensor:
        with self.device if self.device.type != "cpu" else nullcontext():
            return self._moved.official(x.to(self.device), horizon).to(x.device)


def _summary(records: list[Record], left: int, seconds: float) -> dict[str, float]:
    scored = [record for record in records if record.status == DONE]
    skilled = [record for record in scored if record.beats_naive]
    values = {"hrx/beats_naive": len(skilled) / len(scored)} if scored else {}
    for where, name, of in (*((name, name, scored) for name in MEDIANS), ("g_margin_skilled", "g_margin", skilled)):
        known = [value for record in of if (value := getattr(record, name)) is not None]
        if known and not math.isnan(found := float(median(known))):
            values[f"hrx/{where}"] = found
    counts = {"hrx/runs": len(scored), "hrx/runs_unscored": len(records) - len(scored), "hrx/runs_left": left}
    return values | {name: float(count) for name, count in counts.items()} | {"hrx/seconds": seconds}


# The classes below derive from those of libraries that may not be installed, so each is made on first use.


@cache
def _lightning_audit() -> type:
    try:
        from lightning.pytorch import Callback
    except ImportError:  # the same library under its older name
        from pytorch_lightning import Callback

    class LightningAudit(Callback):  # type: ignore[misc]  # without type information
        """Audits the module in training every `every` optimiser steps and logs the numbers of `TrainingAudit.measure`.

        They go to every logger of the trainer at once, whatever `log_every_n_steps` is, and can be monitored by other
        callbacks as `hrx/g_margin`. Example: `Trainer(callbacks=[LightningAudit(lambda m: m.net, "sample", lookback=96,
        horizon=24, every=200, seconds=20)])`. The options are the fields of `TrainingAudit`.
        """

        def __init__(
            self, as_forecaster: AsForecaster, data: Data, *, lookback: int, horizon: int, **options: Any
        ) -> None:
            super().__init__()
            self.audit = TrainingAudit(as_forecaster, data, lookback, horizon, **options)
            self._last = 0

        def on_train_start(self, trainer: Any, pl_module: torch.nn.Module) -> None:
            """Refuse what cannot be audited before the first step."""
            self._last = trainer.global_step
            if trainer.is_global_zero:
                self.audit.check(pl_module)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """Audits after an optimiser step that is due; batches whose gradients are accumulated are not steps."""
            step = trainer.global_step
            if step == self._last or not self.audit.due(step):
                return
            self._last = step
            metrics = self.audit.measure(pl_module, step) if trainer.is_global_zero else {}
            for logger in trainer.loggers if metrics else ():
                logger.log_metrics(metrics, step=step)
            # For callbacks that monitor a metric. The loggers have it already.
            pl_module.log_dict(metrics, logger=False, rank_zero_only=True, batch_size=1)

    LightningAudit.__qualname__ = "LightningAudit"  # by which it is pickled
    return LightningAudit


@cache
def _trainer_audit() -> type:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    class TrainerAudit(TrainerCallback):  # type: ignore[misc]  # without type information
        """Audits the model in training every `every` optimiser steps and logs the numbers of `TrainingAudit.measure`.

        They go through `Trainer.log`: into `state.log_history` and to everything that the trainer reports to. Example:
        `trainer.add_callback(TrainerAudit(trainer, as_forecaster, "sample", lookback=96, horizon=24, every=200))`. The
        options are the fields of `TrainingAudit`.
        """

        def __init__(
            self,
            trainer: Trainer,
            as_forecaster: AsForecaster,
            data: Data,
            *,
            lookback: int,
            horizon: int,
            **options: Any,
        ) -> None:
            self.audit = TrainingAudit(as_forecaster, data, lookback, horizon, **options)
            self._trainer = trainer

        def on_train_begin(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
        ) -> None:
            """Refuse what cannot be audited before the first step."""
            if state.is_world_process_zero:
                self.audit.check(model)

        def on_step_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
        ) -> None:
            """Audits after an optimiser step that is due."""
            if not (state.is_world_process_zero and self.audit.due(state.global_step)):
                return
            if metrics := self.audit.measure(model, state.global_step):
                # Logging counts as the log that the trainer may have scheduled for this step, such as that of the loss.
                scheduled = control.should_log
                self._trainer.log(metrics)
                control.should_log = scheduled

    TrainerAudit.__qualname__ = "TrainerAudit"
    return TrainerAudit


_CALLBACKS = {
    "LightningAudit": (_lightning_audit, ("lightning", "pytorch_lightning"), "lightning"),
    "TrainerAudit": (_trainer_audit, ("transformers",), "trainer"),
}


def __getattr__(name: str) -> Any:
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    make, libraries, extra = _CALLBACKS[name]
    if not any(find_spec(library) for library in libraries):
        raise HrxError(f"{name} needs {libraries[0]}, which is not installed. Install it: {install_command(extra)}")
    return make()


def __dir__() -> list[str]:
    return sorted([*globals(), *_CALLBACKS])
