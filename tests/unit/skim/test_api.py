"""`import skim`: light, typed, and its documented example runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.demo_document import make_document

ROOT = Path(__file__).parents[3]
HEAVY = {"ray", "torch", "transformers", "vllm"}


@pytest.mark.parametrize("module", ["skim", "cluster.in_process.pair", "cluster.in_process.async_pair"])
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


@pytest.mark.nightly
def test_the_documented_example_runs(tmp_path):
    """As a plain script, on the demo models."""
    [code] = examples("docs/python.md")
    script = tmp_path / "example.py"
    script.write_text(code)
    (tmp_path / "demo_models").symlink_to(ROOT / "demo_models")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.strip().splitlines()
    document = make_document(2048, seed=7)
    assert document.is_right(first.split(" from ")[0])
    assert re.search(r" from \d{3} of 2\d{3} tokens$", first)
    assert document.is_right(second)


def test_the_readme_s_example_is_python():
    """It names functions of the reader's own, so it is compiled and not run."""
    [code] = [code for code in examples("README.md") if "skim.Pair" in code]
    compile(code, "README.md", "exec")
