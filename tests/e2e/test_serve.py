"""The demo pair on real engines behind real Ray Serve, with real clients."""

import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import BadRequestError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from demo_models.documents import DemoDocument, make_document
from evals.run.turns import make_conversations
from skim_common.models.info import load_tokenizer
from tests.e2e.conftest import Served
from tests.unit.conftest import MODELS

MODEL = "skim-demo"
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}
ROUTER_RSS_LIMIT = 1.5 * 2**30
QUESTION_TOKENS = 20


@pytest.fixture(scope="module")
def document() -> DemoDocument:
    return make_document(4000, seed=1)


@pytest.fixture(scope="module")
def openai(endpoint: str) -> OpenAI:
    return OpenAI(base_url=f"{endpoint}/v1", api_key="none")


@pytest.mark.parametrize("option", [False, True, {"keep_rate": 0.1, "look_ahead": 6}])
def test_openai_client_gets_the_right_answer(openai: OpenAI, document: DemoDocument, option: Any) -> None:
    answer = openai.chat.completions.create(
        messages=document.messages, **GREEDY, extra_body={"speculative_prefill": option}
    )
    assert document.is_right(answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == document.prompt_tokens


def test_openai_client_streams(openai: OpenAI, document: DemoDocument) -> None:
    with openai.chat.completions.with_streaming_response.create(
        messages=document.messages, **GREEDY, stream=True, stream_options={"include_usage": True}
    ) as response:
        assert response.headers["x-skim-mode"] == "speculative"
        assert int(response.headers["x-skim-kept-tokens"]) < 0.3 * document.prompt_tokens
        for part in ("tokenize", "queue", "speculate", "select", "transfer", "prefill"):
            assert f"{part};dur=" in response.headers["server-timing"]
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert document.is_right(text)
    assert chunks[-1]["usage"]["prompt_tokens"] == document.prompt_tokens


def test_openai_client_sees_a_clean_error(openai: OpenAI, document: DemoDocument) -> None:
    message = r"speculative_prefill\.keep_rate must be auto or a number > 0 and <= 1, not 7"
    with pytest.raises(BadRequestError, match=message):
        openai.chat.completions.create(
            messages=document.messages, **GREEDY, extra_body={"speculative_prefill": {"keep_rate": 7}}
        )


def test_dropping_the_wrong_chunks_loses_the_answer(client: httpx.Client) -> None:
    """Negative control: if the same number of tokens is kept at the end of the prompt, answers are wrong.

    So the right answers above depend on the speculator's choice.
    """
    right = {"speculator": 0, "end only": 0}
    for seed in range(6):
        document = make_document(2000, seed=100 + seed)
        # One token of the text is left; the best line alone would be the answer.
        end_only = {"keep_rate": 0.0001, "granularity": "token", "protect_last": 200}
        options = {"speculator": {"keep_rate": 0.1}, "end only": end_only}
        for name, option in options.items():
            body = {**GREEDY, "messages": document.messages, "speculative_prefill": {**option, "reuse": "off"}}
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            right[name] += document.is_right(answer["choices"][0]["message"]["content"])
    assert right["speculator"] >= 5
    assert right["end only"] <= 2


def test_endpoints_agree(client: httpx.Client, document: DemoDocument) -> None:
    """The same option on chat, responses and messages keeps the same tokens and gives the same answer."""
    option = {"speculative_prefill": {"keep_rate": 0.15}}
    bodies = {
        "/v1/chat/completions": {"messages": document.messages, "max_tokens": 8},
        "/v1/responses": {"input": document.prompt, "max_output_tokens": 8},
        "/v1/messages": {"messages": document.messages, "max_tokens": 8},
    }
    kept = set()
    for path, body in bodies.items():
        response = client.post(path, json={"model": MODEL, "temperature": 0, **body, **option}).raise_for_status()
        assert document.expected in response.text
        kept.add((response.headers["x-skim-mode"], response.headers["x-skim-kept-tokens"]))
    assert len(kept) == 1
    assert next(iter(kept))[0] == "speculative"


def test_many_at_once(client: httpx.Client) -> None:
    """Concurrent dense and speculative requests, each with its own document, get their own answers."""
    documents = [make_document(1500 + 100 * i, seed=i) for i in range(8)]

    def ask(i: int) -> bool:
        option = {"keep_rate": 0.3} if i % 2 else False
        body = {**GREEDY, "messages": documents[i].messages, "speculative_prefill": option}
        answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        return documents[i].is_right(answer["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) >= 7


def test_the_explain_view_covers_the_answer(client: httpx.Client, document: DemoDocument) -> None:
    body = {**GREEDY, "messages": document.messages, "speculative_prefill": {"keep_rate": 0.1}}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status()
    view = client.get(f"/v1/requests/{answer.json()['id']}/selection").raise_for_status().json()
    assert view["prompt_tokens"] == document.prompt_tokens
    assert sum(end - start for start, end in view["kept_spans"]) == int(answer.headers["x-skim-kept-tokens"])
    assert client.get("/v1/requests/nobody/selection").status_code == 404


def test_a_conversation_extends_what_was_kept(openai: OpenAI) -> None:
    """Three questions, a tool turn and a question about its result: each turn reuses the kept prompt before it."""
    tokenizer = load_tokenizer(str(MODELS / "target"))
    [turns] = make_conversations(3, [3000], 1, seed=2, style="plain", tokens=lambda t: len(tokenizer(t).input_ids))
    messages: list[Any] = []
    before = 0

    def ask(*more: dict[str, Any]) -> str:
        nonlocal before
        messages.extend(more)
        raw = openai.chat.completions.with_raw_response.create(
            messages=messages, **GREEDY, extra_body={"speculative_prefill": {"keep_rate": 0.1}}
        )
        assert raw.headers["x-skim-mode"] == "speculative"
        # A tool turn may read its question again, after the late units.
        again = QUESTION_TOKENS if more[-1]["role"] == "tool" else 0
        assert before - again <= int(raw.headers["x-skim-reused-tokens"]) <= before
        before = int(raw.headers["x-skim-kept-tokens"])
        text = raw.parse().choices[0].message.content or ""
        messages.append({"role": "assistant", "content": text.strip()})
        view = httpx.get(f"{openai.base_url}requests/{raw.parse().id}/selection").json()
        assert view["reused_tokens"] == int(raw.headers["x-skim-reused-tokens"])
        return text

    for sample in turns:
        assert sample.quiz.score(ask({"role": "user", "content": sample.text})) == 1
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages[-1] = {"role": "assistant", "content": "", "tool_calls": [call]}
    ask({"role": "tool", "tool_call_id": "1", "content": "The price of the quiet clock is 7306."})
    assert "7306" in ask({"role": "user", "content": "Question: What is the price of the quiet clock?"})


def test_the_router_holds_no_weights(endpoint: str) -> None:
    routers = [p for p in psutil.process_iter(["name", "cmdline"]) if "ServeReplica:skim:router" in _title(p)]
    assert routers
    for process in routers:
        assert process.memory_info().rss < ROUTER_RSS_LIMIT
        assert not [m.path for m in process.memory_maps() if m.path.endswith(".safetensors")]


def _title(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or [process.info["name"] or ""])


def test_a_second_server_on_the_port_says_so(endpoint: str) -> None:
    port = endpoint.rsplit(":", 1)[1]
    command = [Path(sys.executable).with_name("skim"), "serve", "examples/demo.yaml", "--port", port]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_only_serves_grpc_of_the_replicas_is_reached_from_other_machines(demo_pair: Served) -> None:
    """GCS, raylet, metrics, agents, proxies and the draft channel listen on loopback."""
    open_to_all = Counter()
    for process in psutil.Process(demo_pair.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            listening = [c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            others = [ip for ip in listening if ip.removeprefix("::ffff:") not in ("127.0.0.1", "::1")]
            open_to_all.update({process.pid: len(others)} if others else {})
    assert set(open_to_all.values()) == {1}
    titles = [" ".join(psutil.Process(pid).cmdline()) for pid in open_to_all]
    assert all(title.startswith("ray::ServeReplica:skim:") for title in titles), titles
    assert len(titles) == 3


def test_metrics_count_what_was_sent(client: httpx.Client, document: DemoDocument) -> None:
    """With the names of vLLM: what clients see from the router, the rest from the target's engine."""

    def numbers() -> dict[str, float]:
        text = client.get("/metrics").raise_for_status().text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {name: sum(one.value for one in samples if one.name == name) for name in {one.name for one in samples}}

    before, sent = numbers(), []
    for option in (False, {"keep_rate": 0.2}):
        body = {**GREEDY, "messages": document.messages, "speculative_prefill": option}
        sent.append(client.post("/v1/chat/completions", json=body).raise_for_status())
    usages = [answer.json()["usage"] for answer in sent]
    kept = sum(int(answer.headers["x-skim-kept-tokens"]) for answer in sent)
    wanted = {
        "vllm:prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages),
        "vllm:prompt_tokens_by_source_total": kept,
        "vllm:generation_tokens_total": sum(usage["completion_tokens"] for usage in usages),
        "vllm:request_success_total": 2,
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:e2e_request_latency_seconds_count": 2,
        "skim_router_kept_tokens_total": kept,
    }
    assert wanted["vllm:prompt_tokens_total"] > 1.5 * kept
    now = before
    deadline = time.monotonic() + 60
    while {name: now[name] - before[name] for name in wanted} != wanted:
        assert time.monotonic() < deadline, {name: now[name] - before[name] for name in wanted}
        time.sleep(0.5)
        now = numbers()
    assert now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0
