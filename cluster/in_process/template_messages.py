"""Chat messages in the form in which a chat template reads them, as vLLM's HTTP endpoint gives them to it.

A content may be a list of parts. Some templates read such a list; to the others vLLM gives one text, in which the parts
are lines (`vllm.entrypoints.chat_utils`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from router.prompt.contents import Messages
from router.prompt.frame import TEXT
from skim_common.errors import InvalidRequestError

FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The field with the text of a part, by the part's type."""


def reads_parts(rendered: Callable[[Messages], str]) -> bool:
    """Whether a template reads a content that is a list of parts. rendered: renders messages by it."""
    try:
        text = rendered([{"role": "user", "content": [{"type": "text", "text": TEXT}] * 2}])
    except Exception:  # templates raise any
        return False
    return text.count(TEXT) == 2 and f'"{TEXT}"' not in text  # otherwise it is the list as JSON


def for_template(messages: Messages, *, parts: bool) -> list[dict[str, Any]]:
    """Copies of the messages whose contents are lists of text parts or, unless `parts`, texts.

    A tool's result is always a text. Raises InvalidRequestError for a content that is no text.
    """
    copies = []
    for number, message in enumerate(messages):
        texts = list(_texts(message.get("content"), f"messages.{number}.content"))
        as_parts = parts and message.get("role") != "tool"
        content = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
        copies.append({**message, "content": content})
    return copies


def _texts(content: Any, name: str) -> Iterable[str]:
    if content is None:
        return
    if not isinstance(content, str | Sequence):
        raise InvalidRequestError(f"{name} must be a text or a list of parts, not {type(content).__name__}")
    for number, part in enumerate([content] if isinstance(content, str) else content):
        if isinstance(part, Mapping):
            kind = part.get("type", "text")
            text = part.get(FIELDS[kind]) if isinstance(kind, str) and kind in FIELDS else ...
            if text is None:  # as over HTTP
                continue
        else:
            text = part
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name}.{number} is no text: a pair reads text alone")
        yield text
