"""Independence of the official call from the forward: the first check of admission refuses a mistake in the forward.

Each mutation edits the source of an adapter's forward, as a programmer's mistake would, and loads the edited class. A
mistake that the official call shared would pass unnoticed. Runs in every environment with the families that it has.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.mutated import mutated_class
from helpers.tiny import families, series

from hrx.adapters.registry import locate
from hrx.audit.admission import EQUIVALENCE_LIMIT, parity
from hrx.audit.runner.plan import Setting


class Mutation(NamedTuple):
    """A mistake: one place in the source of the adapter, and what stands there instead."""

    family: str
    name: str
    correct: str
    mutated: str
    setting: Setting = Setting(96, 24)


CHRONOS_BOLT = "self.library.predict(window.target[..., 0], prediction_length=horizon)"
CHRONOS_2 = "return torch.cat(steps, dim=-1)[..., :horizon]"
TTM = "self.module(past_values=past, future_values=ahead"
T0 = "return patches[:, first : first + steps // patch].flatten(1, 2)"
TIMESTRAL = "(upper - mirrored.flip(-1)) / 2"
TIMESFM_25 = "y: Tensor = first[:, -1]"
TRANSFORMERS = "truncate_negative=False"
QUANTILE = ".full_predictions[:, :horizon, 4]\n        if"
TIMESFM_3 = "return cast(Tensor, quantiles.sort(dim=-1).values[..., chosen]"
MOIRAI = "return torch.where(observed, values, 0.0)"
GRANITE = "return chosen_columns(output, self.outputs.levels, columns)"
GRANITE_INPUT = "self._second(past_values=window.target,"
SCALE = "window.target, prediction_length=horizon, **self.arguments)\n"
DECOMPOSED = "missing = 0 if self._decomposed else max(self.module.config"
VISIONTS = "return cast(Tensor, self._second(x[..., None])[..., 0])"
TIREX_TREND = "torch.where(trending, last + median.cumsum(dim=-1), median)"
TIREX_PADDING = "self.module.context_len + horizon - rows.shape[2], self.module"
TOTO_SCALE = "_clamp_nonfinite(values * scale + loc)"
TOTO_INPUT = "rows.isnan(), 0.0, rows)"
LONG = Setting(192, 140)

MUTATIONS = [
    Mutation("chronos-bolt", "wrong constant", CHRONOS_BOLT, f"{CHRONOS_BOLT} * 1.0001"),
    Mutation("chronos-bolt", "quantile off by one", CHRONOS_BOLT, f"{CHRONOS_BOLT}.roll(1, 1)"),
    Mutation("chronos-bolt", "shifted input", CHRONOS_BOLT, CHRONOS_BOLT.replace("0],", "0] - window.target.mean(),")),
    Mutation("chronos-2", "wrong constant", "S = (0.1, 0.2, 0.3, 0.4, 0.5", "S = (0.1, 0.2, 0.3, 0.4, 0.51", LONG),
    Mutation("chronos-2", "quantile off by one", CHRONOS_2, f"{CHRONOS_2}.roll(1, 1)"),
    Mutation("chronos-2", "forecast of another length", "math.ceil(steps /", "1 + math.ceil(steps /"),
    Mutation("ttm", "wrong constant", TTM, TTM.replace("past,", "past * 1.001 + 0.001,")),
    Mutation("ttm", "skipped normalisation", TTM, TTM.replace("past,", "past - past.mean(1, keepdim=True),")),
    Mutation(
        "ttm",
        "step off by one",
        "columns)[:, :horizon]\n\n    def _channels",
        "columns).roll(1, 1)[:, :horizon]\n\n    def _channels",
    ),
    Mutation("ttm", "short windows not padded", "max(self.module.config.context_length - past.shape[1], 0)", "0", LONG),
    Mutation("ttm-decomposed", "wrong constant", TTM, TTM.replace("past,", "past * 1.001 + 0.001,")),
    Mutation(
        "ttm-decomposed",
        "step off by one",
        "columns)[:, :horizon]\n\n    def _channels",
        "columns).roll(1, 1)[:, :horizon]\n\n    def _channels",
    ),
    Mutation("ttm-decomposed", "padded window", DECOMPOSED, DECOMPOSED.replace("0 if self._decomposed else ", "")),
    Mutation("t0", "wrong constant", T0, f"{T0} * 1.0001"),
    Mutation("t0", "quantile off by one", "index(level) for", "index(level) - 1 for"),
    Mutation("t0", "patch off by one", "// patch - 1", "// patch - 2"),
    Mutation("t0", "skipped normalisation", "self.module(scaled)", "self.module(window)"),
    Mutation("t0", "wrong levels fed back", "(0.1, 0.5, 0.9)", "(0.2, 0.5, 0.8)", Setting(64, 1100)),
    Mutation("timestral", "wrong constant", TIMESTRAL, f"{TIMESTRAL} * 1.0001"),
    Mutation("timestral", "quantile off by one", "index(level) for", "index(level) + 1 for"),
    Mutation("timestral", "skipped averaging", TIMESTRAL, "upper"),
    Mutation("timestral", "shifted input", "observed, series, 0.0)", "observed, series - series.mean(), 0.0)"),
    Mutation("patchtst-fm", "wrong constant", GRANITE, f"{GRANITE} * 1.0001"),
    Mutation("patchtst-fm", "median instead of mean", GRANITE, "return output.quantile_outputs[:, 4, ..., None]"),
    Mutation(
        "patchtst-fm", "shifted input", GRANITE_INPUT, GRANITE_INPUT.replace("target", "target - window.target.mean()")
    ),
    Mutation("patchtst-fm", "skipped patch weights", "patches * weights[:, None]", "patches"),
    Mutation("flowstate", "wrong constant", GRANITE, f"{GRANITE} * 1.0001"),
    Mutation("flowstate", "median instead of mean", GRANITE, "return output.quantile_outputs[:, 4, ..., None]"),
    Mutation(
        "flowstate",
        "wrong scale factor",
        SCALE,
        SCALE.replace("**self.arguments", "scale_factor=self.limits.scale_factor * 0.99"),
    ),
    Mutation("timesfm-2.5", "wrong constant", "- mirrored) / 2", "- mirrored) / 2.0001"),
    Mutation("timesfm-2.5", "quantile off by one", TIMESFM_25, f"{TIMESFM_25}.roll(1, -1)"),
    Mutation("timesfm-2.5", "mean instead of median", "POINT = 5", "POINT = 0"),
    Mutation("timesfm-2.5", "skipped flip", "- mirrored) / 2", ")"),
    Mutation("timesfm-2.5-hf", "skipped flip", TRANSFORMERS, f"force_flip_invariance=False, {TRANSFORMERS}"),
    Mutation("timesfm-2.5-hf", "quantile off by one", ".mean_predictions[:, :horizon]\n        if", QUANTILE),
    Mutation("timesfm-2.5-hf", "wrong constant", "self.module(x, for", "self.module(x * 1.001 + 0.001, for"),
    Mutation("timesfm-3", "unsorted quantiles", TIMESFM_3, TIMESFM_3.replace(".sort(dim=-1).values", "")),
    Mutation(
        "timesfm-3", "quantile off by one", TIMESFM_3, TIMESFM_3.replace("[..., chosen]", ".roll(1, -1)[..., chosen]")
    ),
    Mutation("timesfm-3", "skipped padding", "mask=padded, past", "mask=~padded, past", Setting(100, 24)),
    Mutation("moirai-2", "wrong constant", MOIRAI, MOIRAI.replace(", values,", ", values * 1.001 + 1e-3,")),
    Mutation("moirai-2", "quantile off by one", "index(level) for", "index(level) - 1 for"),
    Mutation(
        "moirai-2",
        "skipped normalisation",
        MOIRAI,
        MOIRAI.replace(", values,", ", values - values.mean(1, keepdim=True),"),
    ),
    Mutation("tirex-2", "wrong constant", TIREX_TREND, f"{TIREX_TREND} * 1.0001"),
    Mutation("tirex-2", "quantile off by one", "index(level) for", "index(level) + 1 for"),
    Mutation("tirex-2", "context not padded", TIREX_PADDING, "0, self.module"),
    Mutation("tirex-2", "skipped flip", "if self.module.tta_sign_flip:", "if False:"),
    Mutation("toto-2", "wrong constant", TOTO_SCALE, TOTO_SCALE.replace("+ loc", "* 1.001 + loc")),
    Mutation("toto-2", "quantile off by one", "index(level) for", "index(level) - 1 for"),
    Mutation("toto-2", "skipped normalisation", TOTO_SCALE, TOTO_SCALE.replace(" * scale", "")),
    Mutation("toto-2", "shifted input", TOTO_INPUT, TOTO_INPUT.replace(", rows)", ", rows - rows.mean())")),
    Mutation("toto-2", "forecast one patch late", "output.quantiles[..., :-1, :]", "output.quantiles[..., 1:, :]"),
    Mutation("visionts", "wrong constant", VISIONTS, VISIONTS.replace(")[..., 0]", ")[..., 0] * 1.0001")),
    Mutation("visionts", "wrong period", "periodicity=self.limits.periodicity)", "periodicity=2)"),
    Mutation("visionts", "skipped normalisation", VISIONTS, VISIONTS.replace("(x[", "((x - x.mean(1, True))[")),
    Mutation("timer", "skipped normalisation", "revin=True", "revin=False", Setting(192, 24)),
    Mutation("timer", "wrong constant", "x[:, x.shape[1] % patch :]", "x[:, patch:]", Setting(192, 24)),
    Mutation("timer", "forecast not fed back", "inputs, done = y,", "inputs, done = inputs,", Setting(192, 120)),
    Mutation("timemoe", "wrong constant", "dim=1) * std + mean)", "dim=1) * std * 1.0001 + mean)"),
    Mutation("timemoe", "skipped normalisation", "(window - mean) / std, KeyValues()", "window - mean, KeyValues()"),
    Mutation("timemoe", "step off by one", "inputs = y[:, -1]", "inputs = y[:, -2]"),
]
FAMILIES = families()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of every family that this environment runs."""
    paths = {}
    for name, family in FAMILIES.items():
        with family.context():
            paths[name] = family.build(tmp_path_factory.mktemp("tiny") / name)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [m for m in MUTATIONS if m.family in FAMILIES], ids=lambda m: f"{m.family}: {m.name}"
)
def test_a_mistake_in_the_forward_is_refused(built: dict[str, Path], tmp_path: Path, mutation: Mutation) -> None:
    with FAMILIES[mutation.family].context():
        located: Any = locate(str(built[mutation.family]))
        edited = mutated_class(mutation.correct, mutation.mutated, located.family.loader, tmp_path)
        model = edited(located.checkpoint, located.identity)
        figure = parity(model, series(2, mutation.setting.lookback), mutation.setting.horizon)
    assert not figure <= EQUIVALENCE_LIMIT


def test_three_mistakes_are_tried_in_every_family() -> None:
    for name in FAMILIES:
        assert len([m for m in MUTATIONS if m.family == name]) >= 3
