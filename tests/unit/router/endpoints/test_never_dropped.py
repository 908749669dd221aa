"""What docs/options.md says is never dropped reaches the target, on every endpoint, in a first turn and in later ones.

Each case is a random conversation with canaries (`canaries`), in one of many ways to select.
"""

import re
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from demo_models.documents import make_document
from kv_transfer.layout import TextLayout
from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from speculator_service.selection.records import Records
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.asking import CHAT_LIKE
from tests.unit.router.conftest import MODEL_NAME, MODELS, LocalPools
from tests.unit.router.endpoints.canaries import FORMS, MATERIAL, body_of, make_conversation
from tests.unit.router.prompt.test_contents import FOLDER

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_MODEL_LEN = 16384
PAGE = Path(__file__).parents[4] / "docs" / "options.md"
COMPLETIONS = "/v1/completions"
TEMPLATE = ("<|im_start|>", "<|im_end|>", "<tools>", "<tool_call>", "<tool_response>")
STATES = ("cold", "again", "later")
"""The first request of a conversation; the same once more, so that its record is found; a request after the one that
had only its first turns."""
NIGHT = 500


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app():
    """The app with a chat template that renders tools. use: gives it new pools."""
    from router.vllm_front.app import ServedModel, build_openai_app

    def use(**speculator):
        options = {"max_model_len": MAX_MODEL_LEN}
        dispatcher.pools = pools = LocalPools(speculator={**options, **speculator}, target=options)
        pools.records = Records()
        return pools

    settings = RouterConfig()
    defaults = PrefillOptions(enabled="always", min_prompt_tokens=256, selector="speculator")
    dispatcher = Dispatcher(LocalPools(), defaults, SpeculationOptions(), settings, LocalMeter())
    use()
    folder = str(MODELS / "target")
    options = {
        "dtype": "float32",
        "chat_template": str(FOLDER / "qwen2.jinja"),
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
    }
    served = ServedModel(folder, "target", (MODEL_NAME,), MAX_MODEL_LEN, options)
    transport = httpx.ASGITransport(app=await build_openai_app(dispatcher, served))
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        yield SimpleNamespace(client=client, use=use, tokenizer=AutoTokenizer.from_pretrained(folder))


def options_of(random, **fixed):
    """A way to select, at random."""
    wish = {
        "keep_rate": random.choice([0.02, 0.1, 0.3, "auto"]),
        "granularity": random.choice(["text", "text", "chunk", "token"]),
        "protect_last": random.choice([1, 32]),
        **fixed,
    }
    selectors = ["speculator", "lexical"] if wish["granularity"] == "text" else ["speculator"]
    return {"selector": random.choice(selectors), **wish}


async def read_by_target(app, pools, path, body):
    """The prompt of a request that is answered, and what the target read of it. Late units stand in another place."""
    response = await app.client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-skim-mode"] == "speculative", response.headers["x-skim-reason"]
    whole, kept = pools.selects[-1].token_ids, pools.generates[-1].prompt.token_ids
    text, read = app.tokenizer.decode(whole), app.tokenizer.decode(kept)
    return SimpleNamespace(whole=whole, kept=kept, text=text, read=read, headers=response.headers)


async def read_in(app, path, seed, state, form=None, **fixed):
    """A random conversation, and what the target read of it."""
    random = Random(seed)
    talk = make_conversation(seed, form or random.choice(list(FORMS)))
    pools = app.use(head_profile=random.random() < 0.5)
    wish = options_of(random, protect_tools=["vault"], **fixed)
    body = body_of(path, talk.turns, talk.tools, speculative_prefill=wish)
    if state == "again":
        await read_by_target(app, pools, path, body)
    if state == "later":
        turns = [*talk.turns[: talk.first_turns], {"role": "user", "content": "And now?"}]
        first = body_of(path, turns, talk.tools, speculative_prefill=wish)
        await read_by_target(app, pools, path, first)
    return talk, await read_by_target(app, pools, path, body), wish


def has_ends(found, protect_last):
    """Whether the target read the first and the last tokens."""
    return found.kept[0] == found.whole[0] and np.array_equal(found.kept[-protect_last:], found.whole[-protect_last:])


