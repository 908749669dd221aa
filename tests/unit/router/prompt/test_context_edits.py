"""Which uses of tools are cleared, turn by turn, and which thinking."""

from itertools import pairwise

import pytest

from router.options.errors import InvalidOptionError
from router.prompt.contents import ChatContents
from router.prompt.context_edits import PLACEHOLDER, cleared_uses, read_edits, without_thinking, without_tool_uses
from tests.unit.router.prompt.test_contents import FAMILIES, TEMPLATES, WITHOUT_TOOLS, mapped, rendered

USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"


def edit(trigger=0, keep=3, by="tool_uses", least=None, **fields):
    at_least = {"clear_at_least": {"type": "input_tokens", "value": least}} if least is not None else {}
    wish = {"trigger": {"type": by, "value": trigger}, "keep": {"type": "tool_uses", "value": keep}}
    [found] = read_edits({"edits": [{"type": USES, **wish, **at_least, **fields}]}, 10**9)
    return found


def cleared(wish, results, per_turn=1):
    """The numbers of the cleared uses after each turn. results: the tokens that each use's clearing saves. A turn has a
    message with calls, and one for each result; each message has the tokens of its result, or 10."""
    uses, turns, message, tokens, told = {}, [], 1, 10, []
    for number, saves in enumerate(results):
        if number % per_turn == 0:
            if number:
                turns.append((message, tokens))
            message, tokens = message + 1, tokens + 10
        uses[message] = saves
        message, tokens = message + 1, tokens + saves
        if number % per_turn == per_turn - 1 or number == len(results) - 1:
            found = cleared_uses(wish, uses, [*turns, (message, tokens)])
            told.append([list(uses).index(use) for use in found])
    return told


@pytest.mark.parametrize(
    ("wish", "turns"),
    [
        (edit(keep=3), [[], [], [], [0], [0, 1], [0, 1, 2]]),
        (edit(keep=1), [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]),
        (edit(keep=0), [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]),  # the last one is new
        (edit(keep=9), [[]] * 6),
        (edit(trigger=4, keep=1), [[], [], [], [], [0, 1, 2, 3], [0, 1, 2, 3]]),
        (edit(trigger=330, keep=1, by="input_tokens"), [[], [], [0, 1], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]),
        (edit(trigger=340, keep=1, by="input_tokens"), [[], [], [], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3, 4]]),
        (edit(keep=1, least=201), [[], [], [], [0, 1, 2], [0, 1, 2], [0, 1, 2]]),
        (edit(keep=1, least=200), [[], [], [0, 1], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]),
        (edit(keep=1, least=601), [[]] * 6),
    ],
)
def test_what_each_turn_clears(wish, turns):
    assert cleared(wish, [100] * 6) == turns


def test_uses_that_save_nothing_stay_and_count():
    assert cleared(edit(keep=2), [100, 0, 100, 0, 100])[-1] == [0, 2]


def test_parallel_uses_of_the_last_turn_are_new_to_the_model():
    assert cleared(edit(keep=1), [100] * 6, per_turn=3) == [[], [0, 1, 2]]
    assert cleared(edit(keep=4), [100] * 6, per_turn=3) == [[], [0, 1]]


@pytest.mark.parametrize("least", [None, 300])
@pytest.mark.parametrize("by", ["tool_uses", "input_tokens"])
def test_what_was_cleared_stays_cleared(by, least):
    turns = cleared(edit(trigger=5 if by == "tool_uses" else 700, by=by, least=least), [70, 150, 30, 0, 110] * 40)
    assert len(turns[-1]) > 100
    for before, after in pairwise(turns):
        assert after[: len(before)] == before


def chat(*roles):
    """Messages of these roles. An `A` is an answer with thinking."""
    names = {"a": "assistant", "A": "assistant", "u": "user", "t": "tool"}
    return [{"role": names[r], "content": r, **({"reasoning": "so"} if r == "A" else {})} for r in "".join(roles)]


