"""From what a person writes after `--data` to datasets."""

import os
from collections.abc import Sequence
from pathlib import Path

from hrx.errors import HrxError, unknown

from .sample import open_sample
from .series import Dataset
from .store import open_directory

ROOT_VARIABLE = "GIFT_EVAL"
_KINDS = ("sample", "gift-eval")


def open_source(spec: str = "sample") -> list[Dataset]:
    """The datasets of `sample`, of `gift-eval` ($GIFT_EVAL names its folder) or of a directory in its format.

    Names after a colon choose among them, in the order given: `sample:co2/W,elnino/M`. A directory that is
    called like a source is reached as `./sample`.
    """
    kind, colon, names = spec.partition(":")
    if kind in _KINDS:
        datasets = open_sample() if kind == "sample" else open_directory(_root())
        return _choose(datasets, names, spec) if colon else datasets
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        return open_directory(path)
    if spec and path.exists():
        raise HrxError(f"{path} is a file. Give a directory in GIFT-Eval's format, or one of {', '.join(_KINDS)}.")
    raise HrxError(unknown("source", spec, _KINDS, "A directory in GIFT-Eval's format is a source too."))


def _root() -> Path:
    root = os.environ.get(ROOT_VARIABLE)
    if not root:
        raise HrxError(
            f"The source gift-eval needs the environment variable {ROOT_VARIABLE}, which is not set. "
            "Set it to the folder that holds the downloaded datasets."
        )
    path = Path(root).expanduser()
    if not path.is_dir():
        raise HrxError(f"{ROOT_VARIABLE} is {root!r}, which is not a directory.")
    return path


def _choose(datasets: Sequence[Dataset], names: str, spec: str) -> list[Dataset]:
    known = {dataset.name: dataset for dataset in datasets}
    chosen = dict.fromkeys(name.strip() for name in names.split(","))
    if "" in chosen:
        raise HrxError(
            f"{spec!r} has an empty dataset name. Write names with commas between them: {next(iter(known))}."
        )
    for name in chosen:
        if name not in known:
            raise HrxError(unknown("dataset", name, known))
    return [known[name] for name in chosen]
