"""Measures the worst parity of every family that this interpreter runs, prints it and writes it into docs/parity.md.

Rows of other families are kept: `make parity` runs this script in each environment in turn. Names of families as
arguments measure these only.
"""

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from helpers import tiny

from hrx.adapters import Forecaster, load
from hrx.audit.admission import parity
from hrx.audit.runner.plan import STAR, Setting

PAGE = Path(__file__).parents[1] / "docs" / "parity.md"
ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250))
HEAD = """# Parity with the official call

```
make parity
```

`max|a−b| / max|b|` of hrx's differentiable forward `a` and the library's own public call `b`: the worst of all windows
in a cell, on tiny checkpoints built with each library's own classes, three windows per setting. The two share the
loaded weights and no code of hrx: `tests/adapters/test_mutations.py` puts mistakes into each forward, and parity finds
them. Every record names the call it was compared with (`official_call`).

| family | official call | library | the star's seven settings | odd settings | flat, offset and scaled windows |
| --- | --- | --- | --- | --- | --- |
"""
FOOT = """
`generate`, the official call of Timer and TimeMoE, runs with transformers 4.40 only; these rows were measured there.
With another release the forward is compared with the library's uncached forward, and the record says
`TimerForPrediction.forward, uncached`. In float64, for the derivative check, TTM, PatchTST-FM, FlowState and TimesFM-3
are compared with the library's model call below the public one, which rounds its input to fp32.

The forecast that is audited is the default point forecast of the official call: for PatchTST-FM and FlowState a mean
over the predicted quantiles, for TTM-r3 the median. `ttm-decomposed` is a TTM-r3 that forecasts trend and residual
apart. For T0 it is the median of `predict` with its defaults, without the four adjustments of the publisher's scores;
for Timestral it is the median of `forecast`, whose default adjustments (averaging with the negated window, clipping at
zero) belong to it.

`neuralforecast` is the worst of 31 classes, each at the one setting that it was trained for (32x8). Last digits differ
for some: the library gives a class for several series one window at a time, hrx a batch. See
[Explain a model you trained](trained.md).

A run of the Time-Series-Library (`tslib:CHECKOUT:RUN`) has no row, because the library is a checkout of yours. Its
official call is the evaluation step of the checkout's experiment, `Exp_Long_Term_Forecast.vali`, on one batch with the
same time marks; every audit measures the parity and stores it. With `HRX_TSLIB=CHECKOUT`, the test
`tests/adapters/test_tslib.py` measures it for nine models.

FlowState takes a scale factor: 24 over the season of the dataset, which is the library's own factor for minutes, hours,
months and quarters. The library chooses one by frequency and domain for days, weeks and years; their season is 1 here,
as on the leaderboard, and they get the factor of the checkpoint's configuration. The record's `official_call` holds it.
Where a horizon is one step short of a whole number of its patches (47, 71, 95, 119 at a season of 24), the library
returns too few steps, and the setting is refused.

Parity says nothing about a gradient. **Toto-2** shows why the derivative check exists: its layers multiply by one
factor forward and by another backward, on purpose, for training. The forecasts agree in every bit and the gradient is
finite, but it is wrong by more than its own size: only finite differences show it. hrx takes the derivative
(`adapters/families/toto_2.py`). The call that is matched is `Toto2Model.forecast` with its defaults, one pass
without block decoding. A window whose length is not a multiple of the patch is padded on its left with masked zeros, as
the library's GluonTS predictor does; the predictor's cap on quantiles and its scale for short series are not part of
the call. Where a window starts flat, the model divides by a standard deviation of 1e-6: its slopes there are true
within 1e-9 of the window only, and the derivative check refuses a setting with such a window.

**TiRex-2** runs with the test-time augmentation of its configuration. Where a straight line fits a window well, its
library forecasts the differences of the window, so the forecast jumps between windows on either side of that
decision. It cuts longer horizons than `future_len` and longer windows than `context_len`; hrx refuses them. Its
layers run without `torch.compile`, which did not change a bit of the forecast.
"""


def worst_parity(model: Forecaster, settings: tuple[Setting, ...]) -> str:
    accepted = [s for s in settings if model.limits.refusal(s.lookback, s.horizon) is None]
    return f"{max(parity(model, tiny.series(3, s.lookback), s.horizon) for s in accepted):.1e}"


def worst_parity_on_hard_windows(model: Forecaster) -> str:
    wave = tiny.series(3, 96)
    patches = wave.clone()
    patches[:, 32:64] = 0.5
    return f"{max(parity(model, x, 120) for x in (patches, wave + 1e4, wave * 1e6, wave * 1e-6, wave * 0 + 3)):.1e}"


def neuralforecast_row(folder: Path) -> str:
    """Worst of all classes, each at the setting that it was trained for."""
    from helpers.tiny_neuralforecast import HORIZON, LOOKBACK, MODELS, build, save

    names = [name for name in MODELS if name != "Informer"]  # it samples
    path = save(folder / "saved", [build(name) for name in names])
    models = [load(f"neuralforecast:{path}:{name}") for name in names]
    usual = max(parity(model, tiny.series(3, LOOKBACK) + 3, HORIZON) for model in models)
    hard = tiny.hard_windows(LOOKBACK).values()
    worst = max(parity(model, x, HORIZON) for model in models for x in hard)
    cells = f"`{models[0].official_call}`", models[0].identity.library, "-", f"{usual:.1e}", f"{worst:.1e}"
    return f"| {' | '.join(cells)} |"


def main() -> None:
    rows = dict(re.findall(r"^\| ([\w.-]+) (\| .*)$", PAGE.read_text(), re.M)) if PAGE.exists() else {}
    rows.pop("family", None)
    rows.pop("---", None)
    available = tiny.families()
    if len(available) > 2:  # their official call runs in another environment
        del available["timer"], available["timemoe"]
    for name, family in available.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder, family.context():
            model = load(str(family.build(Path(folder) / name)))
            parities = worst_parity(model, STAR), worst_parity(model, ODD), worst_parity_on_hard_windows(model)
        rows[name] = f"| {' | '.join((f'`{model.official_call}`', model.identity.library, *parities))} |"
        print(f"| {name} {rows[name]}")
    if "ttm" in available and (not sys.argv[1:] or "neuralforecast" in sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            rows["neuralforecast"] = neuralforecast_row(Path(folder))
    PAGE.write_text(HEAD + "".join(f"| {name} {rows[name]}\n" for name in sorted(rows)) + FOOT)


if __name__ == "__main__":
    main()
