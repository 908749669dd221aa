"""The field `context_management` of a request: old tool results and old thinking leave a chat that has grown long.

The edits act on the messages that vLLM makes of a chat, so they are the same on each endpoint. A client sends its whole
conversation each time. So an edit goes through its turns as if each had been a request of its own: what was cleared for
one turn stays cleared, and the prompts of later turns begin alike until the next clearing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, compress
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from router.options.errors import InvalidOptionError
from router.options.request import TOOL_ROLES, clipped
from router.prompt.contents import ChatContents, Messages, calls_of, tools_of
from router.prompt.protected_spans import Offsets, char_ranges, tokens_touched_by_each
from skim_common.validation import problems

FIELD = "context_management"
PLACEHOLDER = "[This tool result was cleared.]"
NO_ARGUMENTS = "{}"
_THINKING = ("reasoning", "reasoning_content")
Kind = TypeVar("Kind", bound=str)


class _Limit(BaseModel, Generic[Kind], extra="forbid", strict=True):
    type: Kind
    value: int = Field(ge=0)


class _Turns(BaseModel, extra="forbid", strict=True):
    type: Literal["thinking_turns"]
    value: int = Field(ge=1)


class ClearToolUses(BaseModel, extra="forbid", strict=True):
    """Above `trigger`, the results of tools are cleared but for the last `keep` uses and `exclude_tools`; none, if that
    saves less than `clear_at_least`. clear_tool_inputs: also the arguments of these calls, or of these tools' calls."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: _Limit[Literal["input_tokens", "tool_uses"]] = _Limit(type="input_tokens", value=100_000)
    keep: _Limit[Literal["tool_uses"]] = _Limit(type="tool_uses", value=3)
    clear_at_least: _Limit[Literal["input_tokens"]] | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class ClearThinking(BaseModel, extra="forbid", strict=True):
    """The thinking is cleared but for the last `keep` turns that have some; None: it stays."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[_Turns | None, BeforeValidator(lambda keep: None if keep in ("all", {"type": "all"}) else keep)] = (
        _Turns(type="thinking_turns", value=1)
    )


Edit = Annotated[ClearToolUses | ClearThinking, Field(discriminator="type")]


_OF_UNIONS = ("clear_tool_uses_20250919", "clear_thinking_20251015", "bool", "list[str]")
_FAULTS = {
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be an object"),
    **dict.fromkeys(("union_tag_invalid", "union_tag_not_found"), f"its type must be {' or '.join(_OF_UNIONS[:2])}"),
    "extra_forbidden": "is no field here; leave it out",
}
"""By pydantic's name, where its words are not for clients."""


class _ContextManagement(BaseModel, extra="forbid", strict=True):
    edits: list[Edit] = []


def read_edits(value: Any, body_bytes: int) -> tuple[Edit, ...]:
    """The edits that can change something (a body has more bytes than tokens and uses). Raises InvalidOptionError,
    which names the place."""
    try:
        edits = _ContextManagement.model_validate({} if value is None else value).edits
    except ValidationError as error:
        first = problems(error)[0]
        name = clipped(".".join([FIELD, *(str(part) for part in first.location if part not in _OF_UNIONS)]))
        raise InvalidOptionError(f"{name}: {_FAULTS.get(first.kind, first.fault)}", name) from None
    if len({edit.type for edit in edits}) < len(edits):
        raise InvalidOptionError(f"{FIELD}.edits must have each type once", f"{FIELD}.edits")
    if any(isinstance(edit, ClearThinking) for edit in edits[1:]):
        raise InvalidOptionError(f"{FIELD}.edits must have {_OF_UNIONS[1]} first", f"{FIELD}.edits")
    acts = (edit.keep if isinstance(edit, ClearThinking) else edit.trigger.value < body_bytes for edit in edits)
    return tuple(compress(edits, acts))


