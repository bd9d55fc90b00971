"""`hrx new-adapter NAME`: the skeleton of a model family, an adapter and its test.

The texts are new_adapter.py.txt and new_adapter_test.py.txt; docs/add-a-model.md fills them in for T0.
"""

import re
from importlib.resources import files
from keyword import iskeyword, kwlist
from pathlib import Path
from string import Template

from hrx.adapters.families import families
from hrx.cli.main import NewAdapter
from hrx.cli.terminal import show
from hrx.errors import Exit, HrxError
from hrx.files import reason, shown_path

LONGEST_NAME = 24


def skeleton(name: str, *, in_clone: bool) -> dict[Path, str]:
    """Return the adapter and its test, by path: in the folders of hrx for a clone, else in the working directory."""
    # A file beside the user's code must not hide the library of the same name.
    file = re.sub(r"[-.]", "_", name) + ("" if in_clone else "_adapter")
    module = f"hrx.adapters.families.{file}" if in_clone else file
    words = {"name": name, "title": class_name(name), "module": module}
    return {
        Path(folder if in_clone else "", f"{prefix}{file}.py"): Template(_template(text)).substitute(words)
        for folder, prefix, text in (
            ("adapters/families", "", "new_adapter"),
            ("tests/adapters", "test_", "new_adapter_test"),
        )
    }


def _template(name: str) -> str:
    return files("hrx.cli").joinpath(f"{name}.py.txt").read_text(encoding="utf-8")


def class_name(name: str) -> str:
    """`MyModel2` for `my-model.2`."""
    return "".join(part.capitalize() for part in re.split(r"[-.]", name))


def new_adapter(options: NewAdapter) -> int:
    """Writes the two files, or none; never over a file that exists."""
    name: str = options.name
    _check_name(name)
    in_clone = Path("adapters/families/__init__.py").is_file() and Path("tests/adapters").is_dir()
    texts = skeleton(name, in_clone=in_clone)
    adapter, test = texts
    if existing := [shown_path(path) for path in texts if path.exists() or path.is_symlink()]:
        exist = "exist" if len(existing) > 1 else "exists"
        raise HrxError(
            f"{' and '.join(existing)} {exist} and would be overwritten. Choose another name, or move it away."
        )
    created: list[Path] = []
    try:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                created.append(path)
                file.write(text)
    except OSError as error:
        for half in created:
            half.unlink()
        raise HrxError(
            f"{shown_path(path)} cannot be written: {reason(error)}. Run the command in a writable directory."
        ) from error
    register = (
        f"give pyproject.toml an extra {name} with its library"
        if in_clone
        else f"give your package the entry point `{name}` of the group hrx.adapters: {adapter.stem}:FAMILY"
    )
    show(f"Wrote {adapter} and {test}. Next:")
    show("1. Fill in FAMILY and what raises NotImplementedError; docs/add-a-model.md does it for T0.")
    show(f"2. Run python -m pytest {test}, which checks it on a tiny checkpoint.")
    show(f"3. Register the family: {register}.")
    show("4. Run hrx verify PATH on a checkpoint.")
    return Exit.DONE


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*([-.][a-z0-9]+)*", name) or len(name) > LONGEST_NAME:
        raise HrxError(
            f"{name[:60]!r} is not a name for a family. Use lower-case letters and digits, in parts that a hyphen or a "
            f"point joins, at most {LONGEST_NAME} characters, such as my-model-2."
        )
    if name in families():
        raise HrxError(
            f"{name} is a family of hrx already, run by {families()[name].distribution}. Choose another name."
        )
    used = re.findall(r"\w+", _template("new_adapter") + _template("new_adapter_test"))
    if iskeyword(name) or class_name(name) in (*kwlist, *used):
        raise HrxError(f"{name} has a meaning in Python or in the file of an adapter. Choose another name.")
