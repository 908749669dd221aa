"""docs/hooks.md names every file that hooks into vLLM or Ray, and the installed versions have its names."""

import ast
import re
from collections.abc import Iterator

import pytest

from tools.hook_names import PAGE, ROOT, Sources, installed, missing, rows

SERVES = ("actors", "cluster", "router", "skim", "speculator_service", "target_service", "vllm_hooks")
PUBLIC = {"StatLoggerBase"}
"""Classes of vLLM that are made for subclasses of others."""


def hooking(source: str) -> Iterator[str]:
    """Subclasses of vLLM's and Ray's classes, and functions or values of ours that replace an attribute of theirs."""
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0])
        for node in imports
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] in ("vllm", "ray")
    }
    ours = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name, bases=bases):
                if {re.split(r"[.\[]", ast.unparse(base))[0] for base in bases} & names - PUBLIC:
                    yield name
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in ("self", "cls"):
                        theirs = ast.unparse(target.value).split(".")[0] in names
                        if theirs or _is_function(value, ours):
                            yield ast.unparse(target)


def _is_function(value: ast.expr, ours: set[str]) -> bool:
    match value:
        case ast.Lambda():
            return True
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in ours
    return False


def test_the_table_is_read_whole():
    table = rows()
    assert len(table) == PAGE.read_text(encoding="utf-8").count("\n| `") <= 36
    assert all(row.files and row.why for row in table)


def test_the_installed_libraries_have_every_name():
    assert missing(installed()) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("`ray.serve.handle:DeploymentHandle.option`", "the name is missing"),
        ("`ray.serve.handle:DeploymentHandle.options(self, stream)`", r"its parameters are \(self, method_name"),
        ("`ray.serve.handles:DeploymentHandle`", "there is no module ray.serve.handles"),
        ("`ray.serve._private.replica:Replica._shuts_down`", "the name is missing"),
    ],
)
def test_a_wrong_name_is_reported(text: str, reason: str):
    """The control."""
    [row] = rows(f"| where | what | why |\n|---|---|---|\n| `a.py` | {text} | because |\n")
    assert re.search(reason, installed().mismatch(row.symbols[0]) or "")


@pytest.mark.parametrize(
    "text",
    [
        "`ray.serve.handle:DeploymentHandle.options(self, method_name)`",
        "`ray.serve._private.constants:SERVE_NAMESPACE`",
        "`ray.serve._private.replica:Replica._shutting_down`",
    ],
)
def test_a_right_name_is_not(text: str):
    [row] = rows(f"| `a.py`, `b.py` | {text} | because |\n")
    assert row.files == ("a.py", "b.py")
    assert installed().mismatch(row.symbols[0]) is None


def test_names_are_found_through_imports_and_bases(tmp_path):
    """Of a package that is not imported: its code would fail."""
    files = {
        "__init__": "from .api import *\nfrom .base import Base as Root\nraise RuntimeError",
        "api": "def ask(text, *, limit=1): ...",
        "base": "class Base:\n    def __init__(self, size):\n        self.size = size\n    def run(self, step): ...",
        "engine": "import p\nfrom p import Root\nif p:\n    class Engine(Root):\n        kind: str",
    }
    (tmp_path / "p").mkdir()
    for name, source in files.items():
        (tmp_path / "p" / f"{name}.py").write_text(source)
    text = "`p:ask(text, limit)`, `p:Root(self, size)`, `p.engine:Engine.run(self, step)`, `p.engine:Engine.size`"
    [right] = rows(f"| `a.py` | {text}, `p.engine:Engine.kind` | because |\n")
    assert [Sources(tmp_path).mismatch(symbol) for symbol in right.symbols] == [None] * 5
    [wrong] = rows("| `a.py` | `p:ask(text, size)`, `p.engine:Engine.run(self, stage)`, `p.engine:Engine.of` | why |\n")
    assert all(map(Sources(tmp_path).mismatch, wrong.symbols))


def test_the_files_of_each_hook_are_there():
    assert [path for row in rows() for path in row.files if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", SERVES)
def test_what_hooks_is_in_the_table(package: str):
    known = tuple(path for row in rows() for path in row.files)
    found = {}
    for file in sorted((ROOT / package).rglob("*.py")):
        path = str(file.relative_to(ROOT))
        if not path.startswith(known) and (changes := list(hooking(file.read_text(encoding="utf-8")))):
            found[path] = changes
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "from vllm.v1.core.sched.scheduler import Scheduler\nclass Ours(Scheduler): ...",
        "from vllm.v1.sample import sampler\nsampler.apply = 1",
        "import ray\nray.serve.limit = 1",
        "def wrap(manager):\n    def dispatch(): ...\n    manager.dispatch = dispatch",
        "runner.sample = lambda: None",
        "class A:\n    def probs(self): ...\n    def put(self, runner):\n        runner._probs = self.probs",
    ],
)
def test_each_way_to_hook_is_found(source: str):
    """The control."""
    assert list(hooking(source))


@pytest.mark.parametrize(
    "source",
    [
        "from vllm.v1.metrics.loggers import StatLoggerBase\nclass Ours(StatLoggerBase): ...",
        "from vllm.config import VllmConfig\nclass Ours:\n    def set(self, c: VllmConfig):\n        self.c = c",
        "state.spent = state.prompt",
    ],
)
def test_what_hooks_nothing_is_not(source: str):
    assert list(hooking(source)) == []
