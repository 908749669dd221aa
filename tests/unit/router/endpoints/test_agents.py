"""What coding agents send beside the schemas: lines that differ from session to session."""

import pytest

from tests.unit.router.asking import ask
from tests.unit.router.conftest import MODEL_NAME

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
