"""`context_management`: old tool results and old thinking leave a long chat, on each endpoint with chats."""

import json
from itertools import pairwise
from types import SimpleNamespace

import httpx
import httpx2
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from transformers import AutoTokenizer

from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.prompt.context_edits import PLACEHOLDER
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.asking import CHAT_LIKE, events
from tests.unit.router.conftest import MODEL_NAME, MODELS, LocalPools
from tests.unit.router.prompt.test_contents import FOLDER

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, RESPONSES, MESSAGES = CHAT_LIKE
COUNT = "/v1/messages/count_tokens"
MAX_MODEL_LEN = 4096
CLEAR = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 0}}
THINKING = {"type": "clear_thinking_20251015"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app():
    """The app with a chat template that renders tools and all thinking. pools: what the requests reached."""
    from router.vllm_front.app import ServedModel, build_openai_app

    options = {"max_model_len": MAX_MODEL_LEN}
    pools = LocalPools(speculator=options, target=options)
    template = (
        (FOLDER / "qwen3.jinja").read_text().replace("loop.index0 > ns.last and (loop.last or reasoning)", "reasoning")
    )
    defaults = PrefillOptions(enabled=False)
    dispatcher = Dispatcher(pools, defaults, SpeculationOptions(), RouterConfig(), LocalMeter())
    options = {
        "dtype": "float32",
        "chat_template": template,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
    }
    folder = str(MODELS / "target")
    model = ServedModel(folder, "target", (MODEL_NAME,), MAX_MODEL_LEN, options)
    served = await build_openai_app(dispatcher, model)
    transport = httpx.ASGITransport(app=served, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        yield SimpleNamespace(client=client, pools=pools, served=served, tokenizer=tokenizer)


def result(number, words=60):
    """The text of a result, which no other has."""
    return " ".join(f"r{number}w{word}" for word in range(words))


def body(path, uses, end=None, **fields):
    """A conversation in which the model called tools. uses: of each turn, the (tool, result) of its parallel calls."""
    chat, at = [{"role": "user", "content": "Look."}], 0
    for turn in uses:
        calls = [(f"call_{at + i}", tool, {"path": f"p{at + i}"}, given) for i, (tool, given) in enumerate(turn)]
        at += len(turn)
        if path == CHAT:
            function = [
                {"id": id, "type": "function", "function": {"name": tool, "arguments": json.dumps(given)}}
                for id, tool, given, _ in calls
            ]
            chat.append({"role": "assistant", "content": "", "tool_calls": function})
            chat += [{"role": "tool", "tool_call_id": id, "content": told} for id, _, _, told in calls]
        elif path == RESPONSES:
            chat += [
                {"type": "function_call", "call_id": id, "name": tool, "arguments": json.dumps(given)}
                for id, tool, given, _ in calls
            ]
            chat += [{"type": "function_call_output", "call_id": id, "output": told} for id, _, _, told in calls]
        else:
            asked = [{"type": "tool_use", "id": id, "name": tool, "input": given} for id, tool, given, _ in calls]
            told = [{"type": "tool_result", "tool_use_id": id, "content": told} for id, _, _, told in calls]
            chat += [{"role": "assistant", "content": asked}, {"role": "user", "content": told}]
    if end is not None:
        chat.append({"role": "user", "content": end})
    names = {RESPONSES: ("input", "max_output_tokens"), COUNT: ("messages", None)}
    prompt, most = names.get(path, ("messages", "max_tokens"))
    return {"model": MODEL_NAME, prompt: chat, **({most: 4} if most else {}), **fields}


def single(count, **kwargs):
    """So many turns with one call of the tool `read` each."""
    return [[("read", result(number, **kwargs))] for number in range(count)]


async def ask(app, path, uses, edit, **fields):
    """The response, the text of the prompt that the target got, and which results it has."""
    edits = edit if isinstance(edit, list) else [edit]
    sent = body(path, uses, **fields, context_management={"edits": edits})
    response = await app.client.post(path, json=sent)
    assert response.status_code == 200, response.text
    prompt = app.tokenizer.decode(app.pools.generates[-1].prompt.token_ids)
    number = sum(len(turn) for turn in uses)
    return SimpleNamespace(response=response, prompt=prompt, has=[i for i in range(number) if f"r{i}w0 " in prompt])


def applied(response):
    """The edits in an answer, and in the last event of a stream that has some."""
    parts = events(response) or [response.json()]
    found = [
        part["context_management"] for part in (p.get("response", p) for p in parts) if "context_management" in part
    ]
    return found[-1]["applied_edits"] if found else []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CHAT_LIKE)
async def test_old_results_are_replaced_and_the_answer_says_so(app, path, stream):
    usage = {"stream_options": {"include_usage": True}} if stream and path == CHAT else {}
    await app.client.post(path, json=body(path, single(6)))
    whole = app.pools.generates[-1].prompt.context_length
    asked = await ask(app, path, single(6), CLEAR, stream=stream, **usage)
    assert asked.has == [3, 4, 5]
    assert asked.prompt.count(PLACEHOLDER) == 3
    assert all(f'"p{number}"' in asked.prompt for number in range(6))
    cleared = whole - app.pools.generates[-1].prompt.context_length
    assert cleared > 3 * 60
    edit = {"type": CLEAR["type"], "cleared_tool_uses": 3, "cleared_input_tokens": cleared}
    assert applied(asked.response) == [edit]


@pytest.mark.parametrize("path", CHAT_LIKE)
async def test_without_the_field_nothing_is_cleared_or_told(app, path):
    response = await app.client.post(path, json=body(path, single(6)))
    assert "context_management" not in response.json()
    assert PLACEHOLDER not in app.tokenizer.decode(app.pools.generates[-1].prompt.token_ids)


@pytest.mark.parametrize("path", CHAT_LIKE)
@pytest.mark.parametrize(
    ("wish", "has"),
    [
        ({"trigger": {"type": "tool_uses", "value": 6}}, [0, 1, 2, 3, 4, 5]),
        ({"trigger": {"type": "input_tokens", "value": 100_000}}, [0, 1, 2, 3, 4, 5]),
        ({"trigger": {"type": "input_tokens", "value": 100}, "keep": {"type": "tool_uses", "value": 1}}, [5]),
        ({"keep": {"type": "tool_uses", "value": 5}}, [1, 2, 3, 4, 5]),
        ({"keep": {"type": "tool_uses", "value": 0}}, [5]),  # which the model has not read
        ({"exclude_tools": ["read"]}, [0, 1, 2, 3, 4, 5]),
        ({"exclude_tools": ["other"]}, [3, 4, 5]),
        ({"clear_at_least": {"type": "input_tokens", "value": 100_000}}, [0, 1, 2, 3, 4, 5]),
        ({"clear_at_least": None, "exclude_tools": None, "clear_tool_inputs": None}, [3, 4, 5]),
    ],
)
async def test_the_edit_says_what_is_cleared(app, path, wish, has):
    asked = await ask(app, path, single(6), {**CLEAR, **wish})
    assert asked.has == has
    assert bool(applied(asked.response)) == (len(has) < 6)


@pytest.mark.parametrize("path", CHAT_LIKE)
@pytest.mark.parametrize(("wish", "left"), [(True, 3), (False, 6), (["read"], 3), (["other"], 6)])
async def test_inputs_of_cleared_uses_are_cleared_too(app, path, wish, left):
    asked = await ask(app, path, single(6), {**CLEAR, "clear_tool_inputs": wish})
    assert asked.has == [3, 4, 5]
    assert [i for i in range(6) if f'"p{i}"' in asked.prompt] == list(range(6 - left, 6))
    assert asked.prompt.count('"arguments": {}') == 6 - left


@pytest.mark.parametrize("path", CHAT_LIKE)
async def test_parallel_uses_count_one_by_one(app, path):
    turns = [[("read", result(0)), ("list", result(1))], [("read", result(2)), ("list", result(3))]]
    asked = await ask(app, path, turns, {**CLEAR, "keep": {"type": "tool_uses", "value": 3}})
    assert asked.has == [1, 2, 3]
    asked = await ask(app, path, turns, {**CLEAR, "keep": {"type": "tool_uses", "value": 1}})
    assert asked.has == [2, 3]  # both are new to the model
    asked = await ask(app, path, turns, {**CLEAR, "keep": {"type": "tool_uses", "value": 0}, "exclude_tools": ["list"]})
    assert asked.has == [1, 2, 3]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_result_of_several_parts_is_cleared_as_a_whole(app, path):
    parts = [{"type": "text", "text": result(0)}, {"type": "text", "text": "second part " * 20}]
    asked = await ask(app, path, [[("read", parts)], *single(5)[1:]], CLEAR)
    assert "second part" not in asked.prompt
    assert asked.has == [2, 3, 4]


async def test_an_image_in_a_result_is_refused_as_ever(app):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    sent = body(MESSAGES, [[("read", [image])], *single(5)[1:]], context_management={"edits": [CLEAR]})
    assert (await app.client.post(MESSAGES, json=sent)).status_code == 400


@pytest.mark.parametrize("path", CHAT_LIKE)
@pytest.mark.parametrize("trigger", [{"type": "input_tokens", "value": 1000}, {"type": "tool_uses", "value": 5}])
async def test_the_prompts_of_later_turns_begin_alike_until_the_next_clearing(app, path, trigger):
    least = {"type": "input_tokens", "value": 300}
    prompts = [
        (await ask(app, path, single(count, words=40), {**CLEAR, "trigger": trigger, "clear_at_least": least})).prompt
        for count in range(1, 16)
    ]
    tail = "<|im_start|>assistant\n"  # what asks for the answer
    clearings = 0
    for before, after in pairwise(prompts):
        cleared = after.count(PLACEHOLDER) - before.count(PLACEHOLDER)
        assert cleared == 0 or cleared > 1
        clearings += cleared > 0
        assert after.startswith(before[: before.rindex(tail)]) == (cleared == 0)
    assert 2 <= clearings <= 7  # with the last three kept, an edit of the last turn alone clears 10 or 11 times


@pytest.mark.parametrize("path", CHAT_LIKE)
async def test_a_conversation_that_is_too_long_becomes_short_enough(app, path):
    uses = single(12, words=100)
    sent = body(path, uses)
    assert (await app.client.post(path, json=sent)).status_code == 400
    assert (await ask(app, path, uses, CLEAR)).has == [9, 10, 11]


async def test_a_result_with_keep_always_stays(app):
    sent = body(CHAT, single(6), context_management={"edits": [CLEAR]})
    sent["messages"][2]["keep"] = "always"
    assert (await app.client.post(CHAT, json=sent)).status_code == 200
    prompt = app.tokenizer.decode(app.pools.generates[-1].prompt.token_ids)
    assert [i for i in range(6) if f"r{i}w0 " in prompt] == [0, 3, 4, 5]


async def test_the_tools_that_a_request_protects_stay(app):
    wish = {"speculative_prefill": {"enabled": False, "protect_tools": ["read"]}}
    assert (await ask(app, CHAT, single(6), CLEAR, **wish)).has == [*range(6)]


async def test_a_short_result_stays(app):
    turns = [[("read", "r0w0 ok")], *single(6)[1:]]
    assert (await ask(app, CHAT, turns, CLEAR)).has == [0, 3, 4, 5]


@pytest.mark.parametrize(("keep", "has"), [(None, [2]), (2, [1, 2]), ("all", [0, 1, 2])])
async def test_old_thinking_is_cleared(app, keep, has):
    edit = {**THINKING, **({} if keep is None else {"keep": keep})}
    if isinstance(keep, int):
        edit["keep"] = {"type": "thinking_turns", "value": keep}
    chat = []
    for turn in range(3):
        thought = {"type": "thinking", "thinking": f"thought {turn} " * 20, "signature": "s"}
        chat += [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [thought]}]
        use = {"type": "tool_use", "id": f"c{turn}", "name": "read", "input": {}}
        chat[-1]["content"].append(use)
        chat.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{turn}", "content": "ok"}]})
    sent = {"model": MODEL_NAME, "messages": chat, "max_tokens": 4}
    response = await app.client.post(MESSAGES, json={**sent, "context_management": {"edits": [edit]}})
    prompt = app.tokenizer.decode(app.pools.generates[-1].prompt.token_ids)
    assert [turn for turn in range(3) if f"thought {turn}" in prompt] == has
    told = applied(response)
    assert [one["cleared_thinking_turns"] for one in told] == ([3 - len(has)] if len(has) < 3 else [])
    assert all(one["cleared_input_tokens"] > 20 for one in told)


