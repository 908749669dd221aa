"""`POST /v1/select` on the served demo pair and on a speculator without a target, and the MCP server before it."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from mcp import Client, StdioServerParameters

from tests.e2e.conftest import ROOT, SKIM, Served, serving

LINES = [f"{hour:02}:00 INFO order {1000 + hour} was packed and sent" for hour in range(24)]
LINES[15] = "15:00 ERROR the payment gateway refused the payment"
QUESTION = "Which component refused the payment?"
BODY = {"text": "\n".join(LINES), "question": QUESTION, "speculative_prefill": {"keep_rate": 0.2}}
LEXICAL = {"text": "\n".join(LINES), "question": QUESTION}


def check(selected: dict) -> None:
    """The text is the client's lines with their numbers, and gaps that count what is missing."""
    [told] = selected["data"]
    following = 1
    for line in told["text"].splitlines():
        if gap := re.fullmatch(r"\.\.\. (\d+) lines? left out \.\.\.", line):
            following += int(gap[1])
            continue
        number, _, kept = line.partition(": ")
        assert int(number) == following
        assert all(part in LINES[following - 1] for part in kept.split("..."))
        following += 1
    assert following == len(LINES) + 1
    assert 0 < told["usage"]["kept_tokens"] < told["usage"]["prompt_tokens"]


def test_the_demo_pair_selects(client: httpx.Client) -> None:
    answer = client.post("/v1/select", json=BODY)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-skim-reason"] == "selection-only"
    check(answer.json())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A speculator pool, and no target."""
    settings = yaml.safe_load((ROOT / "examples" / "select-only.yaml").read_text())
    settings["speculator"] = {
        "model": str(ROOT / "demo_models" / "speculator"), "engine": "mock", "cpus_per_replica": 0.1
    }  # fmt: skip
    settings["selection"] = {"selector": "lexical", "keep_rate": 0.2}
    with serving(settings, tmp_path_factory.mktemp("alone")) as served:
        yield served


def test_a_speculator_alone_selects_and_answers_nothing(alone: Served) -> None:
    with httpx.Client(base_url=alone.url, timeout=120) as client:
        selected = client.post("/v1/select", json=LEXICAL).json()
        check(selected)
        assert LINES[15] in selected["data"][0]["text"]
        assert client.get("/health").status_code == 200
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["skim-demo"]
        assert 'skim_router_pool_replicas{pool="speculator"' in client.get("/metrics").text
        message = [{"role": "user", "content": "Hello"}]
        for path, body in {
            "chat/completions": {"messages": message},
            "completions": {"prompt": "Hello"},
            "responses": {"input": "Hello"},
            "messages": {"messages": message, "max_tokens": 8},
        }.items():
            for stream in (False, True):
                refused = client.post(f"/v1/{path}", json={"model": "skim-demo", "stream": stream, **body})
                assert (refused.status_code, path) == (404, path)
                told = "no target runs here, so nothing is answered; ask /v1/select"
                assert refused.json()["error"]["message"] == told
    log = alone.log.read_text()
    assert "speculator, router" in log
    assert "/v1/select" in log


async def test_an_agent_asks_the_tool(alone: Served, tmp_path: Path) -> None:
    (tmp_path / "orders.log").write_text("\n".join(LINES))
    words = ["mcp", "--url", alone.url, "--root", str(tmp_path)]
    async with Client(StdioServerParameters(command=str(SKIM), args=words, env=dict(os.environ))) as agent:
        [tool] = (await agent.list_tools()).tools
        assert (tool.name, tool.input_schema["required"]) == ("skim", ["question"])

        async def ask(**arguments: object) -> tuple[bool, str]:
            result = await agent.call_tool("skim", {"question": QUESTION, **arguments})
            [part] = result.content
            return bool(result.is_error), part.text.removeprefix("Error executing tool skim: ")  # the package's words

        failed, of_file = await ask(path="orders.log")
        assert not failed
        assert f"16: {LINES[15]}" in of_file
        assert re.search(r"\.\.\. \d+ lines left out \.\.\.", of_file)
        assert (False, of_file) == await ask(text="\n".join(LINES))
        failed, shorter = await ask(path="orders.log", max_tokens=40)
        assert (failed, len(shorter.splitlines()) < len(of_file.splitlines())) == (False, True)
        for arguments, told in (
            ({}, "give path or text, not both and not none"),
            ({"path": "orders.log", "text": "text"}, "give path or text, not both and not none"),
            ({"path": "../secret"}, "path must be in the folder that this server may read"),
            ({"path": "nothing"}, "path names no file"),
            ({"text": " "}, "text is missing or blank; give it some text"),
        ):
            assert await ask(**arguments) == (True, told)


def test_the_body_of_the_documentation_is_taken(alone: Served) -> None:
    body = json.loads(re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "select.md").read_text(), re.DOTALL)[0])
    answer = httpx.post(f"{alone.url}/v1/select", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
