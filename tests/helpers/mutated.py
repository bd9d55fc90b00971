"""An adapter with a mistake in its source, as a programmer would make it."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any


def mutated_class(correct: str, mistake: str, loader: str, tmp_path: Path) -> Any:
    """The class of the loader (`module:Class`), from its source with `mistake` where `correct` stands once."""
    module, name = loader.split(":")
    source = Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
    assert source.count(correct) == 1
    file = tmp_path / "mutated.py"
    file.write_text(source.replace(correct, mistake), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mutated", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)
