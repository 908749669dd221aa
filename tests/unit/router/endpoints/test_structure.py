"""What a request with tools keeps, and the fields that say how much of a message is kept, on all four endpoints."""

import json
import math
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from demo_models.documents import make_document
from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import MODEL_NAME, MODELS, SELECT_TIMEOUT_S, LocalPools
from tests.unit.router.prompt.test_contents import FOLDER

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_MODEL_LEN = 16384
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS = "/v1/completions"
QUESTION = "Which of these files still names the golden kettle?"
NAMES = [f"tool_{number}" for number in range(20)]
PARAMETERS = {
    name: {"type": "object", "properties": {f"path_{name}": {"type": "string", "description": "A path."}}}
    for name in NAMES
}
CALLS = [(f"call_{i}", NAMES[i], {"path": f"src/{i}.py"}) for i in range(3)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tools_app():
    """The app with a chat template that renders tools. pools: what the requests reached."""
    from router.vllm_front.app import ServedModel, build_openai_app

    target = {"max_model_len": MAX_MODEL_LEN, "cache_tokens": 100_000}
    pools = LocalPools(speculator={"max_model_len": MAX_MODEL_LEN}, target=target)
    defaults = PrefillOptions(enabled="always", min_prompt_tokens=256, selector="speculator")
    dispatcher = Dispatcher(
        pools, defaults, SpeculationOptions(), RouterConfig(select_timeout_s=SELECT_TIMEOUT_S), LocalMeter()
    )
    options = {
        "dtype": "float32",
        "chat_template": str(FOLDER / "qwen2.jinja"),
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "enable_prompt_tokens_details": True,
    }
    folder = str(MODELS / "target")
    app = await build_openai_app(dispatcher, ServedModel(folder, "target", (MODEL_NAME,), MAX_MODEL_LEN, options))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        yield SimpleNamespace(client=client, pools=pools, tokenizer=tokenizer, dispatcher=dispatcher)


@pytest.fixture(scope="module")
def results():
    """The long results of the three calls."""
    return [make_document(900, seed=seed).document for seed in (1, 2, 3)]


def tool_body(path, results, **keep):
    """A request with 20 tools, three calls and their results. keep: fields of the second result."""
    if path == CHAT:
        messages = [{"role": "user", "content": "Look into the files."}]
        for (call, name, arguments), result in zip(CALLS, results, strict=True):
            function = {"name": name, "arguments": json.dumps(arguments)}
            calls = [{"id": call, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": call, "content": result})
        messages[4] |= keep
        tools = [{"type": "function", "function": {"name": n, "parameters": PARAMETERS[n]}} for n in NAMES]
        body = {"messages": [*messages, {"role": "user", "content": QUESTION}], "max_tokens": 4}
    elif path == RESPONSES:
        items = [{"role": "user", "content": "Look into the files."}]
        for (call, name, arguments), result in zip(CALLS, results, strict=True):
            call_item = {"type": "function_call", "call_id": call, "name": name, "arguments": json.dumps(arguments)}
            items += [call_item, {"type": "function_call_output", "call_id": call, "output": result}]
        items[4] |= keep
        tools = [{"type": "function", "name": n, "parameters": PARAMETERS[n]} for n in NAMES]
        body = {"input": [*items, {"role": "user", "content": QUESTION}], "max_output_tokens": 4}
    else:
        messages = [{"role": "user", "content": "Look into the files."}]
        for (call, name, arguments), result in zip(CALLS, results, strict=True):
            use = {"type": "tool_use", "id": call, "name": name, "input": arguments}
            messages.append({"role": "assistant", "content": [use]})
            block = {"type": "tool_result", "tool_use_id": call, "content": result}
            messages.append({"role": "user", "content": [block]})
        messages[4]["content"][0] |= keep
        messages[-1]["content"].append({"type": "text", "text": QUESTION})
        tools = [{"name": n, "input_schema": PARAMETERS[n]} for n in NAMES]
        body = {"messages": messages, "max_tokens": 4}
    return {"model": MODEL_NAME, "tools": tools, **body}


async def ask(app, path, body, **options):
    """The response, the selection's request, and the texts of the runs of kept tokens."""
    body = {**body, "speculative_prefill": {"keep_rate": 0.05, "reuse": "off", **options}}
    response = await app.client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-skim-mode"] == "speculative", response.headers["x-skim-reason"]
    kept = app.pools.generates[-1].prompt
    breaks = np.flatnonzero(np.diff(kept.positions) != 1) + 1
    runs = [app.tokenizer.decode(run) for run in np.split(kept.token_ids, breaks)]
    return SimpleNamespace(response=response, select=app.pools.selects[-1], kept=kept, runs=runs)


def protected_text(app, asked):
    """The text that the selection must keep."""
    ids, spans = asked.select.token_ids, asked.select.layout.protected.tolist()
    return "\n".join(app.tokenizer.decode(ids[start:end]) for start, end in spans)


def assert_structure_is_kept(asked, prompt):
    """Each schema, call and the question stands in one run of kept tokens, and the results are compressed."""
    schemas = [line for line in prompt.splitlines() if line.startswith("{") and '"parameters"' in line]
    calls = [line for line in prompt.splitlines() if line.startswith("{") and '"arguments"' in line]
    assert (len(schemas), len(calls)) == (20, 3)
    assert all(json.loads(line) for line in [*schemas, *calls])
    for line in [*schemas, *calls, QUESTION]:
        assert any(line in run for run in asked.runs), line


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_the_frame_of_a_window_has_no_tools(tools_app, results, path):
    """They are protected in the prompt. In the frame, every window would read them again."""
    frames = []
    with_tools = tool_body(path, results)
    for body in (with_tools, {name: value for name, value in with_tools.items() if name != "tools"}):
        frame = (await ask(tools_app, path, body)).select.layout.frame
        frames.append([tools_app.tokenizer.decode(part) for part in (frame.head, frame.joint, frame.tail)])
    assert frames[0] == frames[1]
    assert NAMES[0] not in frames[0][0]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_schemas_calls_and_question_are_kept(tools_app, results, path):
    asked = await ask(tools_app, path, tool_body(path, results))
    prompt = tools_app.tokenizer.decode(asked.select.token_ids)
    assert asked.select.token_ids.size > 6000
    assert_structure_is_kept(asked, prompt)
    # All else is compressed: besides what is protected, the selection keeps 5 % of the prompt's chunks.
    size, spans = asked.select.token_ids.size, asked.select.layout.protected
    protected = (spans[:, 1] - spans[:, 0]).sum()
    assert 0.5 * size < protected < 0.7 * size
    assert asked.kept.token_ids.size <= protected + math.ceil(0.05 * math.ceil(size / 32)) * 32 + 32
    # Negative control: without its protection, the same selection tears the structure.
    raw = {"model": MODEL_NAME, "prompt": asked.select.token_ids.tolist(), "max_tokens": 4}
    torn = await ask(tools_app, COMPLETIONS, raw)
    with pytest.raises(AssertionError):
        assert_structure_is_kept(torn, prompt)


@pytest.mark.parametrize("keep", ["always", 0.4, "auto"])
async def test_the_keep_of_a_message_is_the_same_on_every_endpoint(tools_app, results, keep):
    """A tool result on its own: `keep` is taken out of the body, and the prompt is that without it."""
    outcomes = []
    for path in (CHAT, RESPONSES, MESSAGES):
        plain = await ask(tools_app, path, tool_body(path, results))
        asked = await ask(tools_app, path, tool_body(path, results, keep=keep))
        assert asked.select.token_ids.tolist() == plain.select.token_ids.tolist()
        assert (asked.select.layout.rates.tolist() == [np.float32(0.4)]) == (keep == 0.4)
        text = "".join(asked.runs)
        assert (results[1] in text) == (keep == "always")
        assert results[0] not in text
        if keep == "auto":
            assert asked.select.layout.protected.tolist() == plain.select.layout.protected.tolist()
        outcomes.append(asked.kept.positions.size - plain.kept.positions.size)
    assert len(set(outcomes)) == 1 or path == RESPONSES


def parts_body(path, parts):
    """A user message of several parts, as each endpoint writes them."""
    kind = "input_text" if path == RESPONSES else "text"
    content = [{"type": kind, **part} for part in parts]
    field, limit = ("input", "max_output_tokens") if path == RESPONSES else ("messages", "max_tokens")
    return {"model": MODEL_NAME, field: [{"role": "user", "content": content}], limit: 4}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_each_content_part_has_its_own_keep(tools_app, results, path):
    first, second, third = results
    parts = [{"text": first, "keep": "always"}, {"text": second, "keep": 0.5}, {"text": third}, {"text": QUESTION}]
    asked = await ask(tools_app, path, parts_body(path, parts))
    text = "".join(asked.runs)
    assert first in text
    assert QUESTION in text
    assert third not in text
    [[start, end]] = asked.select.layout.rate_spans
    region = tools_app.tokenizer.decode(asked.select.token_ids[start:end])
    assert region.strip() in second
    assert len(region) > 0.95 * len(second)
    kept = ((asked.kept.positions >= start) & (asked.kept.positions < end)).sum()
    assert abs(kept - 0.5 * (end - start)) <= 33
    # The question of a question part is known, also where a long part stands after it.
    asked = await ask(tools_app, path, parts_body(path, [{"text": QUESTION}, {"text": second, "keep": 0.5}]))
    assert QUESTION in tools_app.tokenizer.decode(asked.select.token_ids[slice(*asked.select.layout.questions[-1])])


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_policies_by_role_and_tool(tools_app, results, path):
    body = tool_body(path, results)
    rates = await ask(tools_app, path, body, keep_by_role={"tool": 0.3}, protect_tools=["tool_1"])
    text = "".join(rates.runs)
    assert results[1] in text
    assert rates.select.layout.rates.tolist() == [np.float32(0.3)] * 2
    spans, positions = rates.select.layout.rate_spans, rates.kept.positions
    sizes = [((positions >= a) & (positions < b)).sum() for a, b in spans]
    for (start, end), size in zip(spans, sizes, strict=True):
        assert abs(size - 0.3 * (end - start)) <= 33
    always = {"keep_by_role": {"tool": "always"}}
    body["speculative_prefill"] = always
    response = await tools_app.client.post(path, json=body)
    assert response.headers["x-skim-reason"] == "all-protected"


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_system_prompt_may_ask_to_be_kept_and_not_to_be_compressed(tools_app, results, role):
    parts = [{"type": "text", "text": text} for text in results[:2]]
    asked = {"role": "user", "content": [{"type": "text", "text": results[2]}, {"type": "text", "text": QUESTION}]}

    def body(keep):
        return {
            "model": MODEL_NAME,
            "max_tokens": 4,
            "messages": [{"role": role, "content": [parts[0], parts[1] | {"keep": keep}]}, asked],
        }

    kept = "".join((await ask(tools_app, CHAT, body("always"))).runs)
    assert results[0] in kept
    assert results[1] in kept
    assert results[2] not in kept
    refused = await tools_app.client.post(CHAT, json=body(0.5))
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "messages.0.content.1.keep must be always: the system prompt is never compressed"
    )


async def test_short_messages_are_kept(tools_app, results):
    messages = [{"role": "user", "content": results[0]}, {"role": "assistant", "content": "It costs 4821."}]
    messages += [{"role": "user", "content": "And in euros, please?"}, {"role": "assistant", "content": results[1]}]
    body = {"model": MODEL_NAME, "messages": [*messages, {"role": "user", "content": QUESTION}], "max_tokens": 4}
    kept = await ask(tools_app, CHAT, body)
    dropped = await ask(tools_app, CHAT, body, keep_short=0)
    assert "And in euros, please?" in "".join(kept.runs)
    protected = [protected_text(tools_app, asked) for asked in (kept, dropped)]
    assert ["And in euros, please?" in text for text in protected] == [True, False]


def one(role="user", **fields):
    """A list of one message."""
    return [{"role": role, **fields}]


TEXT = {"type": "text", "text": "x"}
INPUT_TEXT = {"type": "input_text", "text": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}, "keep": 0.5}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}, "keep": 0.5}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "keep": 0.5}
ROLES = "speculative_prefill.keep_by_role"


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        (CHAT, "messages.0.keep", {"messages": one(content="x", keep=2)}),
        (CHAT, "messages.0.keep", {"messages": one(content="x", keep="some")}),
        (CHAT, "messages.0.content.1.keep", {"messages": one(content=[TEXT, IMAGE])}),
        (MESSAGES, "messages.0.content.0.keep", {"messages": one("assistant", content=[USE])}),
        (MESSAGES, "system.0.keep", {"system": [TEXT | {"keep": True}], "messages": one(content="x")}),
        (CHAT, "messages.0.content.1.keep", {"messages": one("system", content=[TEXT, TEXT | {"keep": 0.5}])}),
        (CHAT, "messages.0.keep", {"messages": one("developer", content="x", keep="auto")}),
        (MESSAGES, "system.1.keep", {"system": [TEXT, TEXT | {"keep": 0.5}], "messages": one(content="x")}),
        (RESPONSES, "input.0.content.0.keep", {"input": one("system", content=[INPUT_TEXT | {"keep": 1}])}),
        (RESPONSES, "input.0.keep", {"input": [CALL]}),
        (RESPONSES, "input.0.content.0.keep", {"input": one(content=[INPUT_TEXT | {"keep": 0}])}),
        (CHAT, f"{ROLES}.judge", {"speculative_prefill": {"keep_by_role": {"judge": 0.5}}}),
        (CHAT, f"{ROLES}.tool", {"speculative_prefill": {"keep_by_role": {"tool": 1.5}}}),
        (CHAT, "speculative_prefill.protect_tools", {"speculative_prefill": {"protect_tools": "Read"}}),
        (CHAT, "speculative_prefill.keep_short", {"speculative_prefill": {"keep_short": -1}}),
    ],
)
async def test_a_wrong_keep_is_refused_by_its_name(tools_app, path, name, body):
    asked = {CHAT: {"messages": [{"role": "user", "content": "x"}]}, COMPLETIONS: {"prompt": "x"}}.get(path, {})
    limit = {RESPONSES: "max_output_tokens"}.get(path, "max_tokens")
    sent = len(tools_app.pools.generates)
    response = await tools_app.client.post(path, json={"model": MODEL_NAME, limit: 4, **asked, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["message"].startswith(f"{name} ")
    assert len(tools_app.pools.generates) == sent


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_the_keep_field_reaches_no_model(tools_app, results, path, monkeypatch):
    """A dense request with a `keep` has the prompt of one without."""
    for keep in ({}, {"keep": 0.5}):
        body = tool_body(path, results, **keep) | {"speculative_prefill": False}
        response = await tools_app.client.post(path, json=body)
        assert response.status_code == 200
        assert response.headers["x-skim-reason"] == "disabled"
    plain, marked = tools_app.pools.generates[-2:]
    assert plain.prompt.token_ids.tolist() == marked.prompt.token_ids.tolist()
    # Negative control: if the marks are not removed, the prompt has them.
    monkeypatch.setattr("router.vllm_front.renderer.without_marks", lambda messages, _: list(messages))
    refused = await tools_app.client.post(path, json=tool_body(path, results, keep=0.5))
    assert refused.status_code == 400
    assert "keep has no effect with this model" in refused.json()["error"]["message"]


SYSTEM = {"system": "auto"}


def system_body(path, document):
    """A document in the system's message, 20 tools, and a short question."""
    tools = tool_body(path, ["a", "b", "c"])["tools"]
    asked = {"role": "user", "content": QUESTION}
    if path == CHAT:
        body = {"messages": [{"role": "developer", "content": document}, asked], "max_tokens": 4}
    elif path == RESPONSES:
        body = {"instructions": document, "input": [asked], "max_output_tokens": 4}
    else:
        body = {"system": document, "messages": [asked], "max_tokens": 4}
    return {"model": MODEL_NAME, "tools": tools, **body}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_a_document_in_the_system_message_is_selected_from_by_choice(tools_app, results, path):
    """As it is chosen; without the choice it is kept, and the reason names the option."""
    document = "\n".join(results)
    body = system_body(path, document)
    asked = await ask(tools_app, path, body, keep_by_role=SYSTEM)
    size, kept = asked.select.token_ids.size, asked.kept.token_ids.size
    protected = int(np.diff(asked.select.layout.protected, axis=1).sum())
    assert kept <= protected + 0.05 * (size - protected) + 64 < size - 2000
    schemas = [
        line for line in tools_app.tokenizer.decode(asked.select.token_ids).splitlines() if line.startswith('{"type"')
    ]
    assert len(schemas) == 20
    for line in [*schemas, QUESTION]:
        assert any(line in run for run in asked.runs), line
    for by_role in ({}, {"system": "always"}):
        body["speculative_prefill"] = {"keep_rate": 0.05, "keep_by_role": by_role}
        response = await tools_app.client.post(path, json=body)
        assert response.headers["x-skim-mode"] == "dense"
        assert response.headers["x-skim-reason"] == "all-protected;option=keep_by_role.system"


async def test_the_reason_names_no_option_that_would_not_help(tools_app, results):
    body = tool_body(CHAT, results) | {"speculative_prefill": {"keep_by_role": {"tool": "always"}}}
    response = await tools_app.client.post(CHAT, json=body)
    assert response.headers["x-skim-reason"] == "all-protected"


async def test_usage_has_the_tokens_that_were_written_to_the_cache(tools_app, results):
    """As stock: a number, also if it is 0."""
    messages = [{"role": "user", "content": "Of the cache. " + results[0]}]
    body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 2, "speculative_prefill": False}
    first, second = [(await tools_app.client.post(CHAT, json=body)).json()["usage"] for _ in range(2)]
    details = first["prompt_tokens_details"]
    assert details["cached_tokens"] <= 64  # the template's beginning
    assert details["created_cache_tokens"] > first["prompt_tokens"] - 64 - 16
    assert second["prompt_tokens_details"]["created_cache_tokens"] in (0, 16)  # the last token is computed again
    usage = (await tools_app.client.post(MESSAGES, json=body)).json()["usage"]
    assert (usage["cache_creation_input_tokens"] in (0, 16), usage["output_tokens"]) == (True, 2)
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[part] for part in parts) == first["prompt_tokens"]
