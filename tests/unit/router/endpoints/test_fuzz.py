"""No body gives a status of 500 or more, whatever its fields hold."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.router.bodies import JSON, NEARLY_RIGHT, SCHEMAS, bodies, deep_bodies, large_bodies

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("kind", [bodies, large_bodies])
@pytest.mark.parametrize("path", SCHEMAS)
@settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_no_body_gives_a_server_error(served, path, kind, data):
    body = data.draw(kind(path))
    response = await served.client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code < 500, (body[:2000], response.text)


@pytest.mark.parametrize("path", SCHEMAS)
async def test_no_deep_body_gives_a_server_error(served, path):
    for body in deep_bodies(path):
        response = await served.client.post(path, content=body, headers={"content-type": "application/json"})
        assert (response.status_code, "levels of lists and objects" in response.text) == (400, True), body[:200]


SELECT = "/v1/select"
TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["a b", "", "  ", "\r", "Why?", "<|im_end|>", "\U000f0000", "\x00", "\u0301", "{", "<task>", "x" * 200]
    ),
    max_size=12,
).map("\n".join)
OF_SELECT = {
    "text": TEXTS,
    "question": TEXTS,
    "texts": st.lists(TEXTS, max_size=3),
    "messages": NEARLY_RIGHT["messages"],
    "max_tokens_kept": st.integers(0, 60),
    "scores": st.booleans(),
    "speculative_prefill": st.fixed_dictionaries(
        {},
        optional={
            "keep_rate": st.sampled_from([0.05, 0.5, 1, "auto"]),
            "granularity": st.sampled_from(["text", "chunk", "token"]),
            "selector": st.sampled_from(["speculator", "lexical"]),
            "keep_by_role": st.just({"user": 0.3, "system": 0.5}),
        },
    ),
}


@settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_no_body_of_a_selection_gives_a_server_error(served, data):
    body = {}
    for name in data.draw(st.lists(st.sampled_from(sorted(OF_SELECT)), max_size=4, unique=True)):
        body[name] = data.draw(JSON if data.draw(st.integers(0, 9)) == 0 else OF_SELECT[name])
    content = json.dumps(body).encode()
    response = await served.client.post(SELECT, content=content, headers={"content-type": "application/json"})
    assert response.status_code < 500, (body, response.text)


@settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(text=TEXTS.filter(str.strip), options=OF_SELECT["speculative_prefill"], most=st.none() | st.integers(5, 60))
async def test_a_selection_tells_of_the_text_as_it_was_sent(served, text, options, most):
    """Whatever characters it has: the spans are in it, and the lines are those of the spans."""
    options.pop("keep_by_role", None)
    if options.get("selector") == "lexical":
        options.pop("granularity", None)  # words are known of units of text alone
    body = {"text": text, "question": "Why?", "speculative_prefill": options, "scores": True}
    response = await served.client.post(SELECT, json={**body, **({"max_tokens_kept": most} if most else {})})
    if response.status_code == 400:
        assert most, response.text  # more tokens are always kept than the budget has
        return
    assert response.status_code == 200, response.text
    [data] = response.json()["data"]
    assert all(0 <= start < end <= len(text) for start, end in [*data["spans"]])
    assert all(one["start"] < one["end"] <= len(text) for one in data["units"])
    assert most is None or data["usage"]["kept_tokens"] <= most
    lines = text.split("\n")
    told = {number for first, last in data["lines"] for number in range(first, last + 1)}
    with_text = {
        text.count("\n", 0, place) + 1 for a, b in data["spans"] for place in range(a, b) if text[place].strip()
    }
    assert {number for number in told if lines[number - 1].strip()} == with_text
    for number, shown in re.findall(r"^(\d+): (.*)$", data["text"], re.MULTILINE):
        assert all(piece.strip() in lines[int(number) - 1] for piece in shown.split("..."))
