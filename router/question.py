"""The text of a prompt's question, in which the guard looks for a kind of question."""

from router.contents import ChatContents
from router.protection import LONG_TURN_CHARS, Offsets


def question_text(
    question: tuple[int, int] | None, chat: ChatContents | None, text: str | None, offsets: Offsets | None
) -> str:
    """The question of the last user turn, if its token span is known. After a tool result, the end of the last user
    message. Of a raw prompt, its last line. "" without a text. question: as in PromptSpans. chat, text, offsets: as in
    `protection.prompt_spans`.
    """
    if question is not None and text is not None and offsets is not None:
        return text[offsets[question[0]][0] : offsets[question[1] - 1][1]]
    if chat is None:
        return _last_line(text or "")
    asked = [content.text for content in chat.contents or () if content.role == "user"]
    return _last_line(asked[-1]) if asked else ""


def _last_line(text: str) -> str:
    """The last line that is not empty, or the whole text if it is short."""
    stripped = text.strip()
    if len(stripped) <= LONG_TURN_CHARS:
        return stripped
    return stripped[-LONG_TURN_CHARS:].rsplit("\n", 1)[-1]
