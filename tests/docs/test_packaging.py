"""What a user gets from a wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_module_the_checkpoint_and_the_sample(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(tmp_path), str(ROOT)], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for room in ("adapters", "audit", "cli", "gift_eval", "reports"):
        for file in (ROOT / room).rglob("*"):
            if file.suffix in {".py", ".csv", ".safetensors", ".json", ".md"}:
                assert f"hrx/{file.relative_to(ROOT)}" in held, file
    assert {"hrx/__init__.py", "hrx/errors.py", "hrx/py.typed"} <= held
