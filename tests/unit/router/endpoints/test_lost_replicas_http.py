"""What an HTTP client gets when its target replica is lost: byte for byte what it gets undisturbed."""

import re
from typing import Any

import pytest

from router.pools.migration import ReplicaLostError
from tests.unit.router.conftest import MAX_MODEL_LEN, LocalPools

# What differs between two requests: ids, times, and the sequence of server-sent events is compared as bytes otherwise.
_OWN = re.compile(r'"(?:id|item_id|request_id)":\s?"[^"]*"|"(?:created|created_at|completed_at)":\s?[0-9.]+')


class Losing(LocalPools):
    """Each attempt but the last one ends after `life` outputs of the target. lost: attempts that ended so."""

    def __init__(self, life: int, times: int, cause: str = "died") -> None:
        super().__init__(target={"max_model_len": MAX_MODEL_LEN})
        self._life, self._times, self._cause, self.lost = life, times, cause, 0

    async def generate(self, request: Any, admitted: Any) -> Any:
        left = self._life
        async for output in super().generate(request, admitted):
            if left == 0 and self.lost < self._times:
                self.lost += 1
                raise ReplicaLostError(self._cause, accepted=True)
            left -= 1
            yield output


# An answer that is not streamed comes in outputs of 16 tokens: so it has six of them, more than any life above.
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}
TEXT = {"model": "demo", "prompt": [20, 21, 22], "max_tokens": 100}
REQUESTS = {
    "chat": ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    "chat-whole": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1}),
    "chat-logprobs": ("/v1/chat/completions", {**CHAT, "stream": True, "logprobs": True, "return_token_ids": True}),
    "text": ("/v1/completions", {**TEXT, "stream": True, "logprobs": 1, "stream_options": {"include_usage": True}}),
    "text-echo": ("/v1/completions", {**TEXT, "echo": True, "logprobs": 1}),
    "text-several": ("/v1/completions", {**TEXT, "prompt": [[20, 21], [22, 23, 24]]}),
    "responses": ("/v1/responses", {"model": "demo", "input": "hello", "max_output_tokens": 100, "stream": True}),
    "messages": ("/v1/messages", {**CHAT, "stream": True}),
    "beams": ("/v1/completions", {**TEXT, "max_tokens": 4, "n": 2, "use_beam_search": True, "temperature": 0.0}),
}


async def sent(served: Any, pools: LocalPools, path: str, body: dict[str, Any]) -> tuple[int, str]:
    before, served.dispatcher.pools = served.dispatcher.pools, pools
    try:
        answer = await served.client.post(path, json=body)
    finally:
        served.dispatcher.pools = before
    return answer.status_code, _OWN.sub('"own"', answer.text)


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_client_sees_no_difference(served: Any, name: str) -> None:
    path, body = REQUESTS[name]
    quiet = await sent(served, LocalPools(), path, body)
    assert quiet[0] == 200, quiet[1]
    for life, times, cause in ((0, 1, "died"), (1, 1, "died"), (5, 2, "drained"), (3, 5, "drained")):
        pools = Losing(life, times, cause)
        assert await sent(served, pools, path, body) == quiet
        assert pools.lost > 0 or (name == "beams" and life > 0)


@pytest.mark.parametrize("stop", [1, 3, 9])
async def test_stop_strings_across_the_cut(served: Any, stop: int) -> None:
    path, body = REQUESTS["text"]
    _, whole = await sent(served, LocalPools(), path, {**TEXT, "max_tokens": 30})
    text = re.search(r'"text":\s?"((?:[^"\\]|\\.)*)"', whole)
    assert text is not None
    plain = re.sub(r"\\.", "", text[1])
    stopped = {**body, "max_tokens": 30, "stop": [plain[8 * stop : 8 * stop + 4]]}
    quiet = await sent(served, LocalPools(), path, stopped)
    for life in range(1, 12):
        assert await sent(served, Losing(life, 1), path, stopped) == quiet


async def test_when_two_replicas_die_the_stream_ends_with_one_error(served: Any) -> None:
    path, body = REQUESTS["chat"]
    for life in (0, 3):
        pools = Losing(life, 9)
        status, text = await sent(served, pools, path, body)
        assert (status, pools.lost) == (500 if life == 0 else 200, 2)
        assert text.count('"message"') == 1
        assert "two target replicas died while they ran this request" in text
