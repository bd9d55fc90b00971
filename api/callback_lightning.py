"""The callback for Lightning; `hrx.api.callbacks.LightningAudit` imports it on first use."""

from typing import Any

import torch

from hrx.api.callbacks import AsForecaster, Data, TrainingAudit

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

    def __init__(self, as_forecaster: AsForecaster, data: Data, *, lookback: int, horizon: int, **options: Any) -> None:
        super().__init__()
        self.audit = TrainingAudit(as_forecaster, data, lookback, horizon, **options)
        self._last = 0

    def on_train_start(self, trainer: Any, pl_module: torch.nn.Module) -> None:
        """Refuses what cannot be audited before the first step."""
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
