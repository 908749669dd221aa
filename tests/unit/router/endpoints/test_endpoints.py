"""vLLM's HTTP app with mock pools: the option has the same effect on every endpoint, with and without streaming."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from benchmarks.mock_engines.speculator import MockSpeculator
from router.http.middleware import SkimMiddleware
from router.options.headers import TIMING_PARTS, TOTAL
from skim_common.models.info import check_pair
from speculator_service.translation import translated, translation_for
from tests.reference.tokenizers_by_kind import model_without_weights
from tests.unit.router.asking import ENDPOINTS, KEEP, ask, events, request_body
from tests.unit.router.conftest import MODEL_NAME, MODELS

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKENIZER = AutoTokenizer.from_pretrained(MODELS / "target")


async def test_a_speculator_with_another_tokenizer(client, use_pools, document, tmp_path):
    """Spans, keep rate, usage and headers count the target's tokens, and so does the speculator's limit."""
    folder, target = model_without_weights(tmp_path / "speculator", "byte_level"), str(MODELS / "target")
    pools = use_pools()
    pools.speculator_engine = translated(MockSpeculator(folder), translation_for(folder, target))
    pools.speculator = pools.speculator_engine.info
    check_pair(pools.speculator, pools.target)
    body = request_body("/v1/chat/completions", document, speculative_prefill={"keep_rate": 0.25})
    response = await ask(client, "/v1/chat/completions", body)
    [sent], [kept] = pools.selects, [request.prompt for request in pools.generates]
    assert response.headers["x-skim-mode"] == "speculative"
    assert response.json()["usage"]["prompt_tokens"] == sent.token_ids.size == kept.context_length
    protected = {place for start, end in sent.layout.protected for place in range(start, end)}
    assert protected < set(kept.positions.tolist())
    assert kept.positions.size < 0.25 * sent.token_ids.size + 32 + len(protected) + 32
    assert sent.layout.units.size > 20

    short = MockSpeculator(folder, max_model_len=512)
    pools.speculator_engine = translated(short, translation_for(folder, target))
    refused = await client.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "but the speculator reads at most 512" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_option_has_the_same_effect_on_every_endpoint(client, pools, document, stream):
    kept = []
    for path in ENDPOINTS:
        wish = {**KEEP, "granularity": "chunk"}
        body = request_body(path, document, stream=stream, speculative_prefill=wish)
        if path == "/v1/completions":
            # A raw prompt has no turns to protect, so it gets the chat's tokens and its protected spans.
            chat = pools.selects[0]
            body["prompt"] = chat.token_ids.tolist()
            body["speculative_prefill"] = {**wish, "protected_spans": chat.layout.protected.tolist()}
        response = await ask(client, path, body)
        assert response.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
        assert response.headers["x-skim-mode"] == "speculative"
        assert response.headers["x-skim-reason"] == "requested"
        assert response.headers["x-skim-prompt-tokens"] == str(document.prompt_tokens)
        assert response.headers["x-skim-look-ahead"] == "8"
        kept.append((pools.generates[-1].prompt.positions.tolist(), response.headers["x-skim-kept-tokens"]))
    assert len(pools.selects) == len(pools.generates) == 4
    assert kept == [kept[0]] * 4
    # The turns of a chat show its question; a raw prompt has none.
    *questions, of_raw_prompt = (request.layout.questions.tolist() for request in pools.selects)
    assert questions == [questions[0]] * 3
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    assert tokenizer.decode(pools.selects[0].token_ids[slice(*questions[0][0])]).strip() == document.question
    assert of_raw_prompt == []
    assert kept[0][1] == str(len(kept[0][0]))
    assert 0.5 < len(kept[0][0]) / document.prompt_tokens < 0.56


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_without_the_option_the_deployments_defaults_hold(client, pools, document, path):
    default = await ask(client, path, request_body(path, document))
    asked = await ask(client, path, request_body(path, document, speculative_prefill={"keep_rate": "auto"}))
    assert default.headers["x-skim-kept-tokens"] == asked.headers["x-skim-kept-tokens"]
    off = await ask(client, path, request_body(path, document, speculative_prefill=False))
    assert off.headers["x-skim-mode"] == "dense"
    assert len(pools.selects) == 2


async def test_without_the_middleware_the_option_is_ignored(client, pools, document, monkeypatch):
    """The control: vLLM ignores fields that it does not know, so only the middleware reads the option."""
    monkeypatch.setattr(SkimMiddleware, "__call__", lambda self, *asgi: self.app(*asgi))
    response = await ask(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, speculative_prefill=False))
    assert len(pools.selects) == 1
    assert "x-skim-mode" not in response.headers


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_header_does_as_the_body(client, pools, document, path):
    body = request_body(path, document)
    await ask(client, path, body, headers={"x-skim-prefill": "keep=0.5; look-ahead=0"})
    await ask(client, path, {**body, "speculative_prefill": {"keep_rate": 0.5, "look_ahead": 0}})
    first, second = (request.prompt for request in pools.generates)
    assert first.positions.tolist() == second.positions.tolist()
    assert first.look_ahead_tokens.size == second.look_ahead_tokens.size == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_server_timing_names_its_parts(client, document, stream):
    response = await ask(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, stream=stream))
    parts = [part.split(";dur=") for part in response.headers["server-timing"].split(", ")]
    assert tuple(name for name, _ in parts) == (*TIMING_PARTS, TOTAL)
    times = {name: float(ms) for name, ms in parts}
    assert all(ms >= 0 for ms in times.values())
    assert sum(times[name] for name in TIMING_PARTS) <= times[TOTAL] + 0.01 * len(times), "up to rounding"


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_text_is_cut_at_sentences_on_every_endpoint(client, pools, document, path):
    """Kept are whole sentences, but for what is protected. The selection that is shown has the same units."""
    wish = {**KEEP, "protect_last": 1}
    response = await ask(client, path, request_body(path, document, speculative_prefill=wish))
    [sent], kept = pools.selects, pools.generates[-1].prompt.positions
    pieces = TOKENIZER.convert_ids_to_tokens(sent.token_ids[sent.layout.units - 1].tolist())
    ends = sum(piece.endswith((".", "!", "?", "\u010a")) for piece in pieces)
    assert ends > 0.9 * sent.layout.units.size > 20
    assert sent.layout.indents.size == sent.layout.units.size
    free = ~sent.layout.fixed(sent.size, 1)
    in_unit = np.add.reduceat(np.isin(np.arange(free.size), kept), sent.layout.units)
    sizes = np.diff(sent.layout.units, append=free.size)
    whole = in_unit[free[sent.layout.units]]
    assert set(np.unique(whole / sizes[free[sent.layout.units]])) == {0.0, 1.0}
    shown = (await client.get(f"/v1/requests/{response.json()['id']}/selection")).json()
    assert shown["units"] == sent.layout.units.tolist()
    assert len(shown["unit_scores"]) == sent.layout.units.size


async def test_lines_that_share_an_identifier_are_linked(client, pools, document):
    filler = document.messages[-1]["content"]
    first, last = "The customer Omar has the id C4821 and no other.", "The order of C4821 was sent in the morning."
    some, rest = filler[: len(filler) // 3], filler[len(filler) // 3 :]
    text = f"{some}\n{first}\n{rest[: len(rest) // 2]}\n{last}\n{rest[len(rest) // 2 :]}"
    chat = [{"role": "user", "content": text}, {"role": "user", "content": "Where is the order of Omar?"}]
    await client.post("/v1/chat/completions", json={"model": "demo", "messages": chat, "speculative_prefill": KEEP})
    sent = pools.selects[-1]
    lines = [TOKENIZER.decode(part) for part in np.split(sent.token_ids, sent.layout.units[1:])]
    linked = [lines[unit] for unit in sent.layout.links.ravel().tolist()]
    assert len(linked) == 2
    assert all("C4821" in line for line in linked)


async def test_without_a_text_there_are_no_units(client, pools, document):
    """Of token ids, and where the request wants chunks or a dense run."""
    ids = TOKENIZER(document.prompt).input_ids
    for prompt, wish in ((ids, KEEP), (document.prompt, {**KEEP, "granularity": "chunk"})):
        body = {**request_body("/v1/completions", document, speculative_prefill=wish), "prompt": prompt}
        await ask(client, "/v1/completions", body)
        assert pools.selects[-1].layout.units.size == 0


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_usage_counts_the_prompt_that_was_sent(client, document, path):
    usage = (await ask(client, path, request_body(path, document))).json()["usage"]
    sent = document.prompt_tokens - (4 if path == "/v1/completions" else 0)
    assert usage.get("prompt_tokens", usage.get("input_tokens")) == sent
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 4


async def test_usage_of_a_stream(client, document):
    body = request_body(ENDPOINTS[0], document, stream=True, stream_options={"include_usage": True})
    usage = events(await ask(client, ENDPOINTS[0], body))[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (document.prompt_tokens, 4)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_selection_is_found_by_the_responses_id(client, pools, document, path, stream):
    response = await ask(client, path, request_body(path, document, stream=stream))
    if stream:
        first = events(response)[0]
        request_id = first.get("id") or first.get("response", first.get("message"))["id"]
    else:
        request_id = response.json()["id"]
    selection = (await client.get(f"/v1/requests/{request_id}/selection")).json()
    assert selection["kept_tokens"] == pools.generates[0].prompt.token_ids.size
    assert selection["kept_spans"][-1][1] == selection["prompt_tokens"]


async def test_no_selection_is_a_404_that_says_why(client, document):
    dense = await ask(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, speculative_prefill=False))
    response = await client.get(f"/v1/requests/{dense.json()['id']}/selection")
    assert response.status_code == 404
    assert "it ran dense, is too old, or its router is gone" in response.json()["error"]["message"]


async def test_several_prompts_are_selected_one_by_one_and_answered_in_order(client, pools, document):
    """The mock's answer depends on the prompt, so swapped answers would be noticed."""
    prompts = [document.prompt, "short", document.document]
    body = {"model": MODEL_NAME, "prompt": prompts, "max_tokens": 4}
    together = await ask(client, "/v1/completions", body)
    assert together.headers["x-skim-mode"] == "speculative, dense, speculative"
    assert together.headers["x-skim-reason"] == "requested, short-prompt, requested"
    assert len(pools.selects) == 2
    alone = [await ask(client, "/v1/completions", {**body, "prompt": prompt}) for prompt in prompts]
    texts = [response.json()["choices"][0]["text"] for response in alone]
    assert [choice["text"] for choice in together.json()["choices"]] == texts
    assert len(set(texts)) == 3
    for name in ("x-skim-prompt-tokens", "x-skim-kept-tokens"):
        assert together.headers[name] == ", ".join(response.headers[name] for response in alone)