def lost_of(talk, found, wish):
    """What was lost of what the page says is never dropped, by line."""
    lost = {line: texts for line, texts in talk.lost(found.read).items() if line != MATERIAL}
    if marks := [mark for mark in TEMPLATE if found.read.count(mark) != found.text.count(mark)]:
        lost[1] = marks
    if not has_ends(found, wish["protect_last"]):
        lost[8] = ["the first or the last tokens"]
    return lost


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", CHAT_LIKE)
async def test_no_canary_of_a_conversation_is_lost(app, path, form, state):
    for seed in (1, 2):
        talk, found, wish = await read_in(app, path, seed, state, form)
        assert found.kept.size < 0.9 * found.whole.size
        assert talk.lost(found.text) == {}, "the canaries are in the prompt"
        assert lost_of(talk, found, wish) == {}, (seed, wish)
        reused = int(found.headers["x-skim-reused-tokens"])
        assert {"cold": reused == 0, "again": reused == found.kept.size, "later": True}[state]


@pytest.mark.nightly
async def test_none_of_many_conversations_loses_a_canary(app):
    reused = 0
    for seed in range(NIGHT):
        path, state = CHAT_LIKE[seed % 3], STATES[seed // 3 % 3]
        talk, found, wish = await read_in(app, path, 1000 + seed, state)
        assert lost_of(talk, found, wish) == {}, (seed, path, state, wish)
        reused += int(found.headers["x-skim-reused-tokens"]) > 0
    assert reused > NIGHT / 3


async def test_what_nothing_protects_is_lost(app, monkeypatch):
    """The control: with a selection that knows no protected tokens, each line loses some."""
    monkeypatch.setattr(TextLayout, "fixed", lambda layout, tokens, protect_last: np.zeros(tokens, bool))
    lost = Counter()
    for seed in range(6):
        talk, found, wish = await read_in(app, CHAT_LIKE[seed % 3], seed, "cold", keep_rate=0.1)
        lost.update(lost_of(talk, found, wish).keys())
    assert lost.keys() == set(range(1, 9))


@pytest.mark.parametrize("state", STATES)
async def test_of_a_raw_prompt_what_is_asked_for_stays(app, state):
    for seed in range(4):
        random = Random(seed)
        pools, text = app.use(), make_document(2000, seed=seed).prompt
        wish = options_of(random, protected_spans=[[700, 760]])
        body = {"model": MODEL_NAME, "max_tokens": 2, "speculative_prefill": wish, "prompt": text}
        if state != "cold":
            first = {**body, "prompt": text if state == "again" else f"{text[:-1000]}\nWhat is the price of the tent?"}
            await read_by_target(app, pools, COMPLETIONS, first)
        found = await read_by_target(app, pools, COMPLETIONS, body)
        # Late units stand before the question, and that may be among the last tokens.
        assert has_ends(found, wish["protect_last"] if state == "cold" else 1)
        assert text.rsplit("\n", 1)[1] in found.read
        assert app.tokenizer.decode(found.whole[700:760]) in found.read
        assert found.kept.size < 0.9 * found.whole.size


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((path, {"speculative_prefill": {"enabled": False}}) for path in (*CHAT_LIKE, COMPLETIONS)),
        *((path, {"speculative_prefill": {"min_prompt_tokens": 9000}}) for path in (*CHAT_LIKE, COMPLETIONS)),
        *((path, {"prompt_logprobs": 1}) for path in ("/v1/chat/completions", COMPLETIONS)),
        (COMPLETIONS, {"echo": True}),
        (COMPLETIONS, {"use_beam_search": True, "temperature": 0}),
    ],
)
async def test_of_a_dense_prompt_nothing_is_dropped(app, path, fields):
    pools = app.use()
    if path == COMPLETIONS:
        body = {"model": MODEL_NAME, "prompt": make_document(2000).prompt, "max_tokens": 2, **fields}
    else:
        talk = make_conversation(3, next(iter(FORMS)))
        body = body_of(path, talk.turns, talk.tools, **fields)
    assert (await app.client.post(path, json=body)).status_code == 200
    kept = pools.generates[0].prompt
    assert kept.positions.tolist() == list(range(kept.context_length))
    assert pools.selects == []


async def test_each_line_of_the_page_has_a_test():
    """9 and 10 are the dense prompts; `lossy: refuse` is in `test_losses`."""
    section = PAGE.read_text().split("\n### What is never dropped\n")[1].split("\n### ")[0]
    tested = {1, 8, 9, 10, *make_conversation(1, next(iter(FORMS))).canaries} - {MATERIAL}
    assert {int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)} == tested == set(range(1, 11))
