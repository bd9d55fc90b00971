"""The sources that `--data` names, and the directory of GIFT-Eval's data."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hrx.errors import HrxError, unknown
from hrx.files import user_path

from . import catalogue
from .sample import open_sample
from .series import Dataset
from .store import open_directory

ROOT_VARIABLE = "GIFT_EVAL"


def open_source(spec: str = "sample") -> list[Dataset]:
    """The datasets of `sample`, of `gift-eval` (`data_root` says where), of `tslib:DIR`, of a table (`csv:FILE`) or of
    a directory in GIFT-Eval's format.

    Names after a colon choose among them, in the order given: `sample:co2/W,elnino/M`. A name without a frequency
    means all its frequencies: `gift-eval:us_births`. A directory with the name of a source is written `./sample`.
    """
    kind, colon, rest = spec.partition(":")
    if kind in _OPENERS:
        return _OPENERS[kind](rest if colon else None)
    path = user_path(spec)
    if spec and os.path.isdir(path):
        return _open_benchmark(path)
    if spec and os.path.exists(path):
        raise HrxError(f"{path} is a file. Give a directory in GIFT-Eval's format, or one of {', '.join(_OPENERS)}.")
    raise HrxError(unknown("source", spec, _OPENERS, "A directory in GIFT-Eval's format is a source too."))


def data_root(given: str | Path | None = None) -> Path:
    """The directory of GIFT-Eval's folders, whether or not it exists: the one given, else $GIFT_EVAL, else
    `hrx/gift-eval` in the user's cache directory.
    """
    named = given or os.environ.get(ROOT_VARIABLE)
    if named:
        return user_path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "hrx" / "gift-eval"


def _open_gift_eval(names: str | None) -> list[Dataset]:
    root = data_root()
    if not os.path.isdir(root):
        named = os.environ.get(ROOT_VARIABLE)
        if named:
            raise HrxError(f"{ROOT_VARIABLE} is {named!r}, which is not a directory.")
        raise HrxError(
            f"GIFT-Eval's data were not found: {root} does not exist. Download them with `hrx data fetch`, or set the "
            f"environment variable {ROOT_VARIABLE} to the folder that holds them."
        )
    datasets = _open_benchmark(root)
    here, known = catalogue.by_name(datasets), catalogue.by_name(catalogue.folders())
    for name in map(str.strip, (names or "").split(",")):
        if name in known and name not in here:
            raise HrxError(f"{name} is not under {root}. Download it with `hrx data fetch {name}`, or copy it there.")
    return _choose(datasets, names)


def _open_benchmark(path: Path) -> list[Dataset]:
    """The datasets of a directory; those in the catalogue get the paper's name of their domain."""
    domains = {(folder.name, folder.frequency): folder.field for folder in catalogue.folders()}
    return [
        replace(each, domain=domains[key], catalogued=True) if (key := (each.name, each.frequency)) in domains else each
        for each in open_directory(path)
    ]


def _open_table(kind: str, text: str | None) -> list[Dataset]:
    """A table; imported here because the sample does without pandas."""
    from .finance import open_prices
    from .tables import open_table

    return open_prices(text or "") if kind == "finance" else open_table(kind, text or "")


def _open_tslib(text: str | None) -> list[Dataset]:
    from .tslib import open_tslib

    return open_tslib(text)


# An opener gets the text after the colon, or None where there is none.
_OPENERS: dict[str, Callable[[str | None], list[Dataset]]] = {
    "sample": lambda names: _choose(open_sample(), names),
    "gift-eval": _open_gift_eval,
    "csv": partial(_open_table, "csv"),
    "parquet": partial(_open_table, "parquet"),
    "finance": partial(_open_table, "finance"),
    "tslib": _open_tslib,
}


def _choose(datasets: list[Dataset], names: str | None) -> list[Dataset]:
    if names is None:
        return datasets
    asked = [name.strip() for name in names.split(",")]
    if "" in asked:
        example = datasets[0].name
        raise HrxError(f"{names!r} has an empty dataset name. Write names with commas between them: {example}.")
    return catalogue.select(datasets, asked)
