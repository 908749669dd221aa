"""A real model by its name on a hub, from an empty cache to answers over HTTP; then again without the hub.

SmolLM2 is both speculator and target.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import Served, skim_serve
from tests.reference.hub_server import Hub, hub_server
from tests.reference.real_documents import CODE, KEEPER, RealDocument

pytestmark = pytest.mark.nightly

MODEL = "demo/smollm2"
# SmolLM2's template, which does not render tools, with tools.
TEMPLATE = """\
<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face
{%- if tools %}. You may call these tools: {{ tools | tojson }}{% endif %}<|im_end|>
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOL = {
    "type": "function",
    "function": {
        "name": "open_archive",
        "description": "Opens the archive.",
        "parameters": {
            "type": "object",
            "properties": {"access_code": {"type": "integer", "minimum": 0, "maximum": 9999}},
            "required": ["access_code"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def hub(smollm2: Path) -> Iterator[Hub]:
    with hub_server(smollm2=smollm2) as hub:
        yield hub


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hub's cache, empty at first."""
    return tmp_path_factory.mktemp("hub")


def serve(home: Path, **environment: str) -> Served:
    """`skim serve` of the pair, in float32 because not every CPU computes in bfloat16."""
    pool: dict[str, Any] = {
        "model": MODEL,
        "cpus_per_replica": 0.5,
        "engine_options": {"dtype": "float32", "enforce_eager": True, "max_model_len": 2048},
        "env": {"VLLM_CPU_KVCACHE_SPACE": 1},
    }
    template, config = home / "template.jinja", home / "pair.yaml"
    template.write_text(TEMPLATE)
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "chat_template": str(template)}
    router = {"cpus": 0.5, "speculative_prefill": "always", "min_prompt_tokens": 1024}
    target = {**pool, "engine_options": {**pool["engine_options"], **tools}}
    settings = {"speculator": pool, "target": target, "router": router, "selection": {"selector": "speculator"}}
    config.write_text(yaml.safe_dump(settings))
    served = skim_serve(config, home, HF_HOME=str(home), **environment)
    served.await_ready()
    return served


def ask(served: Served, document: RealDocument, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": document.messages, "max_tokens": 24, "temperature": 0, **fields}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=120).raise_for_status()


@pytest.fixture(scope="module")
def served(hub: Hub, home: Path) -> Iterator[Served]:
    served = serve(home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    yield served
    served.stop()


@pytest.mark.parametrize("document", [CODE, KEEPER], ids=["code", "keeper"])
def test_a_model_by_name_answers(served: Served, document: RealDocument) -> None:
    """The documents begin alike: without salts, the later prompt would also keep what is cached of the earlier one."""
    answer = ask(served, document, speculative_prefill={"keep_rate": 0.19}, cache_salt=document.answer)
    assert answer.headers["x-skim-mode"] == "speculative"
    assert int(answer.headers["x-skim-kept-tokens"]) < 0.25 * answer.json()["usage"]["prompt_tokens"]
    assert document.answer in answer.json()["choices"][0]["message"]["content"]


def test_clients_see_the_name_and_no_path(served: Served, home: Path) -> None:
    models = httpx.get(f"{served.url}/v1/models")
    [card] = models.json()["data"]
    assert (card["id"], card["root"]) == (MODEL, MODEL)
    assert str(home) not in models.text


def test_the_weights_were_downloaded_once(served: Served, hub: Hub) -> None:
    assert [name for _, name, _ in hub.downloads].count("model.safetensors") == 1


def test_a_tool_call_from_kept_text(served: Served) -> None:
    choice = {"type": "function", "function": {"name": "open_archive"}}
    fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 48, "speculative_prefill": {"keep_rate": 0.2}}
    answer = ask(served, CODE, **fields)
    assert answer.headers["x-skim-mode"] == "speculative"
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "open_archive"
    assert json.loads(call["function"]["arguments"]) == {"access_code": int(CODE.answer)}


def test_it_starts_again_without_the_hub(served: Served, home: Path) -> None:
    expected = ask(served, CODE, speculative_prefill={"keep_rate": 0.2}).json()["choices"][0]["message"]
    served.stop()
    offline = serve(home, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    try:
        answer = ask(offline, CODE, speculative_prefill={"keep_rate": 0.2}).json()["choices"][0]["message"]
    finally:
        offline.stop()
    assert answer["content"] == expected["content"]
