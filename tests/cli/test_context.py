"""`hrx audit --sweeps context` on the embedded checkpoint, from the command to the page."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hrx.adapters import load
from hrx.cli import main
from hrx.gift_eval import cut_region, open_source
from hrx.reports import read
from hrx.reports.page.report import write_report

PLAN = ["audit", "bolt-mini", "--data=sample:sf_temps", "--settings=192x24", "--series=1", "--seeds=1", "--workers=0"]


@pytest.mark.slow
def test_the_needed_context_of_the_embedded_checkpoint_is_stored_shown_and_reproduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*PLAN, "--sweeps=context", "--context-bound=0.05", f"--out={tmp_path}"]
    assert main([*asked, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["models"][0]["context"]
    assert (entry["dataset"], entry["setting"], entry["series"], entry["windows"]) == ("sf_temps/H", "192x24", 1, 16)

    model, (dataset,) = load("bolt-mini"), open_source("sample:sf_temps")
    windows = cut_region(dataset.read(0), 192, 24, 16)
    x = torch.as_tensor(windows.x, dtype=torch.float32)
    (row,) = read(tmp_path / "ledger.db").to_dict("records")
    with torch.no_grad():
        whole = model.official(x, 24).double().numpy()
        for lookback, change, mse in zip(
            *(entry["curves"][name] for name in ("lookbacks", "cut_change", "mse")), strict=True
        ):
            cut = model.official(x[:, -lookback:], 24).double().numpy()
            assert mse == pytest.approx(np.mean((cut - windows.y) ** 2), rel=1e-4)
            assert change == pytest.approx(np.mean((cut - whole) ** 2) / row["variance"], rel=1e-3, abs=1e-9)
    kept, changes = entry["curves"]["kept"], entry["curves"]["change"]
    enough = [k for at, k in enumerate(kept) if max(changes[: at + 1]) <= 0.05]
    assert entry["needed"] == row["context_needed"] == enough[-1] < 192

    assert main([*asked, "--verbose"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"sf_temps/H 192x24: at most {enough[-1]} of 192 (change" in shown
    assert main([*asked, "--recheck=1"]) == 0
    assert "1 of 1 stored runs have the same numbers" in capsys.readouterr().out
    page = write_report(tmp_path / "ledger.db", tmp_path / "page").page.read_text()
    assert '<section id="context"' in page
    assert "--context-bound 0.05" in page
    assert "--sweeps context" in page


def test_a_bound_that_is_not_above_zero_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for bound in ("0", "-1", "nan", "much"):
        with pytest.raises(SystemExit) as stopped:
            main([*PLAN, f"--context-bound={bound}"])
        assert stopped.value.code == 2
        assert "--context-bound" in capsys.readouterr().err
    for request in (PLAN, ["explain", "bolt-mini", "--series=sample:sf_temps/H", "--lookback=96", "--horizon=24"]):
        assert main([*request, "--context-bound=0.05"]) == 2
        assert "Add --sweeps context, or drop it." in capsys.readouterr().err
