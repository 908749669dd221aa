"""What a client is told of the tokens that the target does not read: in the body of an answer, or in a refusal."""

from collections import Counter
from http import HTTPStatus
from typing import Any

import numpy as np

from router.dispatch.state import CallState, Outcome
from router.options.errors import RefusedError


def losses_of(call: CallState) -> dict[str, Any]:
    """The fields that are added to the usage of an answer; all its prompts are decided.

    kept_tokens, dropped_tokens: of all prompts. largest_dropped: the role of a chat's messages that lost most tokens;
    missing if none did. Empty if nothing was dropped and the request has no option of Skim: its answer is then that of
    a stock server.
    """
    if not (call.request.options.model_fields_set or any(prompt.dropped_tokens for prompt in call.prompts)):
        return {}
    told: dict[str, Any] = {
        "kept_tokens": sum(prompt.kept_tokens for prompt in call.prompts),
        "dropped_tokens": sum(prompt.dropped_tokens for prompt in call.prompts),
    }
    by_role = Counter[str]()
    for prompt in call.prompts:
        if prompt.dropped_tokens:
            by_role.update(_dropped_by_role(prompt))
    if by_role:
        role, tokens = max(by_role.items(), key=lambda found: found[1])
        told["largest_dropped"] = {"role": role, "tokens": tokens}
    return told


def loss_refused(prompt: Outcome) -> RefusedError:
    """The error of a prompt that would lose tokens, which its request does not want."""
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "UnprocessableEntityError",
        f"{prompt.dropped_tokens} of the prompt's {prompt.prompt_tokens} tokens would be dropped, which"
        " speculative_prefill.lossy refuses: send enabled false to have all of it read, lossy allow, or a shorter"
        " prompt",
    )


def _dropped_by_role(prompt: Outcome) -> dict[str, int]:
    """The dropped tokens of a chat's messages by role; of a raw prompt, none."""
    assert prompt.selection is not None
    dropped = np.ones(prompt.prompt_tokens, bool)
    dropped[prompt.selection.kept.positions] = False
    before = np.concatenate([[0], np.cumsum(dropped)])
    found = Counter[str]()
    for message in prompt.messages():
        found[message.role] += int(before[message.end] - before[message.start])
    return found
