"""Which text of a prompt the guard looks at."""

import numpy as np

from kv_transfer.layout import TextLayout
from router.prompt.contents import ChatContents, Content
from router.prompt.rendered import MOST_CHARS, RenderedPrompt
from tests.unit.kv_transfer.layouts import pairs

TEXT = "A line of text.\n" * 200
COUNTING = "How many bells are there?"


def chat_of(*messages):
    """The contents of messages, given as (role, text...)."""
    contents = [Content(i, role, text) for i, (role, *texts) in enumerate(messages) for text in texts]
    return ChatContents([role for role, *_ in messages], contents)


def task_text(questions, chat, text, offsets):
    return RenderedPrompt(np.zeros(1, np.int32), text, offsets, chat).task_text(TextLayout(questions=questions))


def test_where_the_task_is_found():
    text, none = "What?\nSome text.\nWhat is it?", pairs([])
    offsets = [(i, i + 1) for i in range(len(text))]
    chat = chat_of(("user", text))
    assert task_text(pairs([(17, 28)]), chat, text, offsets) == "What is it?"
    assert task_text(pairs([(0, 5), (17, 28)]), chat, text, offsets) == "What?\nWhat is it?"
    # Without a task, the end of the last user message.
    assert task_text(none, chat_of(("user", COUNTING), ("tool", "7 bells")), text, offsets) == COUNTING
    assert task_text(none, chat_of(("user", f"{TEXT}\n{COUNTING}")), None, None).endswith(COUNTING)
    assert len(task_text(none, chat_of(("user", TEXT)), None, None)) == MOST_CHARS
    # Of raw text, its end.
    assert task_text(none, None, f"{TEXT}\n{COUNTING}\n", None).endswith(COUNTING + "\n")
    assert task_text(none, None, None, None) == ""
    # Without contents, the task is not guessed from the rendered text.
    assert task_text(none, chat_of(("system",)), COUNTING, None) == ""
    assert task_text(none, ChatContents(["user"], None), COUNTING, None) == ""
