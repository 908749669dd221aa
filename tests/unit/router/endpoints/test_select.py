"""`POST /v1/select`: the lines that score best, in the client's own coordinates, under the rules of all requests."""

import asyncio
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from kv_transfer import codec
from router.admission.ticket import OverloadedError
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.select import TokenBudget
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from router.vllm_front.app import ServedModel, build_openai_app
from router.vllm_front.select_endpoint import AT_ONCE
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from skim_common.models.info import load_tokenizer
from speculator_service import service as speculator_service
from tests.unit.router.admission.test_api_keys import entry, write
from tests.unit.router.conftest import MAX_MODEL_LEN, MODEL_NAME, MODELS, built_with, until
from tests.unit.router.endpoints.canaries import WORDS, call, result, user
from tests.unit.router.endpoints.test_http_errors import INTERNAL, raw_call, refused

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/v1/select"
QUESTION = "What did the captain say about the harbour?"
BY_SCORE = {"scoring": "attention", "read": "whole"}


@pytest.fixture(autouse=True)
def words_are_not_in_the_sum(monkeypatch):
    """So that the scores are the mock's."""
    monkeypatch.setattr(speculator_service, "with_lexical", lambda importance, *_: importance)


def make_lines(count, seed=1):
    """Lines of one unit each, that share no identifier."""
    draw = random.Random(seed)
    return [f"The {' '.join(draw.sample(WORDS, 12))}." for _ in range(count)]


LINES = make_lines(60)
TEXT = "\n".join(LINES)
BODY = {"model": MODEL_NAME, "text": TEXT, "question": QUESTION}


async def select(client, status=200, headers=None, **fields):
    response = await client.post(PATH, json={**BODY, **fields}, headers=headers)
    assert response.status_code == status, response.text
    return response


async def selected(client, **fields):
    """The only text of an answer."""
    [data] = (await select(client, **fields)).json()["data"]
    return data


@pytest.fixture
def score_lines(pools, monkeypatch):
    """`score_lines(lines, high, low)`: the speculator gives these lines of a prompt the score `high`, others `low`."""
    tokenizer, score = load_tokenizer(str(MODELS / "target")), pools.speculator_engine.score

    def give(lines, high=1.0, low=0.01):
        async def scored(request):
            scores = await score(request)
            pieces = [tokenizer.decode([token]) for token in request.token_ids.tolist()]
            text, ends = "".join(pieces), np.cumsum([len(piece) for piece in pieces])
            importance = np.full(len(pieces), low, np.float32)
            for line in lines:
                start = text.index(line)
                importance[(ends > start) & (ends <= start + len(line))] = high
            return replace(scores, importance=importance)

        monkeypatch.setattr(pools.speculator_engine, "score", scored)

    return give


def shown(*numbers):
    """These lines of TEXT as the answer shows them."""
    told, last = [], 0
    for number in [*numbers, len(LINES) + 1]:
        if gap := number - last - 1:
            told.append(f"... {gap} line{'' if gap == 1 else 's'} left out ...")
        told += [f"{number}: {LINES[number - 1]}"] if number <= len(LINES) else []
        last = number
    return "\n".join(told)


async def test_the_pools_are_told_that_no_answer_follows(client, pools, monkeypatch):
    told, real = [], pools.select

    async def noted(request, admitted, answers):
        told.append(answers)
        return await real(request, admitted)

    monkeypatch.setattr(pools, "select", noted)
    await select(client)
    await client.post("/v1/completions", json={"model": MODEL_NAME, "prompt": TEXT, "max_tokens": 2})
    assert told == [False, True]


async def test_the_lines_with_the_best_scores_are_kept(client, score_lines):
    best = [4, 5, 17, 44]
    score_lines([LINES[number - 1] for number in best], low=1e-4)
    data = await selected(client, speculative_prefill={**BY_SCORE, "keep_rate": 0.01, "coverage": 0.95})
    assert data["text"] == shown(*best)
    assert data["lines"] == [[4, 5], [17, 17], [44, 44]]
    kept = [TEXT[start:end].strip("\n") for start, end in data["spans"]]
    assert kept == ["\n".join(LINES[3:5]), LINES[16], LINES[43]]
    usage = data["usage"]
    assert usage["kept_tokens"] + usage["dropped_tokens"] == usage["prompt_tokens"]
    assert 0 < usage["kept_tokens"] < usage["prompt_tokens"] / 8
    assert 0.99 < data["coverage"] < 1


