"""Worst parity of every family that this interpreter can run, printed as a table and written into docs/parity.md.

Rows of families that it cannot run are kept: `make parity` calls it in each environment in turn.
"""

import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from helpers import tiny, tiny_timesfm, tiny_visionts

from hrx.adapters import Forecaster, load
from hrx.audit.admission.checks import parity
from hrx.audit.runner.plan import STAR, Setting

PAGE = Path(__file__).parents[1] / "docs" / "parity.md"
ODD = (Setting(100, 30), Setting(17, 5), Setting(333, 100), Setting(512, 250))
HEAD = """# Parity with the official call

`max|a−b| / max|b|` of hrx's differentiable forward and the library's own public call, the worst over all windows of a
cell: tiny checkpoints built with each library's own classes, three windows a setting. Written by `make parity`.

| family | library | the star's seven settings | odd settings | flat, offset and scaled windows |
| --- | --- | --- | --- | --- |
"""
Builder = tuple[Callable[[Path], Path], Callable[[], AbstractContextManager[None]]]


def available() -> dict[str, Builder]:
    """Builders of tiny checkpoints, with what must be open while they run."""
    if tiny_visionts.importable():
        return {"visionts": (tiny_visionts.visionts, tiny_visionts.tiny_architecture)}
    import transformers
    from helpers import tiny_generate

    generating: dict[str, Builder] = {
        "timer": (tiny_generate.timer, nullcontext),
        "timemoe": (tiny_generate.timemoe, nullcontext),
    }
    if transformers.__version__.startswith("4.40."):
        return generating
    found: dict[str, Builder] = {name: (make, nullcontext) for name, make in tiny.FAMILIES.items()}
    found["timesfm-2.5"] = (tiny_timesfm.timesfm_25, tiny_timesfm.small_timesfm_25)
    found["timesfm-3"] = (tiny_timesfm.timesfm_3, nullcontext)
    return found


def worst(model: Forecaster, settings: tuple[Setting, ...]) -> str:
    taken = [s for s in settings if model.limits.refusal(s.lookback, s.horizon) is None]
    return f"{max(parity(model, tiny.series(3, s.lookback), s.horizon) for s in taken):.1e}"


def hard(model: Forecaster) -> str:
    wave = tiny.series(3, 96)
    patches = wave.clone()
    patches[:, 32:64] = 0.5
    return f"{max(parity(model, x, 120) for x in (patches, wave + 1e4, wave * 1e6, wave * 1e-6, wave * 0 + 3)):.1e}"


def main() -> None:
    rows = dict(re.findall(r"^\| ([\w.-]+) (\| .*)$", PAGE.read_text(), re.M)) if PAGE.exists() else {}
    rows.pop("family", None)
    rows.pop("---", None)
    for name, (make, opened) in available().items():
        with tempfile.TemporaryDirectory() as folder, opened():
            path = make(Path(folder) / name)
            model = load(str(path))
            cells = (model.identity.library, worst(model, STAR), worst(model, ODD), hard(model))
        rows[name] = f"| {' | '.join(cells)} |"
        print(f"| {name} {rows[name]}")
    PAGE.write_text(HEAD + "".join(f"| {name} {rows[name]}\n" for name in sorted(rows)))


if __name__ == "__main__":
    main()