async def test_several_answers_cost_one_selection(client, pools, document):
    response = await ask(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, n=3, temperature=1))
    assert len(response.json()["choices"]) == 3
    assert (len(pools.selects), len(pools.generates)) == (1, 1)
    assert response.headers["x-skim-mode"] == "speculative"


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        ("/v1/completions", {"echo": True}, "echo"),
        ("/v1/completions", {"prompt_logprobs": 1}, "prompt-logprobs"),
        ("/v1/chat/completions", {"prompt_logprobs": 1}, "prompt-logprobs"),
        ("/v1/completions", {"use_beam_search": True, "n": 2}, "beam-search"),
        ("/v1/chat/completions", {"use_beam_search": True, "n": 2}, "beam-search"),
        ("/v1/completions", {"speculative_prefill": {"keep_rate": 1}}, "keep-all"),
        ("/v1/completions", {"prompt": "short"}, "short-prompt"),
        ("/v1/completions", {"prompt": [5]}, "short-prompt"),
    ],
)
async def test_what_is_never_compressed_runs_dense(client, pools, document, path, fields, reason):
    response = await ask(client, path, request_body(path, document, **fields))
    assert (response.headers["x-skim-mode"], response.headers["x-skim-reason"]) == ("dense", reason)
    assert response.headers["x-skim-keep-rate"] == "1.0000"
    assert pools.selects == []
    assert all(request.prompt.is_dense for request in pools.generates)
    if fields.get("echo"):
        assert response.json()["choices"][0]["text"].startswith(document.prompt)
    if fields.get("prompt_logprobs"):
        shown = response.json()
        logprobs = shown.get("prompt_logprobs") or shown["choices"][0]["prompt_logprobs"]
        assert len(logprobs) == int(response.headers["x-skim-prompt-tokens"])