async def test_lines_with_the_worst_scores_are_not_kept(client, score_lines):
    """The control of the test above: the same lines with other scores."""
    worst = [4, 5, 17, 44]
    score_lines([LINES[number - 1] for number in worst], high=0.01, low=1.0)
    data = await selected(client, speculative_prefill={**BY_SCORE, "keep_rate": 0.5})
    told = data["text"].split("\n")
    assert not {f"{number}: {LINES[number - 1]}" for number in worst} & {*told}
    assert len(told) > 20


@pytest.mark.parametrize("most", [1, 25, 60, 200])
@pytest.mark.parametrize("options", [{}, {"keep_rate": 1.0}, {"coverage": 0.9}])
async def test_a_budget_keeps_the_best_units_that_fit(client, most, options):
    """The mock scores by a hash, so every unit has another score."""
    data = await selected(
        client, max_tokens_kept=most, scores=True, speculative_prefill={**BY_SCORE, **options, "granularity": "chunk"}
    )
    assert data["usage"]["kept_tokens"] <= most
    whole = [one for one in data["units"] if one["start"] > 0 and one["end"] < len(TEXT)]
    kept = [one for one in whole if any(a <= one["start"] and one["end"] <= b for a, b in data["spans"])]
    others = [one["score"] for one in whole if one not in kept]
    assert min([one["score"] for one in kept], default=1) >= max(others)
    assert len(kept) >= most // 32 - 1


async def test_without_its_budget_a_selection_keeps_more(client, monkeypatch):
    """The control of the test above."""
    monkeypatch.setattr(TokenBudget, "limit", lambda self, options, layout: options)
    monkeypatch.setattr(TokenBudget, "trim", lambda self, selection, options, layout: selection)
    data = await selected(client, max_tokens_kept=60, speculative_prefill={"keep_rate": 0.5})
    assert data["usage"]["kept_tokens"] > 200


async def test_a_budget_that_cannot_hold_is_refused(client, pools):
    error = await refused(
        client, PATH, {**BODY, "max_tokens_kept": 20, "speculative_prefill": {"protect_last": 200}}, 400
    )
    assert error.param == "max_tokens_kept"
    assert "are always kept" in error.message
    assert pools.selects == []


async def test_a_batch_has_an_answer_for_each_text_in_order(client, pools, score_lines):
    texts = ["\n".join(make_lines(count, seed=count)) for count in (40, 3, 25)]
    data = (await select(client, text=None, texts=texts)).json()
    assert [one["index"] for one in data["data"]] == [0, 1, 2]
    for one, text in zip(data["data"], texts, strict=True):
        for first, last in one["lines"]:
            for number in range(first, last + 1):
                line = text.split("\n")[number - 1]
                assert f"{number}: {line}" in one["text"].split("\n")
        alone = await selected(client, text=text)
        assert alone == {**one, "index": 0}
    assert len(pools.selects) == 6


async def test_the_page_shows_a_request_and_its_answer(client):
    page = (Path(__file__).parents[4] / "docs" / "select.md").read_text()
    body, answer = (json.loads(text) for text in re.findall(r"^(\{\n.*?^\})", page, re.MULTILINE | re.DOTALL))
    response = await client.post(PATH, json=body, headers={"x-request-id": "7c1e"})
    assert response.json() == answer


async def test_all_of_a_short_text_can_be_kept(client):
    data = await selected(client, text="\n  one\n\ntwo", speculative_prefill={"keep_rate": 1.0})
    assert (data["text"], data["lines"], data["coverage"]) == ("2:   one\n3:\n4: two", [[2, 4]], 1.0)


async def test_the_target_has_no_part_in_it(client, pools, served):
    before = {*pools.speculator_engine.sessions}  # of answers to other tests
    response = await select(client)
    [request] = pools.selects
    assert pools.generates == []
    assert request.decode is None
    assert request.options.reuse == "off", "nothing is kept because it was kept for another question"
    assert not {*pools.speculator_engine.sessions} - before
    assert response.headers["x-skim-reason"] == "selection-only"
    body = response.json()
    assert body["object"] == "selection"
    assert body["id"].startswith("select-")
    assert body["usage"]["prompt_tokens"] == int(response.headers["x-skim-prompt-tokens"]) == request.size
    explained = await client.get(f"/v1/requests/{body['id']}/selection")
    assert explained.json()["kept_tokens"] == body["usage"]["kept_tokens"]
    counted = served.dispatcher.meter.recorded["skim_router_requests_total"]
    assert counted[-1] == (1, {"mode": "speculative", "reason": "selection-only"})


