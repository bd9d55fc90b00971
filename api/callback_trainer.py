"""The callback for transformers' `Trainer`; `hrx.api.callbacks.TrainerAudit` imports it on first use."""

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hrx.api.callbacks import AsForecaster, Data, TrainingAudit


class TrainerAudit(TrainerCallback):  # type: ignore[misc]  # without type information
    """Audits the model in training every `every` optimiser steps and logs the numbers of `TrainingAudit.measure`.

    They go through `Trainer.log`: into `state.log_history` and to everything that the trainer reports to. Example:
    `trainer.add_callback(TrainerAudit(trainer, as_forecaster, "sample", lookback=96, horizon=24, every=200))`. The
    options are the fields of `TrainingAudit`.
    """

    def __init__(
        self, trainer: Trainer, as_forecaster: AsForecaster, data: Data, *, lookback: int, horizon: int, **options: Any
    ) -> None:
        self.audit = TrainingAudit(as_forecaster, data, lookback, horizon, **options)
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Refuses what cannot be audited before the first step."""
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
