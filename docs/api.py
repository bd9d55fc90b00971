"""The page of the Python API, written from signatures and docstrings when the site is built."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

from properdocs.structure.files import File, Files

MODULES = ("hrx", "hrx.adapters", "hrx.audit", "hrx.reports", "hrx.gift_eval", "hrx.testing", "hrx.errors")
_WIDTH = 100


def on_files(files: Files, config: Any) -> Files:
    """Adds the page to those that are written by hand."""
    files.append(File.generated(config, "api.md", content=page()))
    return files


def page() -> str:
    """Every public name of every package, with its signature and what its docstring says."""
    parts = ["# Python API", "", "Every public name. [Python](python.md) shows how they work together.", ""]
    for module_name in MODULES:
        module = import_module(module_name)
        parts += [f"## {module_name}", "", _prose(module), ""]
        for name in public_names(module):
            parts += _entry(module_name, name, getattr(module, name))
    return "\n".join(parts)


def public_names(module: Any) -> list[str]:
    """`__all__` of a package; what a module defines itself where it has none."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return sorted(getattr(module, "__all__", [name for name in own if not name.startswith("_")]), key=str.lower)


def _entry(module: str, name: str, value: Any) -> list[str]:
    head = [f"### {name}", ""]
    if inspect.isclass(value):
        attributes = _attributes(value)
        methods = [part for method in _methods(value) for part in _method(name, method)]
        return [*head, *_code(f"class {module}.{name}{_signature(value)}"), _prose(value), "", *attributes, *methods]
    if callable(value):
        return [*head, *_code(f"{module}.{name}{_signature(value)}"), _prose(value), ""]
    return [*head, *_code(f"{module}.{name} = {value!r}")]


def _methods(value: type) -> list[tuple[str, Any]]:
    """Public methods that the class itself defines and documents."""
    own = [(name, member) for one in _parts(value) for name, member in vars(one).items() if not name.startswith("_")]
    plain = [(name, member.__func__ if isinstance(member, classmethod) else member) for name, member in own]
    return [(name, member) for name, member in plain if inspect.isfunction(member) and inspect.getdoc(member)]


def _parts(value: type) -> list[type]:
    """The class, and before it the plain data of the same name that it extends."""
    return [one for one in reversed(value.__mro__) if one.__name__ == value.__name__]


def _method(owner: str, method: tuple[str, Any]) -> list[str]:
    name, function = method
    return [*_code(f"{owner}.{name}{_signature(function)}"), _prose(function), ""]


def _attributes(value: type) -> list[str]:
    """Fields with their type and the sentence that stands below each in the source, and documented properties."""
    bodies = [_definition(one).body for one in _parts(value)]
    rows = [
        (field.target.id, ast.unparse(field.annotation), _sentence(below))
        for body in bodies
        for field, below in zip(body, [*body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_"
    ]
    for name, member in ((name, member) for one in _parts(value) for name, member in vars(one).items()):
        if isinstance(member, property) and inspect.getdoc(member):
            returns = _definition(member.fget).returns
            rows.append((name, ast.unparse(returns) if returns else "", _inline(inspect.getdoc(member) or "")))
    if not any(meaning for _, _, meaning in rows):
        return []
    table = ["| attribute | type | meaning |", "| --- | --- | --- |"]
    cells = [(f"`{name}`", f"`{kind}`", meaning) for name, kind, meaning in rows]
    return [*table, *(f"| {' | '.join(row)} |" for row in cells), ""]


def _definition(value: Any) -> Any:
    """The class or function as it is written."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body
    return tree


def _sentence(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return _inline(str(statement.value.value))
    return ""


def _inline(text: str) -> str:
    """One line for a cell of a table: a bar is escaped, except in code."""
    line = " ".join(text.split())
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in re.split(r"(`[^`]*`)", line))


def _signature(value: Any) -> str:
    """The parameters as they are written; those of a dataclass or a named tuple are its fields."""
    definition = _definition(value)
    returns = ""
    if inspect.isclass(value) and (is_dataclass(value) or hasattr(value, "_fields")):
        fields = [one for part in _parts(value) for one in _definition(part).body if isinstance(one, ast.AnnAssign)]
        parts = [ast.unparse(field) for field in fields]
    else:
        if inspect.isclass(value):
            if "__init__" not in vars(value):
                return ""
            definition = _definition(value.__init__)
        elif definition.returns:
            returns = f" -> {ast.unparse(definition.returns)}"
        parts = _parameters(definition.args)
    line = f"({', '.join(parts)}){returns}"
    return line if len(line) <= _WIDTH else "(\n    " + ",\n    ".join(parts) + f",\n){returns}"


def _parameters(given: ast.arguments) -> list[str]:
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    parts = [_parameter(*pair) for pair in zip(plain, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if given.vararg or given.kwonlyargs:
        parts.append(f"*{ast.unparse(given.vararg)}" if given.vararg else "*")
    parts += [_parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*parts, f"**{ast.unparse(given.kwarg)}"] if given.kwarg else parts


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(parameter)
    equals = " = " if parameter.annotation else "="
    return text if default is None else f"{text}{equals}{ast.unparse(default)}"


def _code(text: str) -> list[str]:
    return ["```", text, "```", ""]


def _prose(value: Any) -> str:
    """The docstring; an indented example becomes a block by itself, as Markdown has it."""
    return inspect.getdoc(value) or ""
