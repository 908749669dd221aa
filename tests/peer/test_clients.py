"""Clients that people use, each in an environment of its own: a chat, a stream, a tool loop, a schema and an error.

`tests/peer/clients` has what each is asked. pip and npm get the clients into `build/peer/clients`.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import Served
from tests.peer.clients import checks
from tests.peer.conftest import NAME
from tests.peer.source import BUILD
from tests.reference.pip import PYTHON

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

CLIENTS = Path(__file__).with_name("clients")
OURS = ("openai", "anthropic", "vllm_bench")
"""They are in the environment of the tests."""
PYPI = {
    "litellm": ["litellm==1.110.2"],
    "langchain_openai": ["langchain-openai==1.7.4"],
    "llama_index": ["llama-index-llms-openai-like==0.8.1"],
    "pydantic_ai": ["pydantic-ai-slim[openai]==2.68.0"],
    "instructor": ["instructor==1.17.0"],
    "openai_agents": ["openai-agents==0.24.0"],
    "lm_eval": ["lm-eval[api]==0.4.13"],
    "guidellm": ["guidellm==0.8.1", "torch==2.13.0+cpu"],  # PyPI's torch brings 5 GB for CUDA
}
NPM = {"openai": ["openai@7.57.0"], "ai": ["ai@7.0.173", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7"]}
"""The requirements of each client, by the name of its script, or by the argument of use_npm.mjs."""
FEWER = {
    "guidellm": ("chat", "stream", "error"),
    "lm_eval": ("chat", "scores", "error"),
    "vllm_bench": ("chat", "stream", "error"),
}
"""The checks of clients that load or measure an endpoint. They know no tools."""


def installed(name: str, *command: str | Path) -> Path:
    """The environment of a client, made by the command; the test is skipped if it cannot be made."""
    folder = BUILD / "clients" / name
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(folder)
            pytest.skip(f"{name} cannot be installed: {(done.stderr.strip() or '?').splitlines()[-1]}")
        (folder / "complete").touch()
    return folder


def speculative(endpoint: str) -> float:
    """How many prompts ran speculative until now."""
    text = httpx.get(f"{endpoint}/metrics", timeout=30).raise_for_status().text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    mode = [one for one in samples if one.name == "skim_router_requests_total" and one.labels["mode"] == "speculative"]
    return sum(one.value for one in mode)


def check(served: Served, home: Path, name: str, *words: str | Path, folder: Path) -> None:
    """Run a client's script, and ask that all of its checks passed with skimmed prompts."""
    before, names = speculative(served.url), FEWER.get(name, checks.NAMES)
    asked = {"URL": served.url, "MODEL": NAME}
    asked |= {name: getattr(checks, name) for name in ("NOBODY", "COLOURS", "GATES", "MESSAGES", "TOOL", "RESULT")}
    environment = {**os.environ, "PEER_URL": served.url, "PEER_MODEL": NAME, "PEER_ASK": json.dumps(asked)}
    environment["PEER_TOKENIZER"] = str(home / "model")
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes == dict.fromkeys(names, "passed"), done.stderr
    assert speculative(served.url) >= before + len(names)


@pytest.mark.parametrize("name", OURS)
def test_a_client_of_the_own_environment(forced: Served, home: Path, name: str, tmp_path: Path) -> None:
    check(forced, home, name, sys.executable, CLIENTS / f"use_{name}.py", folder=tmp_path)


@pytest.mark.parametrize("name", PYPI)
def test_a_client_from_pip(forced: Served, home: Path, name: str) -> None:
    packages = shlex.join(PYPI[name])
    install = f'"{PYTHON}" -m venv --without-pip . && "{PYTHON}" -m pip --python bin/python install -q {packages}'
    folder = installed(name, "sh", "-c", install)
    check(forced, home, name, folder / "bin" / "python", CLIENTS / f"use_{name}.py", folder=folder)


@pytest.mark.parametrize("name", NPM)
def test_a_client_from_npm(forced: Served, home: Path, name: str) -> None:
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("npm and node are not installed")
    folder = installed(f"npm-{name}", "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *NPM[name])
    check(forced, home, f"npm-{name}", "node", CLIENTS / "use_npm.mjs", name, folder=folder)