async def test_tokens_are_counted_before_and_after(app):
    before = (await app.client.post(COUNT, json=body(COUNT, single(6)))).json()
    sent = body(COUNT, single(6), context_management={"edits": [CLEAR]})
    told = (await app.client.post(COUNT, json=sent)).json()
    assert told["context_management"]["original_input_tokens"] == before["input_tokens"]
    assert 0 < told["input_tokens"] < before["input_tokens"] - 3 * 60
    sent["messages"][2]["content"][0]["keep"] = "always"
    kept = (await app.client.post(COUNT, json=sent)).json()
    assert kept["input_tokens"] > told["input_tokens"] + 60


async def test_anthropic_s_client_reads_the_edits(app):
    transport = httpx2.ASGITransport(app=app.served)
    options = {"api_key": "none", "max_retries": 0, "http_client": httpx2.AsyncClient(transport=transport)}
    messages = AsyncAnthropic(base_url="http://router", **options).beta.messages
    sent = {**body(MESSAGES, single(6)), "context_management": {"edits": [CLEAR]}}
    message = await messages.create(**sent, betas=["context-management-2025-06-27"])
    async with messages.stream(**sent, betas=["context-management-2025-06-27"]) as stream:
        streamed = await stream.get_final_message()
    for found in (message, streamed):
        [edit] = found.context_management.applied_edits
        assert (edit.type, edit.cleared_tool_uses) == (CLEAR["type"], 3)
        assert edit.cleared_input_tokens > 3 * 60


