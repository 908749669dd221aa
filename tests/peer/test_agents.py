"""Coding agents as they install from npm and pip: a turn, three tool calls, a long file, a stop, a resumed session.

They talk to `skim serve` with the lexical selector and `ScriptedTarget`. docs/clients.md has their settings.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import ROOT, Served, serving
from tests.peer.scripted import SLOW
from tests.peer.test_clients import installed, speculative
from tests.reference.pip import PYTHON

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

MODEL, DEADLINE_S = "skim", 300
QUESTION = "Which component refused order 4711?"
NPM = {
    "claude": "@anthropic-ai/claude-code@2.1.197",
    "codex": "@openai/codex@0.171.0",
    "opencode": "opencode-ai@1.18.33",
    "qwen": "@qwen-code/qwen-code@0.15.10",
    "pi": "@mariozechner/pi-coding-agent@0.73.1",
}
WORDS = {
    "claude": ("--allowedTools=Bash,Read", "-p"),
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    "opencode": ("run",),
    "qwen": ("--auth-type", "openai", "-y", "-p"),
    "pi": ("--provider", "skim", "--model", MODEL, "-p"),
    "aider": ("--model", f"openai/{MODEL}", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings",
              "--no-analytics", "--no-pretty", "--read", "orders.log", "--message"),
}  # fmt: skip
RESUMED = {
    "claude": ("-c", *WORDS["claude"]),
    "codex": ("exec", "resume", "--last", *WORDS["codex"][1:]),
    "opencode": ("run", "-c"),
    "qwen": ("--continue", *WORDS["qwen"]),
    "pi": ("-c", *WORDS["pi"]),
    "aider": ("--restore-chat-history", *WORDS["aider"]),
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agents' working directory, with a file of some 20,000 tokens. It is no git repository."""
    folder = tmp_path_factory.mktemp("work")
    lines = [
        f"12:{line // 60:02}:{line % 60:02} INFO order {line} was packed after {line % 7} minutes"
        for line in range(900)
    ]
    lines[612] = "ERROR the payment gateway refused order 4711"
    (folder / "orders.log").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def served(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that only tokenizes: the demo target's tokenizer and config, with room for the prompts of agents."""
    model = tmp_path_factory.mktemp("model")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(ROOT / "demo_models" / "target" / name, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2**20}))
    pool: dict[str, Any] = {"model": str(model), "cpus_per_replica": 0.1, "start_probe": "off"}
    options = {
        "file": str(work / "orders.log"),
        "chat_template": str(ROOT / "tests" / "peer" / "chat_template.jinja"),
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
    }
    target = {
        "engine": "tests.peer.scripted:ScriptedTarget",
        "engine_options": options,
        "env": {"PYTHONPATH": str(ROOT)},
    }
    settings = {
        "served_model_name": MODEL,
        "speculator": {**pool, "engine": "mock"},
        "target": {**pool, **target},
        "selection": {"selector": "lexical"},
        "decode": {"method": "none"},
        "router": {"cpus": 0.1, "speculative_prefill": "always"},
    }
    with serving(settings, tmp_path_factory.mktemp("served")) as running:
        yield running


def environment(url: str, home: Path) -> dict[str, str]:
    """The settings of docs/clients.md for all agents, as variables and files in `home`."""
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "skim"\n[model_providers.skim]\nname = "Skim"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n'
    )
    (home / ".config" / "opencode").mkdir(parents=True)
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: {"limit": {"context": 131072, "output": 8192}}},
    }
    opencode = {
        "provider": {"skim": provider},
        "model": f"skim/{MODEL}",
        "permission": {"bash": "allow", "read": "allow", "external_directory": "allow"},
    }
    (home / ".config" / "opencode" / "opencode.json").write_text(json.dumps(opencode))
    (home / ".pi" / "agent").mkdir(parents=True)
    models = [{"id": MODEL, "contextWindow": 131072, "maxTokens": 8192}]
    pi = {
        "providers": {"skim": {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none", "models": models}}
    }
    (home / ".pi" / "agent" / "models.json").write_text(json.dumps(pi))
    claude = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    claude |= dict.fromkeys(("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"), MODEL)
    openai = {"OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
    openai |= dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), f"{url}/v1")
    others = {"HOME": str(home), "NO_PROXY": "127.0.0.1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    known = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    return {**known, **claude, **openai, **others}


def counter(url: str, name: str) -> float:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).raise_for_status().text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def await_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(1)


@pytest.mark.parametrize("name", [*NPM, "aider"])
def test_an_agent(served: Served, work: Path, name: str, tmp_path: Path) -> None:
    if name == "aider":
        install = (
            f'"{PYTHON}" -m venv --without-pip . && "{PYTHON}" -m pip --python bin/python install -q aider-chat==0.86.2'
        )
        program = installed(name, "sh", "-c", install) / "bin" / name
    else:
        if not (shutil.which("npm") and shutil.which("node")):
            pytest.skip("npm and node are not installed")
        folder = installed(f"npm-{name}", "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", NPM[name])
        program = folder / "node_modules" / ".bin" / name
    variables = environment(served.url, tmp_path)

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [program, *words], cwd=work, env=variables, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def ask(*words: str) -> tuple[int, int]:
        """The results of tools after the question, and the user's turns, as the target has read them."""
        told, _ = start(*words).communicate(timeout=DEADLINE_S)
        found = re.findall(r"DONE results=(\d+) users=(\d+)", told)
        assert found, told
        return int(found[-1][0]), int(found[-1][1])

    results = 0 if name == "aider" else 3  # aider has no tools: it sends the file itself
    before = speculative(served.url)
    assert ask(*WORDS[name], "Hello")[0] == 0
    told, turns = ask(*WORDS[name], QUESTION)
    assert told == results
    assert speculative(served.url) > before
    started, aborted = (counter(served.url, f"skim_target_{what}_total") for what in ("started", "aborted"))
    stopped = start(*WORDS[name], f"Please {SLOW}.")
    await_true(lambda: counter(served.url, "skim_target_started_total") > started)
    await_true(lambda: counter(served.url, "skim_target_running") > 0)

    def interrupted() -> bool:
        """Whether its work at the target has ended, after one more Ctrl-C: some clients ask for two."""
        with suppress(ProcessLookupError):
            os.killpg(stopped.pid, signal.SIGINT)
        return counter(served.url, "skim_target_aborted_total") > aborted

    await_true(interrupted)
    with suppress(ProcessLookupError):
        os.killpg(stopped.pid, signal.SIGKILL)
    stopped.communicate()
    told, later = ask(*RESUMED[name], QUESTION)
    assert told == results
    assert later > turns
