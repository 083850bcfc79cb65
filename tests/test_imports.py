"""The folder tree is the architecture: imports point one way, extras stay optional, importing does nothing else."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import fedmime as fm

ROOT = Path(fm.__file__).parent
LAYERS = [
    {"cli", "deploy"},
    {"experiments", "report"},
    {"backends", "engine", "data", "models", "theory"},
    {"runs", "trackers"},
    {"aggregation", "algorithms"},
    {"optimizers"},
    {
        "vector",
        "hyperparameters",
        "randomness",
        "batching",
        "kernels",
        "compilation",
        "devices",
        "files",
        "errors",
        "origin",
        "named",
        "validation",
        "version",
    },
]
WITHIN = {  # who may import whom in the same layer
    ("cli", "deploy"),
    ("experiments", "report"),
    ("theory", "data"),
    ("trackers", "runs"),
    ("theory", "models"),
    ("aggregation", "algorithms"),
    ("hyperparameters", "validation"),
    ("validation", "errors"),
    ("validation", "vector"),
    ("kernels", "files"),
    ("compilation", "files"),
    ("compilation", "kernels"),
    ("kernels", "vector"),
    ("backends", "engine"),
    ("randomness", "errors"),
    ("batching", "randomness"),
    ("files", "errors"),
    ("origin", "errors"),
    ("named", "errors"),
}
EXTRAS = {"flax", "equinox", "matplotlib", "ray", "flwr", "torch", "datasets", "pandas", "PIL", "wandb", "mlflow"}
PURE = (
    "vector.py",
    "hyperparameters.py",
    "validation.py",
    "errors.py",
    "optimizers",
    "algorithms",
    "aggregation",
    "models",
    "theory",
)
OUTSIDE = {"os", "io", "pathlib", "socket", "urllib", "http", "subprocess", "sqlite3", "h5py", "tempfile", "shutil"}
UNSAFE = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
FILES = sorted(ROOT.rglob("*.py"))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _layer(part: str) -> int:
    found = [i for i, layer in enumerate(LAYERS) if part in layer]
    assert found, f"{part} has no place in the layers"
    return found[0]


def _modules(node: ast.AST, path: Path) -> Iterator[str]:
    """The absolute names that an import statement may bind."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        package = ["fedmime", *path.relative_to(ROOT).parts[:-1]]
        base = [*package[: len(package) - node.level + 1]] if node.level else []
        module = ".".join([*base, *(node.module.split(".") if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)


@functools.cache
def _imports(path: Path) -> list[str]:
    return [name for node in ast.walk(_tree(path)) for name in _modules(node, path)]


def _on_import(statements: list[ast.stmt], path: Path) -> Iterator[str]:
    """The modules that importing a file imports: not those in functions, not those for type checkers only."""
    for node in statements:
        yield from _modules(node, path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from _on_import(getattr(node, field, []), path)


def _top(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def _found(files: Iterable[Path], names: Callable[[Path], Iterable[str]], forbidden: set[str]) -> dict[str, set[str]]:
    """What files import that they must not, by file."""
    found = {str(path.relative_to(ROOT)): forbidden & _top(names(path)) for path in files}
    return {path: modules for path, modules in found.items() if modules}


def _allowed(here: str, name: str) -> bool:
    package, *rest = name.split(".")
    if package != "fedmime" or not rest or rest[0] == here:
        return True
    return _layer(rest[0]) > _layer(here) or (here, rest[0]) in WITHIN


def test_imports_point_one_way() -> None:
    assert len(FILES) > 100
    wrong = [
        f"{path.relative_to(ROOT)} must not import {name}"
        for path in FILES
        if path != ROOT / "__init__.py"  # the public names, from everywhere
        for name in _imports(path)
        if not _allowed(path.relative_to(ROOT).parts[0].removesuffix(".py"), name)
    ]
    assert not wrong


def test_extras_are_imported_in_functions_only() -> None:
    assert not _found(FILES, lambda path: _on_import(_tree(path).body, path), EXTRAS)


def test_nothing_reads_objects_that_can_run_code() -> None:
    assert not _found(FILES, _imports, UNSAFE)


def test_core_maths_does_no_input_or_output() -> None:
    pure = [path for path in FILES if path.relative_to(ROOT).parts[0] in PURE]
    assert {path.relative_to(ROOT).parts[0] for path in pure} == set(PURE)
    assert not _found(pure, _imports, OUTSIDE)


_PROBE = """
import sys
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event.startswith("socket.") else None)
import fedmime
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a JAX backend was started"
assert not seen, seen
print(*sorted(set(sys.modules) & set({extras!r})))
"""


def test_importing_starts_nothing() -> None:
    """No socket is opened, no JAX backend is started, no extra is imported."""
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent)}
    probe = [sys.executable, "-c", _PROBE.format(extras=sorted(EXTRAS))]
    done = subprocess.run(probe, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
