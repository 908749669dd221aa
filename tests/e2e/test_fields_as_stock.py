"""Each field of a request acts as on a stock vLLM server: the same model, the same requests, the same responses.

The prompts are short, so both servers read the whole prompt. Fields that Skim refuses are in docs/fields.md.
"""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.servers import dense_server
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.nightly

MODEL = "skim-demo"
QUESTION = "The code of gate 12 is blue tulip. What is the code of gate 12?"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
CHAT_TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
SAMPLED = {"temperature": 1.0, "seed": 1}

BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12, "temperature": 0},
    "/v1/completions": {"prompt": "The code of gate 12 is", "max_tokens": 12, "temperature": 0},
    "/v1/responses": {"input": QUESTION, "max_output_tokens": 12, "temperature": 0},
    "/v1/messages": {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12, "temperature": 0},
}
SAMPLING: list[dict[str, Any]] = [
    {"allowed_token_ids": [30, 31, 32]},
    {"bad_words": [" blue", " the"]},
    {"frequency_penalty": 1.9},
    {"presence_penalty": 2.0, "ignore_eos": True},
    {"repetition_penalty": 1.8},
    {"logit_bias": {"40": 100}},
    {"min_p": 0.3, **SAMPLED},
    {"min_tokens": 10},
    {"n": 2, **SAMPLED},
    {"seed": 3, "temperature": 1.0},
    {"stop": ["e"]},
    {"stop": ["e"], "include_stop_str_in_output": True},
    {"stop_token_ids": list(range(300, 500))},
    {"skip_special_tokens": False, "ignore_eos": True},
    {"temperature": 1.5, "seed": 1},
    {"top_k": 2, **SAMPLED},
    {"top_p": 0.3, **SAMPLED},
    {"repetition_detection": {"max_pattern_size": 3, "min_count": 2}, "ignore_eos": True},
    {"structured_outputs": {"choice": ["left", "right"]}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"regex": "[0-9]{4}"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"truncate_prompt_tokens": 6},
    {"truncate_prompt_tokens": 6, "truncation_side": "right"},
    {"prompt_logprobs": 1},
    {"echo": True},
    {"use_beam_search": True, "n": 2},
    {"use_beam_search": True, "n": 2, "length_penalty": 0.1},
    {"return_token_ids": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"model": "other"},
]
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        *SAMPLING,
        {"logprobs": True, "top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True},
        {"logprobs": True, "logprob_token_ids": [30, 31]},
        {"add_generation_prompt": False},
        {"max_completion_tokens": 3},
        {"return_prompt_text": True},
        {**CHAT_TOOLS, "tool_choice": "none"},
        {**CHAT_TOOLS, "tool_choice": "auto"},
        {"chat_template": "x"},
    ],
    "/v1/completions": [
        *SAMPLING,
        {"logprobs": 2},
        {"logprobs": 1, "return_tokens_as_token_ids": True},
        {"prompt": [20, 21, 22]},
        {"prompt": ["a", [20, 21]]},
        {"prompt": ["a", "b"]},
        {"suffix": "x"},
    ],
    "/v1/responses": [
        {"frequency_penalty": 1.9},
        {"logit_bias": {"40": 100}},
        {"stop": ["e"]},
        {"instructions": "be brief"},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        {"metadata": {"a": "b"}},
        {"service_tier": "flex"},
        {"max_tool_calls": 1},
        {"user": "u"},
        {"store": True},
        {"previous_response_id": "resp_x"},
        {"truncation": "auto"},
        {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "none"},
    ],
    "/v1/messages": [
        {"system": "be brief"},
        {"stop_sequences": ["e"]},
        {"top_k": 1, "temperature": 1.0},
        {"metadata": {"user_id": "x"}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "none"}},
    ],
}
VARYING = {"id", "created", "created_at", "system_fingerprint", "metrics", "cached_tokens"}
"""Blocks of Skim's engines on CPUs are smaller, so they cache more tokens."""


@pytest.fixture(scope="module")
def stock(every_core: None) -> Iterator[str]:
    """Base URL of a stock vLLM server of the demo target in float32."""
    options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 16384, "num_gpu_blocks_override": 256}
    environment = {"VLLM_PLUGINS": "", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with dense_server(ROOT / "demo_models" / "target", MODEL, options, environment) as url:
        yield url


def comparable(response: httpx.Response) -> Any:
    """The response without names and times; of a stream the joined deltas, because servers may cut it otherwise."""
    if response.headers["content-type"].startswith("text/event-stream"):
        return "".join(re.findall(r'"(?:content|text)": ?"((?:[^"\\]|\\.)*)"', response.text))
    return without_varying(response.json())


def without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_varying(item) for name, item in value.items() if name not in VARYING}
    if isinstance(value, list):
        return [without_varying(item) for item in value]
    return round(value, 2) if isinstance(value, float) else value


@pytest.mark.parametrize("path", BASE)
def test_a_response_is_that_of_stock_vllm(endpoint: str, stock: str, path: str) -> None:
    plain = {**BASE[path], "model": MODEL}
    with httpx.Client(timeout=120) as client:
        differences = []
        for fields in REQUESTS[path]:
            ours, theirs = (client.post(f"{url}{path}", json={**plain, **fields}) for url in (endpoint, stock))
            if ours.status_code != theirs.status_code or (theirs.is_success and comparable(ours) != comparable(theirs)):
                differences.append((fields, ours.text[:300], theirs.text[:300]))
    assert differences == []


def test_most_fields_change_this_answer(endpoint: str) -> None:
    """Negative control: if the servers ignored the fields, their responses would agree, too."""
    path = "/v1/chat/completions"
    plain = {**BASE[path], "model": MODEL}
    with httpx.Client(base_url=endpoint, timeout=120) as client:
        answer = comparable(client.post(path, json=plain))
        changed = [comparable(client.post(path, json={**plain, **fields})) != answer for fields in SAMPLING]
    assert sum(changed) > 0.75 * len(SAMPLING)


def test_metrics_have_the_names_of_stock_vllm(endpoint: str, stock: str) -> None:
    """A stock server has no drafts; Skim adds those metrics and its own."""

    def names(url: str) -> set[str]:
        text = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text
        return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}

    for url in (endpoint, stock):
        httpx.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": "x"}, timeout=120).raise_for_status()
    ours, theirs = names(endpoint), names(stock)
    assert theirs <= ours
    assert all(name.startswith(("skim_", "vllm:spec_decode_")) for name in ours - theirs)
