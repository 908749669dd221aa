"""docs/hooks.md has the hooks that the code declares, and what hooks into vLLM or Ray declares it."""

import ast
import re
from collections.abc import Iterator

import pytest

from evals.report import hooks
from evals.report.hooks import PAGE, ROOT, declared, page

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


def test_the_page_has_the_table_that_the_code_gives():
    """If not: `python -m evals.report.hooks`."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text, declared())
    assert text.count("\n| ") == len(declared()) + 1  # and no row beside it


def test_a_change_of_a_declaration_changes_the_page():
    text, [first, *others] = PAGE.read_text(encoding="utf-8"), declared()
    assert page(text, others) != text
    assert page(text, [first._replace(until="never"), *others]) != text


def test_every_declaration_of_the_source_is_a_row():
    """Counted by another way than the generator's."""
    files = (file for package in ROOT.glob("*/__init__.py") for file in package.parent.rglob("*.py"))
    sources = [file.read_text(encoding="utf-8") for file in files]
    counted = sum(len(re.findall(r"^ *(?:HOOK = )?Hook\($", source, re.MULTILINE)) for source in sources)
    assert len(declared()) == counted <= 42
    assert len({row.what for row in declared()}) == counted


def test_the_files_of_each_hook_are_there():
    assert [path for row in declared() for path in row.where if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", SERVES)
def test_what_hooks_is_declared(package: str):
    known = tuple(path for row in declared() for path in row.where)
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


def test_a_text_that_is_no_literal_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text('HOOK = Hook(what=NAME, how="h", until="u")')
    with pytest.raises(ValueError, match="malformed node"):
        hooks.declared(tmp_path)
