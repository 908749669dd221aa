"""A command line of `vllm serve` with --speculator: the endpoint answers as the stock server of the same flags."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.harness.servers import dense_server
from demo_models.ports import free_port
from tests.e2e.conftest import ROOT, SKIM, Served, serving
from tests.e2e.test_fields_as_stock import QUESTION, comparable
from tests.reference.thinking import thinking_model

pytestmark = pytest.mark.nightly

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}
KEY = "key-of-the-test"
FLAGS: dict[str, Any] = {
    "api_key": KEY,
    "dtype": "float32",
    "enable_auto_tool_choice": True,
    "enable_force_include_usage": True,
    "enforce_eager": True,
    "max_logprobs": 5,
    "max_model_len": 4096,
    "num_gpu_blocks_override": 256,
    "override_generation_config": '{"temperature": 0, "max_new_tokens": 40}',
    "reasoning_parser": "qwen3",
    "tool_call_parser": "hermes",
}
"""Without `chat_template`, whose file is made by the test."""
SPECULATOR = {"dtype": "float32", "enforce_eager": True, "max_model_len": 4096, "num_gpu_blocks_override": 256}

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
GATE = {"type": "object", "properties": {"gate": {"type": "string", "enum": ["7"]}}, "required": ["gate"]}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": GATE}}
REQUESTS: list[dict[str, Any]] = [
    {},
    {"response_format": FORMAT},
    {"structured_outputs": {"choice": ["plum", "tulip"]}},
    {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200},
    {"response_format": FORMAT, "chat_template_kwargs": {"enable_thinking": False}},
    {"logprobs": True, "top_logprobs": 5},
    {"logprobs": True, "top_logprobs": 6},
    {"stream": True},
    {"model": "other"},
]


def flag_words(flags: dict[str, Any]) -> list[str]:
    words = []
    for name, value in flags.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """FLAGS, with a template that says more than the model's own, and does not think if asked not to."""
    template = tmp_path_factory.mktemp("template") / "brief.jinja"
    own = (ROOT / "demo_models" / "target" / "chat_template.jinja").read_text()
    answer = "{% if add_generation_prompt %}<|assistant|>"
    assert answer in own
    unthought = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    template.write_text("<|system|> Be brief." + own.replace(answer, answer + unthought))
    return {**FLAGS, "chat_template": template}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("target", "speculator"):
        thinking_model(name, folder)
    return folder


@pytest.fixture(scope="module")
def ours(models: Path, flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of `skim serve` with the flags, and some for the speculator."""
    theirs = [word.replace("--", "--speculator.", 1) for word in flag_words(SPECULATOR)]
    port, log = free_port(), tmp_path_factory.mktemp("serve") / "log"
    words = ["--speculator", models / "speculator", "--port", str(port), "--served-model-name", "name", "alias"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [SKIM, "serve", models / "target", *words, *flag_words(flags), *theirs],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            env={**os.environ, **ENVIRONMENT},
        )
    served = Served(process, port, log)
    try:
        served.await_ready()
        yield served.url
    finally:
        served.stop()


@pytest.fixture(scope="module")
def stock(models: Path, flags: dict[str, Any], every_core: None) -> Iterator[str]:
    """Base URL of a stock server with the same flags."""
    with dense_server(models / "target", "name", flags, {**ENVIRONMENT, "VLLM_PLUGINS": ""}) as url:
        yield url


def ask(url: str, **fields: Any) -> httpx.Response:
    body = {"model": "name", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 60, **fields}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=120)


def test_the_answers_are_those_of_a_stock_server(ours: str, stock: str) -> None:
    differences = []
    for fields in REQUESTS:
        mine, its = ask(ours, **fields), ask(stock, **fields)
        if mine.status_code != its.status_code or (its.is_success and comparable(mine) != comparable(its)):
            differences.append((fields, mine.text[:400], its.text[:400]))
    assert differences == []


def test_the_requests_tell_one_flag_from_none(stock: str) -> None:
    """The control: reasoning is free text, a schema binds at once without it, six log probabilities are too many."""
    thought = ask(stock, response_format=FORMAT).json()["choices"][0]["message"]
    assert (thought["content"], thought["reasoning"].startswith("{")) == (None, False)
    asked_not_to = ask(stock, response_format=FORMAT, chat_template_kwargs={"enable_thinking": False})
    assert asked_not_to.json()["choices"][0]["message"]["content"].startswith("{")
    assert ask(stock, logprobs=True, top_logprobs=6).status_code == 400


def test_a_schema_binds_no_reasoning_of_a_prompt_that_was_skimmed(models: Path, tmp_path: Path) -> None:
    """Without start probes, which need a file: the demo pair knows no English."""
    options = {name: value for name, value in FLAGS.items() if name not in ("api_key", "override_generation_config")}
    pools = {
        name: {"model": str(models / name), "engine_options": of_pool, "start_probe": "off", "cpus_per_replica": 0.5}
        for name, of_pool in (("target", options), ("speculator", SPECULATOR))
    }
    document = " ".join(f"The code of gate {n} is blue tulip." for n in range(120)) + " What is the code of gate 7?"
    prefill = {"enabled": "always", "min_prompt_tokens": 1024}
    asked = {"messages": [{"role": "user", "content": document}], "speculative_prefill": prefill}
    with serving({"served_model_name": "name", **pools}, tmp_path) as served:
        answer = ask(served.url, **asked, response_format=FORMAT)
    assert answer.headers["x-skim-mode"] == "speculative"
    assert not (answer.json()["choices"][0]["message"]["reasoning"] or "").startswith("{")


def test_who_has_no_key_and_who_asks_by_another_name(ours: str) -> None:
    assert httpx.get(f"{ours}/v1/models").status_code == 401
    assert ask(ours, model="alias").json()["model"] == "name"
