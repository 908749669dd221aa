"""Every dotted name in a docstring is that of a module here, or of what a module defines."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.config.schema import DeploymentConfig

ROOT = Path(__file__).parents[3]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
NAME = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?:\([^`]*\))?`")
SETTINGS = {
    f"{section}.{name}"
    for section, field in DeploymentConfig.model_fields.items()
    for name in getattr(field.annotation, "model_fields", ())
}
"""Settings of a deployment file: `router.host` is one, although there is a package of that name."""


def docstrings(source: str) -> Iterator[str]:
    """Those of modules, classes and functions, and those after an attribute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


@functools.cache
def modules() -> dict[str, Path]:
    """The files of all modules, by dotted name."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@functools.cache
def defined(module: str) -> dict[str, ast.AST]:
    """The names that a module defines or imports."""
    return dict(names(ast.parse(modules()[module].read_text())))


def names(owner: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Of a module or a class: what its body defines; of a class also the attributes that its methods set."""
    for node in ast.walk(owner):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name, node) for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node


def exists(name: str, here: str) -> bool:
    """Whether there is such a name. here: the module whose docstring has it; the router's own speak of modules."""
    if name in SETTINGS and "router" not in here.split("."):
        return True
    parts = name.split(".")
    module = next((found for n in range(len(parts), 0, -1) if (found := ".".join(parts[:n])) in modules()), None)
    if module is None:
        return False
    known = defined(module)
    for part in parts[module.count(".") + 1 :]:
        if part not in known:
            return False
        known = dict(names(known[part]))
    return True


@pytest.mark.parametrize("package", PACKAGES)
def test_every_dotted_name_exists(package: str) -> None:
    found = {
        f"{module}: {name}"
        for module, file in modules().items()
        if module.split(".")[0] == package
        for text in docstrings(file.read_text())
        for name in NAME.findall(text)
        if not exists(name, module)
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    "name", ["router.migration", "router.pools.migration.nothing", "router.pools.migration.migrate.x", "kv_transfer.no"]
)
def test_what_does_not_exist_is_found(name: str) -> None:
    """Negative control."""
    (found,) = NAME.findall(f"As `{name}` does.")
    assert not exists(found, "router.pools.serve_pools")


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("router.pools.migration", "router.pools.serve_pools"),
        ("router.pools.migration.migrate", "router.pools.serve_pools"),
        ("router.options.settings.RouterConfig.max_wait_s", "router.pools.serve_pools"),
        ("router.max_wait_s", "cluster.serve.app"),
    ],
)
def test_what_exists_is_not(name: str, here: str) -> None:
    assert exists(name, here)