async def test_messages_are_answered_text_by_text(client, score_lines):
    """Each text of a message has its own entry, in the coordinates of that text."""
    lines = make_lines(30, seed=9)
    parts = [{"type": "text", "text": "\n".join(lines[:10])}, {"type": "text", "text": "\n" + "\n".join(lines[10:])}]
    score_lines([lines[2], lines[15], LINES[7]])
    messages = [
        {"role": "system", "content": "Be brief."},
        user(parts),
        call("c1", "look"),
        result("c1", TEXT),
        user(QUESTION),
    ]
    body = {"text": None, "question": None, "messages": messages}
    answer = await select(client, **body, speculative_prefill={**BY_SCORE, "keep_rate": 0.04})
    found = {(one["message"], one["part"]): one for one in answer.json()["data"]}
    assert list(found) == [(1, 0), (1, 1), (3, 0), (4, 0)]
    assert f"3: {lines[2]}" in found[1, 0]["text"]
    assert f"7: {lines[15]}" in found[1, 1]["text"]
    assert f"8: {LINES[7]}" in found[3, 0]["text"]
    assert found[3, 0]["usage"]["dropped_tokens"] > 500
    assert found[4, 0]["text"] == f"1: {QUESTION}"
    kept = {**messages[3], "keep": "always"}
    again = await select(client, **{**body, "messages": [*messages[:3], kept, *messages[4:]]})
    assert again.json()["data"][2]["usage"]["dropped_tokens"] == 0


async def test_a_text_is_material_whatever_it_says(client, score_lines):
    """A text that asks something and names a task is selected from like any other."""
    asking = ["Please list all names in the text.", "Is this the question?", *LINES, "<task>", "Answer now!", "</task>"]
    score_lines([LINES[7]])
    options = {**BY_SCORE, "keep_rate": 0.01}
    data = await selected(client, text="\n".join(asking), speculative_prefill=options)
    assert f"10: {LINES[7]}" in data["text"]
    assert "list all names" not in data["text"]
    assert "Answer now" not in data["text"]


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"keep_rate": 0.3}, "keep_rate", 0.3),
        ({"coverage": 0.4, "min_keep": 0.1, "max_keep": 0.6}, "coverage", 0.4),
        ({"selector": "lexical"}, "selector", "lexical"),
        ({"granularity": "token"}, "granularity", "token"),
        ({"protect_last": 40}, "protect_last", 40),
        ({}, "protect_last", 1),
    ],
)
async def test_options_reach_the_speculator(client, pools, options, field, value):
    await select(client, speculative_prefill=options)
    assert getattr(pools.selects[0].options, field) == value


async def test_the_header_of_the_options_acts(client, pools):
    await select(client, headers={"x-skim-prefill": "keep=0.3"})
    assert pools.selects[0].options.keep_rate == 0.3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"keep_rate": 0.2}, "keep_rate"),
        ({"text": None}, "text"),
        ({"texts": ["a"]}, "texts"),
        ({"text": None, "texts": ["a", " "]}, "texts.1"),
        ({"text": "\n"}, "text"),
        ({"question": None}, "question"),
        ({"question": " "}, "question"),
        ({"text": None, "messages": [user("x")]}, "question"),
        ({"text": None, "texts": []}, "body.texts"),
        ({"text": None, "texts": ["a"] * 1025}, "body.texts"),
        ({"text": 3}, "body.text"),
        ({"max_tokens_kept": 0}, "body.max_tokens_kept"),
        ({"scores": "yes"}, "body.scores"),
        ({"speculative_decode": {}}, "speculative_decode"),
        ({"speculative_decode": False}, "speculative_decode"),
        ({"speculative_prefill": {"keep_rate": 2}}, "speculative_prefill.keep_rate"),
        ({"speculative_prefill": {"nothing": 2}}, "speculative_prefill.nothing"),
        *[
            ({"speculative_prefill": {name: value}}, f"speculative_prefill.{name}")
            for name, value in {
                "enabled": True,
                "lossy": "refuse",
                "min_prompt_tokens": 5,
                "protected_spans": [[0, 1]],
                "reuse": "on",
                "keep_by_role": {"user": 0.5},
                "protect_tools": ["a"],
                "keep_short": 3,
            }.items()
        ],
    ],
)
async def test_a_field_acts_or_is_refused(client, pools, fields, param):
    error = await refused(client, PATH, {**BODY, **fields}, 400)
    assert error.param == param
    assert pools.selects == []


