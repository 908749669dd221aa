"""Which results of tools can age, and which questions choose what is kept of them."""

import numpy as np
import pytest

from router.options.request import PrefillOptions
from router.prompt.tool_results import LEAST_TOKENS, ToolResult, asked_after, tool_results
from tests.unit.router.chats import Chat, result


def a_chat():
    chat = Chat().add("user", "Which row holds 7?").add("assistant", "I look.").add("tool", result(1), tool="search")
    return chat.add("assistant", "Row 3.").add("user", "And which holds 9?")


def test_a_large_result_with_the_turns_after_it():
    chat = a_chat()
    assert tool_results(chat.rendered(), PrefillOptions()) == [ToolResult(*chat.span(2), turns=2)]
    both = chat.copy().add("tool", result(2)).add("assistant", "No.")
    assert [one.turns for one in tool_results(both.rendered(), PrefillOptions())] == [3, 1]


@pytest.mark.parametrize("tokens", [LEAST_TOKENS - 1, LEAST_TOKENS])
def test_a_small_result_never_ages(tokens):
    chat = Chat().add("tool", "a b " * (tokens // 4) + "c" * (tokens % 4)).add("user", "What?")
    assert bool(tool_results(chat.rendered(), PrefillOptions())) == (tokens == LEAST_TOKENS)


@pytest.mark.parametrize(
    "options", [{"protect_tools": ["search"]}, {"keep_by_role": {"tool": "always"}}, {"keep_short": 4096}]
)
def test_what_the_options_keep_never_ages(options):
    assert tool_results(a_chat().rendered(), PrefillOptions(**options)) == []
    assert tool_results(a_chat().rendered(), PrefillOptions(protect_tools=["other"]))


def test_a_large_message_of_the_user_never_ages():
    chat = Chat().add("user", result(1)).add("assistant", "Yes.").add("user", "What?")
    assert tool_results(chat.rendered(), PrefillOptions()) == []


def test_the_questions_asked_since():
    chat = a_chat()
    asked = asked_after(chat.rendered(), chat.span(2)[1])
    assert asked.tolist() == [list(chat.span(3)), list(chat.span(4))]
    assert asked_after(chat.rendered(), chat.span(4)[1]).shape == (0, 2)
    text = chat.rendered().text
    assert "Which row holds 7" not in "".join(text[slice(*span)] for span in asked)
    assert asked.dtype == np.int32