async def test_a_selection_tells_its_own_edit_beside(app):
    keep = {"speculative_prefill": {"enabled": "always", "min_prompt_tokens": 1, "keep_rate": 0.3}}
    told = applied((await ask(app, MESSAGES, single(6), CLEAR, **keep)).response)
    assert [edit["type"] for edit in told] == [CLEAR["type"], "skim_selection"]


@pytest.mark.parametrize("path", [*CHAT_LIKE, COUNT])
async def test_a_wrong_object_is_refused_in_one_sentence(app, path):
    response = await app.client.post(path, json=body(path, [], context_management={"edits": [{"type": "compact_x"}]}))
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith("context_management.edits.0: its type must be clear_tool_uses_20250919 or clear")


async def test_a_raw_prompt_has_no_results(app):
    sent = {"model": MODEL_NAME, "prompt": "x", "context_management": {"edits": [CLEAR]}}
    response = await app.client.post("/v1/completions", json=sent)
    assert response.status_code == 400
    assert "context_management has no effect" in response.json()["error"]["message"]


async def test_a_selection_alone_takes_no_edits(app):
    sent = {"messages": body(CHAT, single(6), end="Which?")["messages"], "context_management": {"edits": [CLEAR]}}
    response = await app.client.post("/v1/select", json=sent)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("unknown field context_management")