async def test_a_header_for_drafts_is_refused(client, pools):
    error = await refused(client, PATH, BODY, 400, headers={"x-skim-decode": "max-draft-tokens=2"})
    assert error.param == "speculative_decode"


async def test_an_unknown_model_is_a_404(client, pools):
    assert "does not exist" in (await refused(client, PATH, {**BODY, "model": "other"}, 404)).message
    assert pools.selects == []


@pytest.mark.parametrize(
    "messages", [[{"content": "x"}], [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]]
)
async def test_messages_that_cannot_be_read_are_a_400(client, pools, messages):
    await refused(client, PATH, {"model": MODEL_NAME, "messages": messages}, 400)
    assert pools.selects == []


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (EngineUnavailableError("gone"), 503, "the speculator gave no selection (speculator-error); try again later"),
        (TimeoutError(), 503, "the speculator gave no selection (speculator-timeout); try again later"),
        (InvalidRequestError("too many of them"), 400, "too many of them"),
        (RuntimeError("secret /root/path"), 500, INTERNAL),
    ],
)
@pytest.mark.parametrize("texts", [None, ["one", "two", TEXT]])
async def test_a_failing_speculator_is_one_clean_error(client, pools, failure, status, message, texts):
    pools.select_error = failure
    body = {**BODY, "text": None, "texts": texts} if texts else BODY
    error = await refused(client, PATH, body, status)
    assert error.message == message
    assert error.headers.get("retry-after") == ("1" if status == 503 else None)


async def test_nothing_is_selected_after_a_failed_start_probe(client, pools, monkeypatch):
    monkeypatch.setattr(pools, "untrusted", True)
    assert "start probe" in (await refused(client, PATH, BODY, 503)).message
    assert pools.selects == []


async def test_a_loaded_router_refuses_before_it_reads(client, pools, served, monkeypatch):
    def refuse(request):
        raise OverloadedError("wait", "this deployment is busy", 3)

    monkeypatch.setattr(served.dispatcher.admission, "refuse_early", refuse)
    assert (await refused(client, PATH, BODY, 429)).headers["retry-after"] == "3"
    assert pools.selects == []


async def test_a_deadline_ends_the_selection(client, use_pools):
    pools = use_pools(speculator={"latency_ms": 600_000})
    await refused(client, PATH, BODY, 504, headers={"x-request-timeout-ms": "200"})
    await until(lambda: not pools.speculator_engine.running)
    assert pools.speculator_engine.aborted <= 1


@pytest.mark.parametrize("texts", [1, 3, 300])
async def test_a_client_that_leaves_ends_its_selections(served, use_pools, texts):
    """Nothing is done for the texts whose turn has not come."""
    pools = use_pools(speculator={"latency_ms": 600_000})
    engine, leave = pools.speculator_engine, asyncio.Event()
    body = {"model": MODEL_NAME, "texts": [TEXT] * texts, "question": QUESTION}
    call = asyncio.create_task(served.app(*raw_call(body, PATH, leave)))
    await until(lambda: engine.running == min(texts, AT_ONCE))
    leave.set()
    await asyncio.wait_for(call, 30)
    await until(lambda: not engine.running)
    assert engine.aborted == len(pools.selects) == min(texts, AT_ONCE)


async def test_one_text_that_fails_ends_the_others(client, use_pools, served):
    pools = use_pools(speculator={"latency_ms": 600_000})
    select_one = pools.select

    async def failing(request, *others):
        if len(pools.selects) == 2:
            await until(lambda: pools.speculator_engine.running == 2)
            raise InvalidRequestError("this one is wrong")
        return await select_one(request, *others)

    pools.select = failing
    await refused(client, PATH, {**BODY, "text": None, "texts": [TEXT] * 3}, 400)
    assert pools.speculator_engine.aborted == 2


async def keyed(served, tmp_path, **limits):
    """A client of an app that asks for keys, over the dispatcher of `served`."""
    file = write(tmp_path / "keys.yaml", entry("team", "sk-team", **limits))
    model = ServedModel(str(MODELS / "target"), "target", (MODEL_NAME,), MAX_MODEL_LEN, {"dtype": "float32"})
    with built_with(served.dispatcher, api_keys_file=str(file)):
        app = await build_openai_app(served.dispatcher, model)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60)


