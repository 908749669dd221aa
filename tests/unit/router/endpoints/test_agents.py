"""What coding agents send beside the schemas: hints, and lines that differ from session to session."""

import pytest

from tests.unit.router.asking import ENDPOINTS, ask, request_body
from tests.unit.router.bodies import minimal_body
from tests.unit.router.conftest import MODEL_NAME
from tests.unit.router.endpoints.test_http_errors import refused

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_priority_of_a_hint_acts(client, pools, document, path):
    """Dynamo serves the higher number first, vLLM the lower."""
    await ask(client, path, request_body(path, document, nvext={"agent_hints": {"priority": 5}}))
    assert [sent.priority for sent in pools.generates] == [-5]
    pools.generates.clear()
    await ask(client, path, request_body(path, document, nvext={"agent_hints": {}}))
    assert [sent.priority for sent in pools.generates] == [0]


async def test_a_priority_of_its_own_comes_before_a_hint(client, pools, document):
    body = request_body(ENDPOINTS[0], document, priority=3, nvext={"agent_hints": {"priority": 5}})
    await ask(client, ENDPOINTS[0], body)
    assert [sent.priority for sent in pools.generates] == [3]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("nvext", "told"),
    [
        ({"agent_hints": {"osl": 1024}}, "nvext.agent_hints.osl has no effect on this server; leave it out"),
        ({"cache_control": {"ttl": "1h"}}, "nvext.cache_control has no effect on this server; leave it out"),
        ({"agent_hints": {"priority": "5"}}, "nvext.agent_hints.priority must be an integer"),
        ({"agent_hints": {"priority": True}}, "nvext.agent_hints.priority must be an integer"),
        ({"agent_hints": [5]}, "nvext must be an object, and agent_hints in it another one"),
        ("fast", "nvext must be an object, and agent_hints in it another one"),
    ],
)
async def test_a_hint_without_effect_is_refused(client, pools, path, nvext, told):
    error = await refused(client, path, minimal_body(path) | {"nvext": nvext}, 400)
    assert error.message == told
    assert pools.generates == []


def claude_code(document, line):
    """As Claude Code 2.1.197 sends a turn, without its tools."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    [message] = document.messages
    return {
        "model": MODEL_NAME,
        "system": [{"type": "text", "text": line}, {"type": "text", "text": "You help.", **cached}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": message["content"], **cached}]},
            {"role": "system", "content": "Agents: none."},
        ],
        "metadata": {"user_id": "{}"},
        "max_tokens": 4,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }


async def test_the_billing_line_of_claude_code_is_no_part_of_the_prompt(client, pools, document):
    """Otherwise no block of two sessions would be the same. The control: another line at this place is a part of it."""
    billing = "x-anthropic-billing-header: cc_version="
    for line in (f"{billing}1;", f"{billing}2;", "x-other: 1;"):
        await ask(client, "/v1/messages?beta=true", claude_code(document, line))
    one, two, other = [(sent.token_ids.tolist(), sent.envelope.affinity) for sent in pools.selects]
    assert one == two
    assert (one[0] == other[0], one[1] == other[1]) == (False, False)