def without_thinking(edit: ClearThinking, messages: Messages) -> tuple[Messages, dict[str, int]]:
    """The messages, and Anthropic's count of what they lost. A turn ends with a message of the user."""
    turns = list(accumulate(int(message.get("role") == "user") for message in messages))
    thoughts = {turn for turn, one in zip(turns, messages, strict=True) if any(map(one.get, _THINKING))}
    recent = {*sorted(thoughts, reverse=True)[: edit.keep.value if edit.keep else None]}
    cleared = [
        {name: value for name, value in message.items() if name not in _THINKING or turn in recent}
        for turn, message in zip(turns, messages, strict=True)
    ]
    return cleared, {"cleared_thinking_turns": len(thoughts) - len(recent)}


def without_tool_uses(
    edit: ClearToolUses,
    messages: Messages,
    chat: ChatContents,
    offsets: Offsets | None,
    count: Callable[[str], int],
    kept: list[str],
) -> tuple[Messages, dict[str, int]]:
    """As `without_thinking`. chat, offsets: of the rendered messages. count: the tokens of a text. kept: the tools
    whose results stay, too. A result that is no longer than its placeholder stays, and its call's arguments do not.
    Raises InvalidOptionError where the places of results are not known."""
    results = [at for at, message in enumerate(messages) if message.get("role") in TOOL_ROLES]
    if len(results) <= edit.keep.value:
        return messages, {}
    if chat.contents is None or offsets is None:
        raise InvalidOptionError(f"{FIELD} has no effect with this model: its template changes the results", FIELD)
    tools, calls, inputs = tools_of(messages), calls_of(messages), edit.clear_tool_inputs
    stays = {at for at, tool in tools.items() if tool in {*kept, *(edit.exclude_tools or ())}}
    stays |= {content.message for content in chat.contents if not content.spans or content.keep == "always"}
    ends, tokens = [0] * (len(messages) + 1), Counter[int]()
    placed = [content for content in chat.contents if content.spans]
    spans = tokens_touched_by_each([content.spans[0] for content in placed], char_ranges(offsets))
    for content, span in zip(placed, spans, strict=True):
        start, end = span or (0, 0)
        ends[content.message + 1] = max(ends[content.message + 1], end)
        tokens[content.message] += end - start
    gains = {at: 0 if at in stays else max(0, tokens[at] - count(PLACEHOLDER)) for at in results}
    uses = dict(gains)
    clears = {at for at in calls.keys() - stays if (tools.get(at) in inputs if isinstance(inputs, list) else inputs)}
    for at in clears:
        by, place = calls[at]
        arguments = messages[by]["tool_calls"][place]["function"].get("arguments")
        uses[at] += max(0, count(str(arguments or "")) - count(NO_ARGUMENTS))
    before = list(accumulate(ends, max))
    turns = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    found = cleared_uses(edit, uses, [(at, before[at]) for at in (*turns, len(messages))])
    cleared = [dict(message) for message in messages]
    for at in found:
        if gains[at]:
            cleared[at]["content"] = PLACEHOLDER
        if at in clears:
            by, place = calls[at]
            calling = cleared[by]["tool_calls"] = [*cleared[by]["tool_calls"]]
            calling[place] = {**calling[place], "function": {**calling[place]["function"], "arguments": NO_ARGUMENTS}}
    return cleared, {"cleared_tool_uses": len(found)}


def cleared_uses(edit: ClearToolUses, uses: Mapping[int, int], turns: Sequence[tuple[int, int]]) -> list[int]:
    """The messages of the results that are cleared by the last turn.

    uses: by the message of each result, the tokens that clearing it and its call saves; 0: it stays. turns: of each
    request that the client has made, how many messages it had, and how many tokens if none was cleared. Both are in the
    order of the chat. Results that a request brought stay in it: the model has not read them.
    """
    cleared: list[int] = []
    found: list[int] = []
    results = list(uses)
    seen = old = saved = gain = 0
    least = edit.clear_at_least.value if edit.clear_at_least else 0
    for end, tokens in turns:
        read, seen = seen, bisect_left(results, end)
        for use in results[old : max(old, min(read, seen - edit.keep.value))]:
            found += [use] if uses[use] else []
            gain += uses[use]
            old += 1
        size = tokens - saved if edit.trigger.type == "input_tokens" else seen - len(cleared)
        if size > edit.trigger.value and found and gain >= least:
            cleared += found
            found, saved, gain = [], saved + gain, 0
    return cleared
