"""Every file that the glossary, the pages on the architecture and on hooks, CONTRIBUTING and SECURITY name exists; so
does every link."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = "actors|benchmarks|cluster|demo_models|docs|evals|examples|kv_transfer|router|skim|skim_common|tests"
PATH = re.compile(rf"(?<![\w/.-])(?:{FOLDERS}|speculator_service|target_service|vllm_hooks)/[\w./-]*")
PYTHON_FILE = re.compile(r"[\w./-]+\.py\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
DOCUMENTS = ("docs/glossary.md", "docs/architecture/*.md", "docs/hooks.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "demo_models/*.md", "examples/**/*.md")
    for page in sorted(ROOT.glob(pattern))
]


def text(pattern: str) -> str:
    """The text of all documents of `pattern`, without the targets of their links."""
    pages = sorted(ROOT.glob(pattern))
    assert pages
    return LINK.sub("]", "\n".join(page.read_text(encoding="utf-8") for page in pages))


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_every_path_that_is_named_exists(documents: str) -> None:
    paths = {path.rstrip(".") for path in PATH.findall(text(documents))}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("documents", DOCUMENTS)
def test_every_python_file_is_named_with_its_folder(documents: str) -> None:
    """A bare file name does not tell the reader where the file is, and the test above would not check it."""
    assert [name for name in PYTHON_FILE.findall(text(documents)) if not (ROOT / name).is_file()] == []


def test_every_term_of_the_glossary_names_a_file() -> None:
    rows = [line for line in text("docs/glossary.md").splitlines() if line.startswith("| ")]
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


def broken(page: Path, links: list[str]) -> list[str]:
    """Those of the relative `links` of `page` that lead to no file, or to no heading of a Markdown file."""
    found = []
    for link in links:
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        wrong = not target.exists() or (fragment and target.suffix == ".md" and fragment not in anchors(target))
        found += [link] if wrong else []
    return found


def anchors(page: Path) -> set[str]:
    """The fragments by which GitHub links to the headings of `page`."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", heading.lower())).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not link.startswith("http")]
    assert broken(page, links) == []


def test_a_broken_link_is_found() -> None:
    """Negative control."""
    page = ROOT / "README.md"
    assert broken(page, ["docs/no_such_page.md", "docs/options.md#no-such-heading"]) == [
        "docs/no_such_page.md",
        "docs/options.md#no-such-heading",
    ]
    assert broken(page, ["docs/options.md#guard", "#use"]) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
