"""Which text of a prompt counts as its question."""

from router.prompt.contents import ChatContents, Content
from router.prompt.protected_spans import question_text

TEXT = "A line of text.\n" * 200
COUNTING = "How many bells are there?"


def chat_of(*messages):
    """The contents of messages, given as (role, text...)."""
    contents = [Content(i, role, text) for i, (role, *texts) in enumerate(messages) for text in texts]
    return ChatContents([role for role, *_ in messages], contents)


def test_where_the_question_is_found():
    text = "Some text.\nWhat is it?"
    offsets = [(i, i + 1) for i in range(len(text))]
    assert question_text((11, 22), chat_of(("user", text)), text, offsets) == "What is it?"
    # After a tool result, the question is in the last user message.
    assert question_text(None, chat_of(("user", COUNTING), ("tool", "7 bells")), text, offsets) == COUNTING
    assert question_text(None, chat_of(("user", TEXT, COUNTING)), text, offsets) == COUNTING
    assert question_text(None, chat_of(("user", f"{TEXT}\n{COUNTING}")), None, None) == COUNTING
    # Of raw text, the last line.
    assert question_text(None, None, f"{TEXT}\n{COUNTING}\n", None) == COUNTING
    assert question_text(None, None, None, None) == ""
    # Without contents, the question is not guessed from the rendered text.
    assert question_text(None, chat_of(("system",)), COUNTING, None) == ""
    assert question_text(None, ChatContents(["user"], None), COUNTING, None) == ""
