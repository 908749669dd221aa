"""Replies that grow with the prompt are bounded before anything runs, over all prompts of a request."""

import pytest

from router.dispatch.sampling_limits import MAX_LOGPROBS, MAX_READ_TOKENS

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPT = list(range(20, 420)) * 10
"""4,000 tokens, of 4,096."""


async def ask(served, path, **body):
    return await served.client.post(path, json={"model": "demo", "max_tokens": 2, **body})


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [PROMPT] * 7, "prompt_logprobs": 20},
        {"prompt": PROMPT, "prompt_logprobs": 20, "n": 7},
        {"prompt": [PROMPT] * 7, "logprobs": 20, "echo": True},
    ],
)
async def test_too_many_log_probabilities_are_a_400(served, pools, fields):
    answer = await ask(served, TEXT, **fields)
    assert answer.status_code == 400
    assert f"the limit is {MAX_LOGPROBS}" in answer.json()["error"]["message"]


async def test_nothing_runs_for_a_prompt_with_too_many(served, pools, monkeypatch):
    monkeypatch.setattr("router.dispatch.sampling_limits.MAX_LOGPROBS", 10_000)
    body = {"messages": [{"role": "user", "content": "word " * 900}], "prompt_logprobs": 20}
    answer = await ask(served, CHAT, **body)
    assert (answer.status_code, pools.generates) == (400, [])


async def test_too_many_copies_of_a_prompt_are_a_400(served, pools):
    answer = await ask(served, TEXT, prompt=PROMPT, n=MAX_READ_TOKENS // len(PROMPT) + 1, echo=True, temperature=1.0)
    assert (answer.status_code, pools.generates) == (400, [])
    assert f"may have {MAX_READ_TOKENS}" in answer.json()["error"]["message"]


async def test_a_long_answer_without_a_stream_ends_at_the_limit_and_a_stream_does_not(served, pools, monkeypatch):
    """How long an answer gets is known only at its end, and max_tokens may be the model's room."""
    monkeypatch.setattr("router.dispatch.sampling_limits.MAX_LOGPROBS", 1000)
    body = {"prompt": PROMPT[:100], "max_tokens": 2000, "logprobs": 1, "ignore_eos": True}
    aborted = pools.target_engine.aborted
    answer = await ask(served, TEXT, **body)
    assert answer.status_code == 400
    assert "the limit is 1000" in answer.json()["error"]["message"]
    assert pools.target_engine.aborted == aborted + 1
    streamed = await ask(served, TEXT, **body, stream=True)
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_the_largest_reply_is_sent(served, pools):
    answer = await ask(served, TEXT, prompt=[PROMPT] * 6, prompt_logprobs=20)
    assert answer.status_code == 200
    told = [choice["prompt_logprobs"] for choice in answer.json()["choices"]]
    assert [sum(len(position or ()) for position in one) for one in told] == [21 * (len(PROMPT) - 1)] * 6


async def test_the_runs_of_a_beam_search_make_one_reply(served, pools, monkeypatch):
    monkeypatch.setattr("router.dispatch.sampling_limits.MAX_LOGPROBS", 10)
    answer = await ask(served, TEXT, prompt=[5, 6], use_beam_search=True, n=2, max_tokens=8, temperature=0.0)
    assert answer.status_code == 200