@pytest.mark.parametrize(
    ("roles", "keep", "left"),
    [
        ("uAuAuA", 1, [5]),
        ("uAuAuA", 2, [3, 5]),
        ("uAuAuA", 9, [1, 3, 5]),
        ("uAtAtAuAtA", 1, [7, 9]),
        ("uAtAtAuAtA", 2, [1, 3, 5, 7, 9]),
        ("uAuaua", 1, [1]),  # the last turn with thinking
        ("uAuau", 1, [1]),
    ],
)
def test_the_thinking_of_the_last_turns_stays(roles, keep, left):
    wish = {"type": THINKING, "keep": {"type": "thinking_turns", "value": keep}}
    [found] = read_edits({"edits": [wish]}, 1)
    messages, counts = without_thinking(found, chat(roles))
    assert [at for at, message in enumerate(messages) if "reasoning" in message] == left
    assert [message["content"] for message in messages] == list(roles)
    lost = {roles[:at].count("u") for at, role in enumerate(roles) if role == "A" and at not in left}
    assert counts == {"cleared_thinking_turns": len(lost)}


def tool_chat(uses):
    chat = [{"role": "user", "content": "Look into all of them."}]
    for number in range(uses):
        call = {"id": f"call{number:05}", "type": "function", "function": {"name": "read", "arguments": {"a": number}}}
        chat.append({"role": "assistant", "content": "", "tool_calls": [call]})
        chat.append({"role": "tool", "tool_call_id": f"call{number:05}", "content": f"result {number} " * 30})
    return chat


@pytest.mark.parametrize("template", [name for name in TEMPLATES if FAMILIES[name] not in WITHOUT_TOOLS])
def test_the_templates_of_models_with_tools(template):
    messages = tool_chat(6)
    text, chat = mapped(template, messages)
    characters = [(at, at + 1) for at in range(len(text))]  # a token for each
    arguments = {"offsets": characters, "count": len, "kept": []}
    left, counts = without_tool_uses(edit(clear_tool_inputs=True), messages, chat, **arguments)
    assert counts == {"cleared_tool_uses": 3}
    shorter = rendered(template, left)
    assert [number for number in range(6) if f"result {number}" in shorter] == [3, 4, 5]
    saved = 3 * (len(("result 0 " * 30).strip()) - len(PLACEHOLDER))
    for least, count in ((saved, 3), (saved + 1, 0)):
        _, counts = without_tool_uses(edit(least=least), messages, chat, **arguments)
        assert counts == {"cleared_tool_uses": count}


def test_results_without_a_known_place_are_refused_only_where_some_could_be_cleared():
    hidden = ChatContents([], None)
    assert without_tool_uses(edit(keep=3), tool_chat(3), hidden, None, len, []) == (tool_chat(3), {})
    with pytest.raises(InvalidOptionError, match=r"^context_management has no effect with this model: its template"):
        without_tool_uses(edit(keep=3), tool_chat(4), hidden, None, len, [])


@pytest.mark.parametrize(("inputs", "cleared"), [(True, 3), (["read"], 3), (["other"], 0), (False, 0)])
def test_the_arguments_of_calls_with_short_results_are_cleared(inputs, cleared):
    """As of Write and Edit. Their tokens count as saved."""
    messages = tool_chat(6)
    for message in messages[1:]:
        if message["role"] == "tool":
            message["content"] = "ok"
        else:
            message["tool_calls"][0]["function"]["arguments"] = "x" * 500
    text, chat = mapped("qwen3", messages)
    given = messages, chat, [(at, at + 1) for at in range(len(text))], len, []
    left, counts = without_tool_uses(edit(clear_tool_inputs=inputs, least=3 * 498), *given)
    assert counts == {"cleared_tool_uses": cleared}
    assert PLACEHOLDER not in str(left)
    assert str(left).count("x" * 500) == 6 - cleared
    assert without_tool_uses(edit(clear_tool_inputs=inputs, least=3 * 498 + 1), *given)[1] == {"cleared_tool_uses": 0}
