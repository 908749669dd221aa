"""Runs vLLM's own tests on a system: a stock server, or Skim with all prompts dense or all speculative."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.peer.source import BUILD, ROOT, vllm_tests

BIN = Path(sys.executable).parent
PREFIX = "tests/entrypoints/"
SYSTEMS = ("stock", "dense", "forced")

MODELS = (
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen2-1.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "facebook/opt-125m",
    "openai-community/gpt2",
)
"""The models that the tests ask for. All are the same one here (tests/peer/hub.py)."""

FILES = (
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_batched_chat_completions.py",
    "openai/chat_completion/test_logprob_token_ids.py",
    "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/test_return_token_ids.py",
    "openai/test_async_tokenization.py",
    "openai/test_chunked_prompt.py",
    "openai/completion/test_completion.py",
    "openai/completion/test_prompt_validation.py",
    "anthropic/test_messages.py",
    "serve/tokenize/test_tokenization.py",
    "serve/instrumentator/test_orca_metrics.py",
    "serve/instrumentator/test_basic.py",
    "serve/instrumentator/test_metrics.py",
    "generate/generative_scoring/test_generative_scoring_e2e.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
    "openai/chat_completion/test_include_reasoning.py",
    "openai/responses/test_basic.py",
    "openai/responses/test_errors.py",
    "openai/responses/test_function_call.py",
    "openai/responses/test_simple.py",
    "openai/responses/test_stateful.py",
    "openai/responses/test_structured_output.py",
    "openai/chat_completion/test_thinking_token_budget.py",
    "openai/chat_completion/test_chat_echo.py",
    "openai/chat_completion/test_enable_force_include_usage.py",
    "openai/chat_completion/test_root_path.py",
)
"""Relative to PREFIX in vLLM's source, in an order in which modules that share a server follow each other."""

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
SHARED = (
    {
        "model": MODELS[0],
        "flags": [
            *("--served-model-name", *MODELS, "claude-3-7-sonnet-latest"),
            *TOOLS,
            *("--enable-prompt-tokens-details", "--enable-tokenizer-info-endpoint"),
        ],
        "environment": {},
    },
    {
        "model": MODELS[0],
        "flags": [
            *("--served-model-name", *MODELS),
            *TOOLS,
            *("--reasoning-parser", "qwen3", "--structured-outputs-config.backend", "xgrammar"),
        ],
        "environment": {
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_SYSTEM_START_DATE": "2023-09-12",
        },
    },
)
"""Servers that modules share, with the flags of all of them. A module that asks for others has a server of its own."""


def deployment(system: str) -> str:
    """The text of a deployment file, in which the plugin writes the model's name. Empty for a stock server."""
    if system == "stock":
        return ""
    pool = {"model": "{model}", "cpus_per_replica": 0.5, "start_probe": "off"}
    router = {"cpus": 0.5, "min_prompt_tokens": 1, "speculative_prefill": "always" if system == "forced" else False}
    engine = (
        {"engine_options": {"dtype": "float32", "enforce_eager": True}} if system == "forced" else {"engine": "mock"}
    )
    decode = {"method": "remote" if system == "forced" else "none"}
    return yaml.safe_dump({"speculator": {**pool, **engine}, "target": pool, "decode": decode, "router": router})


def run_suite(system: str, files: Sequence[str], home: Path) -> dict[str, list[str]]:
    """The outcome of each test, by its name as pytest has it, and the first line of its cause. home: as HF_HOME."""
    tests, work = vllm_tests(), BUILD / system
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    vllm = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"]
    path = [tests, tests / "site", Path(__file__).with_name("plugin")]
    environment = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_PLUGINS": "" if system == "stock" else "skim",
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PEER_COMMAND": json.dumps(vllm if system == "stock" else [str(BIN / "skim"), "serve", "{config}"]),
        "PEER_SHARED": json.dumps(SHARED),
        "PEER_CONFIG": deployment(system),
        "PEER_WORK": str(work),
        "PEER_PYTHONPATH": str(ROOT),
    }
    plugins = ["-p", "swapped_server", "-p", "no:cacheprovider", "-p", "no:xdist"]
    words = [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", tests, "-c", tests / "pyproject.toml"]
    # Half of test_metrics.py asks for a model that reads images.
    words += ["--timeout=300", "--durations=15", "-k", "not multimodal", *(f"{PREFIX}{file}" for file in files)]
    with (work / "pytest.log").open("w") as log:
        subprocess.run(words, cwd=tests, env=environment, stdout=log, stderr=log)
    found: dict[str, list[str]] = json.loads((work / "outcomes.json").read_text())
    return {test.removeprefix(PREFIX): outcome for test, outcome in found.items()}


def prompts(system: str, mode: str) -> float:
    """How many prompts of the last run Skim's servers ran in this mode."""
    texts = [file.read_text() for file in (BUILD / system).glob("metrics-*.txt")]
    samples = [sample for text in texts for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(one.value for one in samples if one.name == "skim_router_requests_total" and one.labels["mode"] == mode)