async def test_a_dense_answer_is_the_plain_targets(client, pools, document):
    """keep_rate 1 and the value false lead to the same request to the target."""
    body = request_body(ENDPOINTS[0], document)
    texts = [
        (await ask(client, ENDPOINTS[0], {**body, "speculative_prefill": option})).json()["choices"][0]["message"]
        for option in ({"keep_rate": 1}, False, {"keep_rate": 0.1})
    ]
    assert texts[0] == texts[1] != texts[2]


async def test_what_the_target_must_know_reaches_it(client, pools, document):
    fields = {"cache_salt": "salt", "priority": 3, "seed": 5, "temperature": 0.5, "top_k": 7, "stop": ["zzz"]}
    await ask(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, **fields, vllm_xargs={"mine": "yes"}))
    sent = pools.generates[0]
    assert (sent.cache_salt is not None, sent.priority) == (True, 3)
    assert pools.selects[0].cache_salt == sent.cache_salt
    wanted = {
        "seed": 5,
        "temperature": 0.5,
        "top_k": 7,
        "stop": ["zzz"],
        "max_tokens": 4,
        "extra_args": {"mine": "yes"},
    }
    assert wanted.items() <= sent.sampling.items()


async def test_logprobs_come_back_for_each_token(client, document):
    body = request_body(ENDPOINTS[0], document, logprobs=True, top_logprobs=1)
    choice = (await ask(client, ENDPOINTS[0], body)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    assert all(token["logprob"] == 0.0 and token["top_logprobs"][0]["token"] == token["token"] for token in content)
    legacy = await ask(client, "/v1/completions", request_body("/v1/completions", document, logprobs=1))
    assert legacy.json()["choices"][0]["logprobs"]["token_logprobs"] == [0.0] * 4


async def test_a_stop_string_ends_the_answer(client, document):
    body = request_body("/v1/completions", document, max_tokens=12)
    whole = (await ask(client, "/v1/completions", body)).json()["choices"][0]
    stop = whole["text"][len(whole["text"]) // 2 :][:6]
    stopped = (await ask(client, "/v1/completions", {**body, "stop": [stop]})).json()["choices"][0]
    assert stopped["text"] == whole["text"][: whole["text"].index(stop)]
    assert (whole["finish_reason"], stopped["finish_reason"], stopped["stop_reason"]) == ("length", "stop", stop)


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_stream_says_what_the_whole_answer_says(client, document, path):
    whole = (await ask(client, path, request_body(path, document, max_tokens=8))).json()
    pieces = events(await ask(client, path, request_body(path, document, max_tokens=8, stream=True)))
    texts = {
        "/v1/chat/completions": (lambda r: r["choices"][0]["message"], lambda e: e["choices"][0].get("delta")),
        "/v1/completions": (lambda r: r["choices"][0], lambda e: e["choices"][0]),
        "/v1/responses": (lambda r: r["output"][0]["content"][0], lambda e: {"text": e.get("delta")}),
        "/v1/messages": (lambda r: r["content"][0], lambda e: e.get("delta")),
    }
    of_whole, of_piece = texts[path]
    said = [of_piece(e) or {} for e in pieces if path != "/v1/responses" or e["type"] == "response.output_text.delta"]
    joined = "".join(delta.get("content") or delta.get("text") or "" for delta in said)
    final = of_whole(whole)
    assert joined == (final.get("content") or final["text"])


async def test_system_prompt_and_question_are_kept(client, pools, document):
    system = "Answer with the value alone, in four digits."
    body = request_body(ENDPOINTS[0], document, speculative_prefill={"keep_rate": 0.01, "protect_last": 1})
    body["messages"] = [{"role": "system", "content": system}, *body["messages"]]
    await ask(client, ENDPOINTS[0], body)
    kept = pools.generates[0].prompt
    pieces = (await client.post("/detokenize", json={"model": MODEL_NAME, "tokens": kept.token_ids.tolist()})).json()
    assert pieces["prompt"].startswith(f"<|bos|><|system|> {system}<|user|>")
    assert pieces["prompt"].endswith(f"{document.question}<|end|><|assistant|>")
    assert kept.token_ids.size < 100


async def test_a_batch_protects_each_conversation_by_its_own_turns(client, pools, document):
    """The document of one chat is the system prompt of the other."""
    material, question = {"role": "user", "content": document.document}, {"role": "user", "content": "Why?"}
    chats = [[{**material, "role": "system"}, question], [material, question]]
    body = {"model": MODEL_NAME, "messages": chats, "max_tokens": 2}
    response = await ask(client, "/v1/chat/completions/batch", body)
    assert response.headers["x-skim-reason"] == "all-protected;option=keep_by_role.system, requested"
    assert len(pools.selects) == 1


async def test_endpoints_that_generate_nothing_are_left_alone(client, pools):
    for path in ("/tokenize", "/v1/messages/count_tokens"):
        body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hello."}]}
        response = await ask(client, path, body)
        assert not [name for name in response.headers if name.startswith("x-skim")]
    [card] = (await client.get("/v1/models")).json()["data"]
    assert (card["id"], card["root"]) == (MODEL_NAME, "target")  # the model's name, and no path of the server
    assert (await client.get("/health")).status_code == 200
    assert pools.generates == []
