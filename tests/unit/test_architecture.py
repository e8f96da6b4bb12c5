"""Imports run one way, and what a folder may import is written down here."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sadih_dask

ROOT = Path(sadih_dask.__file__).parent

LAYERS = [
    "errors",
    "types",
    "files",
    "learning",
    "retrieval",
    "stores",
    "compute",
    "sources",
    "ingest",
    "model",
    "__init__",
    "cluster",
    "report",
    "jobs",
    "runs",
    "cli",
]
"""The data's way: a part imports from itself and from those above it in this list."""


def layer_of(module: str) -> int:
    part = module.removeprefix("sadih_dask").removeprefix(".").split(".")[0] or "__init__"
    assert part in LAYERS, f"{module} belongs to no layer: add it to LAYERS"
    return LAYERS.index(part)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, ast.Module]:
    """Every file of the package, parsed."""
    return {name_of(path): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


def imports(tree: ast.AST, *, lazy: bool = True) -> Iterator[str]:
    """Full names that a module imports; those inside functions, too, if ``lazy``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_type_checking(node) and not lazy:
                continue
            yield from imports(node, lazy=lazy)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def own(name: str) -> str | None:
    """The module of this package that an imported name is in, if any."""
    while name.startswith("sadih_dask"):
        if name in modules():
            return name
        name = name.rpartition(".")[0]
    return None


def outside(tree: ast.AST) -> set[str]:
    """Packages that a module imports from elsewhere."""
    return {name.split(".")[0] for name in imports(tree)} - {"sadih_dask", "__future__"}


def test_there_is_something_to_check() -> None:
    known = {"sadih_dask", "sadih_dask.model.estimator", "sadih_dask.learning.solver"}
    assert known <= set(modules())


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_layer_imports_from_itself_and_from_those_before(module: str) -> None:
    for name in imports(modules()[module]):
        if (source := own(name)) is not None and source != "sadih_dask":
            assert layer_of(source) <= layer_of(module), f"{module} imports {name}"


def test_only_the_last_layers_import_the_package_itself() -> None:
    """Through `sadih_dask/__init__` everything could reach everything."""
    for module, tree in modules().items():
        reached = {name for name in imports(tree) if own(name) == "sadih_dask"}
        assert not reached or layer_of(module) > layer_of("sadih_dask"), f"{module}: {reached}"


def test_no_two_modules_import_each_other() -> None:
    graph = {
        module: {source for name in imports(tree, lazy=False) if (source := own(name))} - {module}
        for module, tree in modules().items()
    }
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")
    assert len(order) == len(modules())


def test_learning_is_numpy_and_scipy_only() -> None:
    for module, tree in modules().items():
        if module.startswith("sadih_dask.learning"):
            packages = outside(tree)
            assert packages - sys.stdlib_module_names <= {"numpy", "scipy"}, module
            assert not packages & {"os", "pathlib", "io", "json", "tempfile"}, f"{module}: no files"


def test_only_those_that_read_or_write_arrays_import_zarr() -> None:
    for module, tree in modules().items():
        if module.split(".")[1:2] not in (["stores"], ["sources"], ["jobs"]):
            assert not outside(tree) & {"zarr", "numcodecs"}, module


def test_only_compute_builds_graphs() -> None:
    for module, tree in modules().items():
        if module.split(".")[1:2] in (["learning"], ["retrieval"]):
            assert not outside(tree) & {"dask", "distributed"}, module


def test_only_the_command_line_prints() -> None:
    for module, tree in modules().items():
        if not module.startswith("sadih_dask.cli"):
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            assert "print" not in {f.id for f in calls if isinstance(f, ast.Name)}, module
            assert "click" not in outside(tree), module


@pytest.mark.parametrize("module", sorted(modules()))
def test_nothing_is_unpickled_or_evaluated(module: str) -> None:
    tree = modules()[module]
    assert not outside(tree) & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


def test_no_matrix_is_inverted() -> None:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"inv", "pinv"}, f"{module}, line {node.lineno}"


def test_modules_have_a_docstring_and_no_dump_of_odds_and_ends() -> None:
    for module, tree in modules().items():
        assert ast.get_docstring(tree), module
        assert not set(module.split(".")) & {"utils", "util", "helpers", "core", "common", "misc"}
