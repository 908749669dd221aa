"""`context_management`: which objects are read, and what is said of the others."""

import pytest

from router.options.errors import InvalidOptionError
from router.prompt.context_edits import read_edits

USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
LONG = 10**9


def test_the_defaults_are_anthropic_s():
    thinking, uses = read_edits({"edits": [{"type": THINKING}, {"type": USES}]}, LONG)
    assert (uses.trigger.type, uses.trigger.value, uses.keep.value) == ("input_tokens", 100_000, 3)
    assert (uses.clear_at_least, uses.exclude_tools, uses.clear_tool_inputs) == (None, None, None)
    assert thinking.keep.value == 1


@pytest.mark.parametrize(("value", "edits"), [(None, ()), ({}, ()), ({"edits": []}, ())])
def test_without_edits(value, edits):
    assert read_edits(value, LONG) == edits


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_all_thinking_may_stay(keep):
    assert read_edits({"edits": [{"type": THINKING, "keep": keep}]}, LONG) == ()


def test_a_trigger_that_a_body_cannot_reach_costs_nothing():
    edits = {"edits": [{"type": THINKING}, {"type": USES, "trigger": {"type": "input_tokens", "value": 500}}]}
    assert [edit.type for edit in read_edits(edits, 500)] == [THINKING]
    assert [edit.type for edit in read_edits(edits, 501)] == [THINKING, USES]
    edits["edits"][1]["trigger"] = {"type": "tool_uses", "value": 3}
    assert [edit.type for edit in read_edits(edits, 500)] == [THINKING, USES]


def with_edit(**fields):
    return {"edits": [{"type": USES, **fields}]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", "context_management: must be an object"),
        ([{"type": "compaction"}], "context_management: must be an object"),
        ({"edits": {}}, "context_management.edits: should be a valid list, not {}"),
        ({"edit": []}, "context_management.edit: is no field here; leave it out"),
        ({"edits": [{}]}, f"context_management.edits.0: its type must be {USES} or {THINKING}"),
        ({"edits": ["x"]}, "context_management.edits.0: must be an object"),
        (
            {"edits": [{"type": USES}, {"type": "compact_20260112"}]},
            f"context_management.edits.1: its type must be {USES} or {THINKING}",
        ),
        ({"edits": [{"type": USES}] * 2}, "context_management.edits must have each type once"),
        ({"edits": [{"type": USES}, {"type": THINKING}]}, f"context_management.edits must have {THINKING} first"),
        (with_edit(keep=3), "context_management.edits.0.keep: must be an object"),
        (
            with_edit(keep={"type": "tool_uses", "value": -1}),
            "edits.0.keep.value: should be greater than or equal to 0",
        ),
        (with_edit(keep={"type": "tool_uses", "value": "3"}), "edits.0.keep.value: should be a valid integer"),
        (with_edit(keep={"type": "input_tokens", "value": 3}), "edits.0.keep.type: should be 'tool_uses'"),
        (with_edit(keep={"type": "tool_uses"}), "context_management.edits.0.keep.value: is missing"),
        (with_edit(trigger={"type": "turns", "value": 3}), "trigger.type: should be 'input_tokens' or 'tool_uses'"),
        (with_edit(clear_at_least={"type": "tool_uses", "value": 3}), "clear_at_least.type: should be 'input_tokens'"),
        (with_edit(exclude_tools="read"), "context_management.edits.0.exclude_tools: should be a valid list"),
        (with_edit(exclude_tools=[1]), "context_management.edits.0.exclude_tools.0: should be a valid string"),
        (with_edit(clear_tool_inputs=3), "context_management.edits.0.clear_tool_inputs: should be a valid boolean"),
        (with_edit(keeps=3), "context_management.edits.0.keeps: is no field here"),
        (
            {"edits": [{"type": THINKING, "keep": "none"}]},
            "context_management.edits.0.keep: must be an object",
        ),
        (
            {"edits": [{"type": THINKING, "keep": {"type": "thinking_turns", "value": 0}}]},
            "edits.0.keep.value: should be greater than or equal to 1, not 0",
        ),
    ],
)
def test_a_wrong_object_is_one_sentence_that_names_the_place(value, words):
    with pytest.raises(InvalidOptionError) as caught:
        read_edits(value, LONG)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 250
    assert caught.value.param.startswith("context_management")
