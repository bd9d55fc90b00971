"""Which package may import which: read from the sources, and checked by importing in a fresh interpreter."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "hrx": "common",
    **{f"hrx.{name}": name for name in ("adapters", "api", "audit", "cli", "gift_eval", "records", "reports")},
}  # fmt: skip
PARTS_OF_AUDIT = tuple(
    f"hrx.audit.{path.name}" for path in sorted((ROOT / "audit").iterdir()) if (path / "__init__.py").exists()
)
MODEL_LIBRARIES = (
    "chronos", "gluonts", "safetensors", "sktime", "timesfm", "timesfm3", "torch", "torchvision", "transformers",
    "tsfm_public", "uni2ts", "visionts",
)  # fmt: skip


def sources() -> dict[str, Path]:
    """Every module of hrx and its file."""
    modules = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            modules[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return modules


SOURCES = sources()


@cache
def imports(module: str, *, at_start: bool = False) -> frozenset[str]:
    """Modules that a module imports, in functions too; `at_start`, only those imported whenever it is."""
    imported = set()
    waiting: list[ast.AST] = [ast.parse(SOURCES[module].read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(module, node)
            names = {f"{origin}.{alias.name}" for alias in node.names}
            imported |= (names & set(SOURCES)) or {origin}
        elif at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not (at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return frozenset(imported)


def absolute(module: str, node: ast.ImportFrom) -> str:
    """The absolute name of what a `from` statement imports from."""
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return ".".join(filter(None, (package if node.level else "", node.module)))


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def violations(package: str, *forbidden: str) -> list[str]:
    """Imports of `forbidden` packages by the modules of a package."""
    return [
        f"{module} imports {imported}"
        for module in SOURCES
        if inside(module, package)
        for imported in sorted(imports(module))
        if any(inside(imported, other) for other in forbidden)
    ]


def graph(groups: tuple[str, ...]) -> dict[str, set[str]]:
    """Which groups of modules import which others."""
    edges: dict[str, set[str]] = {group: set() for group in groups}
    for module in SOURCES:
        for group in groups:
            if inside(module, group):
                edges[group] |= {g for g in groups for i in imports(module) if g != group and inside(i, g)}
    return edges


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Groups that import each other in a circle; empty where there is none."""
    remaining = {group: set(others) for group, others in edges.items()}
    while leaves := [group for group, others in remaining.items() if not others & set(remaining)]:
        for group in leaves:
            del remaining[group]
    return sorted(remaining)


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


BELOW = {
    "hrx": (),  # common; its `__init__` names the members of the others, see `package_of`
    "hrx.testing": ("hrx", "hrx.records", "hrx.adapters", "hrx.audit"),  # a file of common, for users' test suites
    "hrx.records": ("hrx",),
    "hrx.gift_eval": ("hrx", "hrx.records"),
    "hrx.adapters": ("hrx", "hrx.records"),
    "hrx.audit": ("hrx", "hrx.records", "hrx.gift_eval", "hrx.adapters"),
    "hrx.reports": ("hrx", "hrx.records"),
    "hrx.api": ("hrx", "hrx.records", "hrx.gift_eval", "hrx.adapters", "hrx.audit", "hrx.reports"),
    "hrx.cli": ("hrx", "hrx.records", "hrx.gift_eval", "hrx.adapters", "hrx.audit", "hrx.reports", "hrx.api"),
}
"""What each package may import; none of them builds on a later one."""
DEEPEST = 15
"""Modules on the longest chain of imports, the first and the last included."""


def package_of(module: str) -> str:
    """The package of a module by its longest known prefix."""
    return max((package for package in BELOW if inside(module, package)), key=len)


def named_in(module: str) -> set[str]:
    """Modules of hrx that a module imports anywhere, for types too, or names in a string, as `hrx.x` or `hrx.x:y`."""
    nodes = ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8")))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    texts = {text.partition(":")[0] for text in texts if re.fullmatch(r"hrx(\.\w+)+(:\w+)?", text)}
    return {name for name in imports(module) | texts if inside(name, "hrx")}


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    modules = [module for module in SOURCES if module != "hrx" and package_of(module) == package]
    upwards = {
        f"{module} imports {name}"
        for module in modules
        for name in named_in(module)
        if package_of(name) not in (package, *BELOW[package])
    }
    assert upwards == set()


def test_the_order_of_the_packages_has_no_circle() -> None:
    assert cycle({package: set(below) for package, below in BELOW.items()}) == []


def module_imports() -> dict[str, set[str]]:
    """The modules of hrx that each module imports when it is imported; not those of the packages that they are in."""
    return {module: set(imports(module, at_start=True)) & set(SOURCES) - {module, "hrx"} for module in SOURCES}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycle(module_imports()) == []


def test_no_chain_of_imports_is_long() -> None:
    edges = module_imports()

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max(map(chain, edges[module]), key=len, default=()))

    longest = max(map(chain, edges), key=len)
    assert len(longest) <= DEEPEST, "\n".join(longest)


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("hrx.reports", MODEL_LIBRARIES),
        ("hrx.audit.attribution", ("hrx.records.ledger", "hrx.audit.runner")),
        ("hrx.audit.scoring", ("hrx.records.ledger", "hrx.audit.runner")),
    ],
)
def test_the_pure_middle_and_the_reports_import_neither_runner_nor_ledger_nor_models(
    package: str, forbidden: tuple[str, ...]
) -> None:
    assert violations(package, *forbidden) == []


@pytest.mark.parametrize("verb", ["models", "datasets"])
def test_known_models_and_datasets_are_listed_without_torch(verb: str) -> None:
    quiet = "import contextlib, io, hrx.cli\nwith contextlib.redirect_stdout(io.StringIO()):"
    loaded = loaded_by(f"exec({quiet + f' hrx.cli.main([{verb!r}])'!r})")
    assert loaded & {*MODEL_LIBRARIES, "matplotlib"} <= {"safetensors"}


@pytest.mark.parametrize("module", ["hrx.reports", "hrx.records.ledger", "hrx.records.merge"])
def test_reports_and_ledgers_are_read_without_torch(module: str) -> None:
    assert loaded_by(f"import {module}") & set(MODEL_LIBRARIES) == set()


def test_the_families_and_a_checkpoint_are_found_without_torch() -> None:
    loaded = loaded_by(
        "import hrx.adapters; hrx.adapters.families.families(); hrx.adapters.locate('bolt-mini').identity"
    )
    assert loaded & set(MODEL_LIBRARIES) == {"safetensors"}


@pytest.mark.parametrize("package", ["hrx.reports", "hrx.records"])
def test_no_module_of_reports_or_ledger_needs_torch(package: str) -> None:
    for module in (name for name in SOURCES if inside(name, package)):
        for reached in reachable(module):
            torch = [name for name in imports(reached, at_start=True) if inside(name, "torch")]
            assert torch == [], f"{module} imports {reached}, which imports torch"


def reachable(module: str) -> set[str]:
    """Modules of hrx that are imported with a module: its imports, their imports, and the packages they are in."""
    reached, waiting = set(), {module}
    while waiting:
        current = waiting.pop()
        reached.add(current)
        waiting |= ({current.rpartition(".")[0]} | imports(current, at_start=True)) & set(SOURCES) - reached
    return reached


def test_subpackages_of_audit_do_not_import_each_other_in_a_circle() -> None:
    edges = graph(PARTS_OF_AUDIT)
    assert cycle(edges) == [], edges


def test_a_circle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
