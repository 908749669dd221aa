"""No protocol of Skim's own uses pickle, nor anything else that runs code while it reads."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = ("actors", "cluster", "kv_transfer", "router", "skim", "speculator_service", "target_service", "vllm_hooks")
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec"}


def dangers(source: str) -> list[str]:
    """What a source imports or calls that runs code while it reads bytes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            risky = name in CALLS or name in ("torch.load", "yaml.load", "np.load", "numpy.load")
            plain = any(word.arg == "allow_pickle" and ast.unparse(word.value) == "False" for word in node.keywords)
            found += [name] if risky and not plain else []
    return found


@pytest.mark.parametrize("folder", CODE)
def test_no_code_is_read_from_bytes(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    assert {str(file): found for file in files if (found := dangers(file.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import torch\ntorch.load(f)",
        "eval(x)",
        "yaml.load(x)",
        "np.load(x)",
    ],
)
def test_it_would_be_found(source):
    assert dangers(source)