async def test_keys_and_their_quotas_count(served, pools, tmp_path):
    """A batch costs the tokens of all its prompts, as told in its usage; one that fails costs nothing. One with more
    tokens than the key has left ends at the text that has none."""
    key = {"authorization": "Bearer sk-team"}
    async with await keyed(served, tmp_path, prompt_tokens_per_minute=2000, isolate_cache=True) as client:
        await refused(client, PATH, BODY, 401)
        assert pools.selects == []
        pools.select_error = EngineUnavailableError("gone")
        for _ in range(6):
            await refused(client, PATH, BODY, 503, headers=key)
        pools.select_error = None
        response = await select(client, headers=key, text=None, texts=[TEXT] * 3)
        assert response.json()["usage"]["prompt_tokens"] > 2000
        assert pools.selects[-1].cache_salt, "the key's KV is its own"
        error = await refused(client, PATH, BODY, 429, headers=key)
        assert "2000 prompt tokens per minute" in error.message
    async with await keyed(served, tmp_path, prompt_tokens_per_minute=2000) as client:
        pools.selects.clear()
        error = await refused(client, PATH, {**BODY, "text": None, "texts": [TEXT] * 9}, 429, headers=key)
        assert error.message.endswith(", with fewer texts")
        assert len(pools.selects) <= 3


async def test_a_question_counts_with_each_text(client, pools, served, monkeypatch):
    body = {**BODY, "text": None, "texts": ["one two"] * 64, "question": "a b " * 40}
    limits = served.dispatcher.settings.model_copy(update={"max_body_bytes": 64 * (7 + 160) - 1})
    monkeypatch.setattr(served.dispatcher, "settings", limits)
    error = await refused(client, PATH, body, 413)
    assert "read with each of the 64 texts, together 10688 bytes" in error.message
    assert pools.selects == []


QUESTIONS = ["payment failed", "find the port", "API key for prod", "谁批准了预算", "错误原因", " x ", "Is it?\n\nNo."]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("options", [{}, {"selector": "lexical"}])
async def test_the_question_of_a_body_is_the_question(client, pools, question, options):
    """Whether or not it looks like one, and whatever the text asks."""
    await select(client, text=TEXT + "\n\nWho wrote this?", question=question, speculative_prefill=options)
    [request] = pools.selects
    [[first, last]] = request.layout.questions.tolist()
    asked = load_tokenizer(str(MODELS / "target")).decode(request.token_ids[first:last])
    assert asked.strip() == question.strip()


async def test_a_text_that_the_speculator_cannot_read_is_refused_before_its_units_are_cut(
    client, use_pools, monkeypatch
):
    pools = use_pools(speculator={"max_model_len": 256})
    monkeypatch.setattr(RenderedPrompt, "layout", None)
    error = await refused(client, PATH, {**BODY, "speculative_prefill": {"read": "whole"}}, 400)
    assert "the speculator reads at most" in error.message
    assert pools.selects == []


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
async def test_a_long_id_is_refused(client, pools, path):
    body = BODY if path == PATH else {"model": MODEL_NAME, "messages": [user(TEXT)]}
    error = await refused(client, path, body, 400, headers={"x-request-id": "x" * 2000})
    assert "shorten x-request-id" in error.message
    assert pools.selects == []


async def test_what_no_message_can_carry_is_a_400(client, pools, monkeypatch):
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 4000)
    error = await refused(client, PATH, BODY, 400)
    assert error.message.endswith("send the text in parts, each as a text of its own")


async def test_a_deployment_that_runs_dense_selects_too(served, client, pools, monkeypatch):
    assert isinstance(served.dispatcher, Dispatcher)
    monkeypatch.setattr(served.dispatcher, "defaults", PrefillOptions(enabled=False))
    assert (await selected(client))["usage"]["dropped_tokens"] > 0


async def test_a_text_may_be_longer_than_the_targets_context(served, client, use_pools):
    """In windows, the speculator reads a text of any length."""
    use_pools(speculator={"head_profile": True})
    text = "\n".join(make_lines(700))
    data = await selected(client, text=text, speculative_prefill={"keep_rate": 0.1})
    assert data["usage"]["prompt_tokens"] > MAX_MODEL_LEN
    assert data["lines"]
