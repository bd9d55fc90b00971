"""Audits while training: the numbers reach the trainer's own logger, and the training does not notice."""

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import hrx.api.callbacks
from hrx.adapters import from_module
from hrx.api.callbacks import TrainingAudit, frozen_copy
from hrx.audit import Protocol, explain
from hrx.audit.scoring.quantities import rank
from hrx.errors import HrxError
from hrx.gift_eval.windows import split, standardise

LOOKBACK, HORIZON, EVERY, LAST = 24, 6, 3, 6
DATA = {f"s{i}": np.sin(np.arange(300) * 2 * np.pi / 12 + i) + 0.1 * np.cos(np.arange(300) ** 1.5) for i in range(2)}
LOGGED = {
    "hrx/g_own",
    "hrx/g_margin",
    "hrx/rank",
    "hrx/context_needed",
    "hrx/beats_naive",
    "hrx/runs",
    "hrx/runs_left",
    "hrx/seconds",
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Net(torch.nn.Module):
    """With everything that an audit could disturb: dropout draws numbers, batch norm counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(LOOKBACK, 16),
            torch.nn.Tanh(),
            torch.nn.Dropout(0.3),
            torch.nn.BatchNorm1d(16),
            torch.nn.Linear(16, HORIZON),
        )

    def forward(self, past: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = self.layers(past)
        return {"prediction": y} if labels is None else {"loss": (y - labels).square().mean(), "prediction": y}


def as_forecaster(module: Any) -> Any:
    net = getattr(module, "net", module)
    return lambda x: net(x)["prediction"]


def samples() -> list[dict[str, torch.Tensor]]:
    windows = [torch.tensor(values[i : i + LOOKBACK + HORIZON]).float() for values in DATA.values() for i in range(64)]
    return [{"past": one[:LOOKBACK], "labels": one[LOOKBACK:]} for one in windows]


class Trained:
    """Weights after training, and the values that were logged with their steps."""

    def __init__(self, weights: dict[str, torch.Tensor], logged: list[dict[str, float]]):
        self.weights, self.logged = weights, logged


def train_by_lightning(audited: bool, folder: Path) -> Trained:
    import lightning as L
    from lightning.pytorch.loggers import CSVLogger
    from torch.utils.data import DataLoader

    class Lit(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    torch.manual_seed(0)
    module, logger = Lit(), CSVLogger(folder)
    options = {"lookback": LOOKBACK, "horizon": HORIZON, "every": EVERY, "season": 12}
    callbacks = [hrx.LightningAudit(as_forecaster, DATA, **options)] if audited else []
    trainer = L.Trainer(
        max_steps=LAST, accumulate_grad_batches=2, accelerator="cpu", callbacks=callbacks, logger=logger,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(samples(), batch_size=8, shuffle=True))
    assert module.training
    file = Path(logger.log_dir) / "metrics.csv"
    rows = pd.read_csv(file).to_dict("records") if file.exists() else []
    if audited:
        assert float(trainer.callback_metrics["hrx/g_margin"]) == pytest.approx(rows[-1]["hrx/g_margin"])
    return Trained(module.net.state_dict(), rows)


def train_by_trainer(audited: bool, folder: Path) -> Trained:
    import transformers

    torch.manual_seed(0)
    args = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=LAST, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        learning_rate=0.01, logging_steps=EVERY, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = transformers.Trainer(model=Net(), args=args, train_dataset=samples())
    if audited:
        options = {"lookback": LOOKBACK, "horizon": HORIZON, "every": EVERY, "season": 12}
        trainer.add_callback(hrx.TrainerAudit(trainer, as_forecaster, DATA, **options))
    trainer.train()
    history = trainer.state.log_history
    # The loss is still logged at its own steps, beside the audit.
    assert [row["step"] for row in history if "loss" in row] == [EVERY, LAST]
    return Trained(trainer.model.state_dict(), [row for row in history if "hrx/rank" in row])


@pytest.mark.slow
@pytest.mark.parametrize("train", [train_by_lightning, train_by_trainer])
def test_an_audit_is_logged_by_the_trainer_and_the_weights_are_bit_identical_without_it(
    train: Any, tmp_path: Path
) -> None:
    plain, audited = train(False, tmp_path / "plain"), train(True, tmp_path / "audited")
    assert plain.logged == []
    assert [row["step"] for row in audited.logged] == [EVERY, LAST]
    for row in audited.logged:
        assert set(row) >= LOGGED
        assert (row["hrx/runs"], row["hrx/runs_left"], row["hrx/runs_unscored"]) == (2, 0, 0)
        assert np.isfinite([row[name] for name in LOGGED]).all()
    assert audited.logged[0]["hrx/g_margin"] != audited.logged[1]["hrx/g_margin"]
    for name, weight in plain.weights.items():
        assert torch.equal(weight, audited.weights[name]), name


def small_audit(**options: Any) -> TrainingAudit:
    return TrainingAudit(as_forecaster, DATA, LOOKBACK, HORIZON, season=12, **options)


def trained_net() -> Net:
    torch.manual_seed(0)
    net = Net()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    batch = {name: torch.stack([one[name] for one in samples()]) for name in ("past", "labels")}
    for _ in range(40):
        optimiser.zero_grad()
        net(**batch)["loss"].backward()
        optimiser.step()
    return net


def test_the_numbers_are_those_of_the_frozen_module_on_the_test_region_of_each_series() -> None:
    net = trained_net()
    found = small_audit().measure(net)
    model, ranks, wins = from_module(as_forecaster(copy.deepcopy(net).eval())), [], []
    for values in DATA.values():
        start = split(len(values), HORIZON)
        z = standardise(values, start).values
        every = range(start, len(z) - HORIZON + 1)
        x = torch.tensor(np.stack([z[t - LOOKBACK : t] for t in every])).float()
        y = np.stack([z[t : t + HORIZON] for t in every])
        with torch.no_grad():
            error = float(np.square(model.forward(x, HORIZON).numpy() - y).mean())
        last = float(np.square(x[:, -1:].numpy() - y).mean())
        wins.append(error < last and error < float(np.square(y).mean()))
        ranks.append(rank(explain(model, x, HORIZON)).participation)
    assert found["hrx/beats_naive"] == np.mean(wins)
    # One window of each series is explained; its rank is within those of the region.
    assert min(one.min() for one in ranks) <= found["hrx/rank"] <= max(one.max() for one in ranks)


def test_an_audit_leaves_module_gradients_and_random_generators_as_they_were() -> None:
    net = trained_net()
    net.layers[2].eval()  # a mode that differs from its parent's
    net.layers[4].weight.requires_grad_(False)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    gradients = {name: value.grad for name, value in net.named_parameters()}
    random = torch.get_rng_state()
    assert small_audit().measure(net)["hrx/runs"] == 2
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert all(value.grad is gradients[name] for name, value in net.named_parameters())
    assert [one.requires_grad for one in net.layers[4].parameters()] == [False, True]
    assert torch.equal(torch.get_rng_state(), random)


def test_no_run_is_started_after_the_time_is_up_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(hrx.api.callbacks.time, "monotonic", lambda: next(now))
    found = small_audit(seconds=5).measure(trained_net())
    assert (found["hrx/runs"], found["hrx/runs_left"]) == (1, 1)


def test_an_unknown_number_is_not_logged_and_the_reason_is(caplog: pytest.LogCaptureFixture) -> None:
    constant = TrainingAudit(lambda module: lambda x: x[:, :HORIZON] * 0, DATA, LOOKBACK, HORIZON)
    with caplog.at_level(logging.WARNING, logger="hrx.api.callbacks"):
        found = constant.measure(Net(), step=7)
    assert set(found) == {"hrx/runs", "hrx/runs_unscored", "hrx/runs_left", "hrx/seconds"}
    assert (found["hrx/runs"], found["hrx/runs_unscored"]) == (0, 2)
    assert "Step 7: no run of 2 could be scored: constant forecast" in caplog.text


def test_an_audit_that_fails_while_training_is_reported_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def broken(module: Any) -> Any:
        raise RuntimeError("no head")

    with caplog.at_level(logging.WARNING, logger="hrx.api.callbacks"):
        assert TrainingAudit(broken, DATA, LOOKBACK, HORIZON).measure(Net(), step=3) == {}
    assert "Step 3: the audit failed: RuntimeError: no head" in caplog.text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"every": 0}, "every=0 of an audit while training must be a whole number from 1"),
        ({"seconds": 0}, "seconds=0 .* must be above 0"),
        ({"lookback": 400}, "No series can be audited: .* too few for 400x6"),
        ({"data": {"a": 3.0}}, "A float cannot be read as series"),
        ({"as_forecaster": lambda module: lambda x: x[:, :2]}, "returned shape"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_training(change: dict[str, Any], sentence: str) -> None:
    given = {"as_forecaster": as_forecaster, "data": DATA, "lookback": LOOKBACK, "horizon": HORIZON} | change
    with pytest.raises(HrxError, match=sentence):
        TrainingAudit(**given).check(Net())


def test_a_forward_that_accelerate_has_replaced_runs_the_weights_of_the_copy() -> None:
    net = trained_net()
    original = net.forward
    net._original_forward = original
    net.forward = lambda *args, **kwargs: original(*args, **kwargs)
    copied = frozen_copy(net)
    with torch.no_grad():
        copied.layers[4].bias.add_(1)
        x = torch.zeros(2, LOOKBACK)
        torch.testing.assert_close(copied(x)["prediction"], net.eval()(x)["prediction"] + 1)


@pytest.mark.parametrize(("name", "extra"), [("LightningAudit", "lightning"), ("TrainerAudit", "trainer")])
def test_a_missing_library_names_its_extra(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hrx.api.callbacks, "find_spec", lambda library: None)
    with pytest.raises(HrxError, match=rf"{name} needs .*\[{extra}\]"):
        getattr(hrx.api.callbacks, name)


def test_the_protocol_of_an_audit_can_be_chosen() -> None:
    found = small_audit(protocol=Protocol(draws=2, estimator="occlusion")).measure(trained_net())
    assert found["hrx/runs"] == 2
    assert "hrx/context_needed" not in found
