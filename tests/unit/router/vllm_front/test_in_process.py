"""`skim.Pair` and `skim explain` read the prompt that the endpoint makes of the same messages."""

import pytest

from router.options.request import PrefillOptions
from skim.prompts import render
from skim_common.models.info import load_tokenizer
from tests.unit.conftest import MODELS
from tests.unit.kv_transfer.message_strategies import same
from tests.unit.router.conftest import MODEL_NAME

LINES = [f"The price of kettle {number} is {number * 37}." for number in range(6)]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(MODELS / "target"))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": line} for line in LINES]}],
        [{"role": "user", "content": [{"type": "text", "text": LINES[0]}]}],
        [{"role": "user", "content": [*LINES[:2], {"type": "text", "text": LINES[2]}]}],
        [{"role": "user", "content": [{"type": "input_text", "text": LINES[0]}, {"type": "text", "text": ""}]}],
        [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "\n".join(LINES)},
            {"role": "assistant", "content": None},
            {"role": "user", "content": []},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "Yes."}]},
            {"role": "user", "content": [{"type": "text", "text": LINES[1]}, {"type": "text", "text": LINES[2]}]},
        ],
        [{"role": "user", "content": "\n".join(LINES)}],
    ],
    ids=["parts", "one part", "texts among parts", "an empty part", "a conversation", "a text"],
)
async def test_the_prompt_of_messages_is_that_of_the_endpoint(client, tokenizer, messages):
    answer = await client.post("/tokenize", json={"model": MODEL_NAME, "messages": messages})
    assert answer.status_code == 200, answer.text
    assert render(messages, tokenizer).token_ids.tolist() == answer.json()["tokens"]


@pytest.mark.parametrize("wish", [{}, {"keep_by_role": {"user": 0.5}}, {"protected_spans": [[40, 50]]}])
async def test_what_is_known_of_a_prompt_is_the_same(client, pools, document, tokenizer, wish):
    """A rendered prompt has one way to its layout."""
    options = PrefillOptions(**wish)
    body = {"model": MODEL_NAME, "messages": document.messages, "max_tokens": 2, "speculative_prefill": wish}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    [sent] = pools.selects
    prompt = render(document.messages, tokenizer, options)
    assert sent.token_ids.tolist() == prompt.token_ids.tolist()
    assert same(sent.layout, prompt.layout(options))
    assert sent.layout.units.size > 20
    assert len(sent.layout.questions) == 1
    assert not same(sent.layout, prompt.layout(PrefillOptions(protected_spans=[[60, 70]]))), "the control"
