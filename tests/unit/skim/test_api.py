"""`import skim`: light and typed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = {"ray", "torch", "transformers", "vllm"}


@pytest.mark.parametrize("module", ["skim", "skim.pair", "skim.engines"])
def test_importing_it_loads_neither_engines_nor_ray(module):
    code = f"import sys, {module}; print(sorted({HEAVY!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_is_there():
    import skim

    assert all(getattr(skim, name).__doc__ for name in skim.__all__)
    assert (ROOT / "skim" / "py.typed").exists()


def examples(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_s_examples_are_python():
    """They name functions of the reader's own, so they are compiled and not run."""
    found = examples("README.md")
    assert found
    for code in found:
        compile(code, "README.md", "exec")
