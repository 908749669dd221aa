"""Names of Ray that are not public are used in `actors/ray_hooks/` alone."""

import ast
from collections.abc import Iterator

import pytest

from tests.hook_table import ROOT, rows

SHELF = "actors/ray_hooks/"
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
PRIVATE_MODULES = ("ray._", "ray.serve._private", "ray.experimental.internal_kv")

PRIVATE = {
    last
    for row in rows()
    for symbol in row.symbols
    if symbol.module.startswith("ray.") and (last := symbol.name.split(".")[-1]).startswith("_")
}
"""The private names that the hooks need, which nobody else may read, set, call or pass."""

ALLOWED = {
    "router/pools/affinity_router.py": "a subclass of Serve's RequestRouter",
}


def private_names(source: str) -> Iterator[str]:
    """Each use of a name of Ray that is not public."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names if alias.name.startswith(PRIVATE_MODULES)]
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "ray":
                dotted = [f"{module}.{alias.name}" for alias in names]
                found = [one for one in dotted if one.startswith(PRIVATE_MODULES) or "._" in one]
            case ast.Attribute(attr=name):
                dotted = ast.unparse(node)
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                ray_own = dotted.startswith(PRIVATE_MODULES)
                found = [dotted] if ray_own or (name in PRIVATE and not own) else []
            case ast.keyword(arg=str(name)):
                found = [name] if name in PRIVATE else []
            case ast.Constant(value=str(text)):
                found = [text] if text in PRIVATE or (text.startswith(PRIVATE_MODULES) and " " not in text) else []
            case _:
                continue
        yield from found


@pytest.mark.parametrize("package", PACKAGES)
def test_they_are_on_one_shelf(package):
    found = {}
    for file in sorted((ROOT / package).rglob("*.py")):
        path = str(file.relative_to(ROOT))
        if not path.startswith(SHELF) and path not in ALLOWED and (names := list(private_names(file.read_text()))):
            found[path] = names
    assert found == {}


@pytest.mark.parametrize("path", ALLOWED)
def test_who_is_excepted_needs_it(path):
    assert list(private_names((ROOT / path).read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "import ray._private.worker",
        "from ray._private import worker",
        "from ray import _private",
        "from ray.serve._private.common import ReplicaID",
        "from ray.serve.context import _disconnect",
        "from ray.experimental.internal_kv import _internal_kv_get",
        "import ray\nray._private.worker._global_node",
        "deployment._version = 'x'",
        "handle._init(a=1)",
        "handle.options(_by_reference=False)",
        "options = {'_by_reference': False}",
        "getattr(actor, '_replica_impl', None)",
        "importlib.import_module('ray.serve._private.proxy')",
        "super()._choose_replica_for_request(pending)",
    ],
)
def test_each_way_to_use_one_is_found(source):
    """The control."""
    assert list(private_names(source))


@pytest.mark.parametrize(
    "source",
    [
        "from ray.serve.request_router import RequestRouter",
        "from ray import serve\nserve.get_replica_context()",
        "class A:\n    def __init__(self):\n        self._version = 1",
        "'Serve counts them (ray.serve._private.deployment_state) itself.'",
    ],
)
def test_what_is_public_or_our_own_is_not(source):
    assert list(private_names(source)) == []
