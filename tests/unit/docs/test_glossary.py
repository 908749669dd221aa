"""Every file that the glossary and the description of the architecture name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = "actors|benchmarks|cluster|demo_models|docs|evals|examples|kv_transfer|router|skim|speculator_service|tests"
PATH = re.compile(rf"(?<![\w/.-])(?:{FOLDERS}|target_service|vllm_hooks)/[\w./-]*")
PYTHON_FILE = re.compile(r"[\w./-]+\.py\b")


def text(document: str) -> str:
    return (ROOT / "docs" / document).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", ["glossary.md", "architecture.md"])
def test_every_path_that_is_named_exists(document: str) -> None:
    paths = {path.rstrip(".") for path in PATH.findall(text(document))}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", ["glossary.md", "architecture.md"])
def test_every_python_file_is_named_with_its_folder(document: str) -> None:
    """A bare file name does not tell the reader where the file is, and the test above would not check it."""
    assert [name for name in PYTHON_FILE.findall(text(document)) if not (ROOT / name).is_file()] == []


def test_every_term_of_the_glossary_names_a_file() -> None:
    rows = [line for line in text("glossary.md").splitlines() if line.startswith("| ")]
    terms = [row for row in rows if not row.startswith("| term |")]
    assert len(terms) > 60
    assert [row for row in terms if not re.search(r"\| (`[\w./]+\.(py|md)`(, )?)+ \|$", row)] == []
    names = [row.split(" | ")[0] for row in terms]
    assert len(set(names)) == len(names)


def test_a_missing_file_is_found() -> None:
    """Negative control: the patterns above recognise a path that does not exist."""
    line = "see `kv_transfer/no_such_file.py` and `scoring.py`."
    assert PATH.findall(line) == ["kv_transfer/no_such_file.py"]
    assert not (ROOT / "kv_transfer/no_such_file.py").exists()
    assert PYTHON_FILE.findall(line) == ["kv_transfer/no_such_file.py", "scoring.py"]
