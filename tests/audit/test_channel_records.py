"""The records of runs on multivariate windows."""

import numpy as np
import pytest
import torch
from helpers.multivariate import one_channel_per_step, windows

from hrx.adapters import Identity, Limits, from_module
from hrx.audit import Protocol
from hrx.audit.memory import MemoryBudget
from hrx.audit.runner.plan import Run, Setting
from hrx.audit.runner.run import measure_run
from hrx.gift_eval import Dataset, MultivariateSeries, cut_region
from hrx.gift_eval.windows import split
from hrx.records.record import DONE, EXCLUDED


def planned(lookback: int, horizon: int, channels: int, protocol: Protocol) -> Run:
    values = windows(1, 400, channels)[0].T.double().numpy()
    item = MultivariateSeries("made", "one", "H", 24, "", values, (0,) * channels, names=tuple("abcdefgh"[:channels]))
    identity = Identity("mixing", "module", "mixing", "0", "torch")
    dataset = Dataset("made", "H", 24, "", channels, row=lambda index: None, variates=channels)
    return Run(identity, dataset, item, 0, Setting(lookback, horizon), 0, 2, protocol)


def test_the_record_of_multivariate_windows_fills_the_columns_of_the_channel_axis() -> None:
    model, run = one_channel_per_step(), planned(12, 8, 8, Protocol(draws=2))
    record = measure_run(model, run, MemoryBudget()).record
    assert record.status == DONE
    assert record.channels == 8
    assert record.rank_channel == pytest.approx(8, rel=1e-6)
    assert record.g_margin_channel == pytest.approx(record.g_own_channel - record.g_shuffled_channel)
    assert record.g_own is not None
    assert record.forward_seconds > 0 < record.matrix_seconds


def test_errors_of_a_multivariate_forecast_are_means_over_windows_steps_and_channels() -> None:
    model, run = one_channel_per_step(), planned(12, 8, 8, Protocol(draws=2))
    cut = cut_region(run.series, 12, 8, 64)
    forecast = model.forward(torch.as_tensor(cut.x, dtype=torch.float32), 8).detach().double().numpy()
    record = measure_run(model, run, MemoryBudget()).record
    assert record.mse == pytest.approx(np.mean((forecast - cut.y) ** 2))
    assert record.mse_zero == pytest.approx(np.mean(cut.y**2))
    assert record.mse_last == pytest.approx(np.mean((cut.x[:, -1:, :] - cut.y) ** 2))
    assert record.mse_seasonal == pytest.approx(np.mean((cut.seasonal - cut.y) ** 2))
    naive = np.broadcast_to(cut.x[:, -1:, :], cut.y.shape)
    made = {"mase": forecast, "naive_mase": naive, "seasonal_mase": cut.seasonal}
    for column, prediction in made.items():
        by_channel = []
        for channel, values in enumerate(run.series.values):
            past = values[: split(400, 8)]
            past_error = np.mean([abs(past[t] - past[t - 24]) for t in range(24, len(past))]) / past.std()
            by_channel.append(np.mean(np.abs(prediction - cut.y)[:, :, channel]) / past_error)
        assert getattr(record, column) == pytest.approx(np.mean(by_channel), rel=1e-6)


def test_the_needed_context_of_multivariate_windows_counts_times_of_all_channels() -> None:
    model = from_module(lambda x: x[:, -8:] * 1.0, limits=Limits(multivariate=True), scale="standardised")
    run = planned(12, 8, 3, Protocol(draws=2, context=True))
    record = measure_run(model, run, MemoryBudget()).record
    assert record.status == DONE, record.reason
    assert (record.context_needed, record.context_lookback, record.context_cut_change) == (9, 9, 0)
    cut = cut_region(run.series, 12, 8, 16)
    assert record.context_cut_mse == record.context_mse == pytest.approx(np.mean((cut.x[:, -8:] - cut.y) ** 2))


def test_a_model_of_one_variate_is_excluded_from_multivariate_windows_with_the_reason() -> None:
    model = from_module(lambda x: x[:, :8], name="univariate")
    record = measure_run(model, planned(12, 8, 3, Protocol(draws=2)), MemoryBudget()).record
    assert record.status == EXCLUDED
    assert record.reason == "univariate reads one variate at a time, so there is no channel axis"


def test_only_the_channels_that_the_model_forecasts_are_compared_with_the_truth() -> None:
    limits = Limits(multivariate=True, channels=4, predicted=(1, 3))
    mix = torch.randn(8, 12, 4, 2, generator=torch.Generator().manual_seed(0))
    model = from_module(
        lambda x: torch.einsum("htck,btc->bhk", mix, x), name="some", limits=limits, scale="standardised"
    )
    run = planned(12, 8, 4, Protocol(draws=2))
    cut = cut_region(run.series, 12, 8, 64)
    forecast = model.forward(torch.as_tensor(cut.x, dtype=torch.float32), 8).detach().double().numpy()
    record = measure_run(model, run, MemoryBudget()).record
    assert record.status == DONE
    assert (record.channels, record.channels_forecast) == (4, 2)
    assert record.official_call == "the module without gradients"
    assert record.mse == pytest.approx(np.mean((forecast - cut.y[..., [1, 3]]) ** 2))
    assert record.mse_last == pytest.approx(np.mean((cut.x[:, -1:, [1, 3]] - cut.y[..., [1, 3]]) ** 2))
    assert record.mse_seasonal == pytest.approx(np.mean((cut.seasonal - cut.y)[..., [1, 3]] ** 2))
