"""Every text file is opened with its encoding: that of the machine's locale may be another one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = [*sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"), "examples"]
OPENS = {"open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0}
"""The place of the mode among the arguments of a function; of a method `open` it is the one before."""


def without_encoding(source: str) -> Iterator[int]:
    """The lines of calls that read or write text by the locale's encoding."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or "encoding" in (given := {one.arg: one.value for one in node.keywords}):
            continue
        is_method = isinstance(node.func, ast.Attribute)
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ("read_text", "write_text") and is_method:
            yield node.lineno
        elif name in OPENS and ast.unparse(node.func) != "os.open":
            place = OPENS[name] - (name == "open" and is_method)
            mode = given.get("mode") or (node.args[place] if len(node.args) > place else None)
            if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
                if "b" not in mode.value and set(mode.value) <= set("rwax+t"):
                    yield node.lineno
            elif mode is None and not is_method and name == "open":
                yield node.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_file_is_opened_with_its_encoding(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = {str(file): lines for file in files if (lines := [*without_encoding(file.read_text(encoding="utf-8"))])}
    assert found == {}


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        ("path.read_text()", True),
        ('path.write_text("x", newline="")', True),
        ('open("a")', True),
        ('open("a", "w")', True),
        ('path.open("a")', True),
        ('path.open(mode="r")', True),
        ('os.fdopen(3, "w")', True),
        ('tempfile.TemporaryFile("w+")', True),
        ('path.read_text(encoding="utf-8")', False),
        ('open("a", "rb")', False),
        ('path.open("wb")', False),
        ('fs.open(path, "rb")', False),
        ("tempfile.TemporaryFile()", False),
        ("read_text(path)", False),
        ("os.open(path, flags)", False),
        ("journal.open(plan)", False),
    ],
)
def test_the_control_of_that_search(call: str, is_found: bool) -> None:
    assert list(without_encoding(f"\n{call}")) == [2] * is_found
