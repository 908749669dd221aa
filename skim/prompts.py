"""Prompts as engines read them: rendered by the chat template and tokenized, by transformers alone.

The router renders by vLLM (`router.vllm_front.renderer`). All that follows from a `RenderedPrompt` is shared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array
from router.options.request import PrefillOptions
from router.prompt.contents import MarkedChat, Messages, without_marks
from router.prompt.markers import messages_with_keeps
from router.prompt.rendered import TEXT, RenderedPrompt, frame_messages, frame_of
from skim_common.errors import InvalidRequestError

KINDS = "a prompt is text, a list of token ids or a list of chat messages"

PART_FIELDS = dict.fromkeys(("text", "input_text", "output_text"), "text")
PART_FIELDS |= {"refusal": "refusal", "thinking": "thinking"}
"""The field with the text of a part, by the part's type."""

PromptInput: TypeAlias = str | Sequence[int] | npt.NDArray[np.integer[Any]] | Messages | RenderedPrompt
"""Text, token ids [M], chat messages, or a prompt that is rendered already."""


def render(prompt: PromptInput, tokenizer: Any, options: PrefillOptions | None = None) -> RenderedPrompt:
    """The prompt as the models read it.

    options: of a request. A content part of a message may have its own `keep`, as in serving. Raises
    InvalidRequestError for a prompt that is empty, is none of `PromptInput` or that the chat template refuses.
    """
    if isinstance(prompt, RenderedPrompt):
        return prompt
    try:
        is_empty = not len(prompt)
    except TypeError:  # None, a number, a generator
        raise InvalidRequestError(KINDS) from None
    if is_empty:
        raise InvalidRequestError("the prompt is empty")
    if isinstance(prompt, str):
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise _no_text(error) from None
        encoded = tokenizer(prompt, return_offsets_mapping=tokenizer.is_fast)
        if not encoded.input_ids:
            raise InvalidRequestError("the prompt is empty")
        return RenderedPrompt(np.asarray(encoded.input_ids, np.int32), prompt, encoded.get("offset_mapping"))
    if all(isinstance(part, Mapping) for part in prompt):
        return _chat(prompt, tokenizer, options or PrefillOptions())  # type: ignore[arg-type]
    return RenderedPrompt(as_token_ids(prompt))


def _chat(messages: Messages, tokenizer: Any, options: PrefillOptions) -> RenderedPrompt:
    if not tokenizer.chat_template:
        raise InvalidRequestError("the model has no chat template: give the prompt as text or token ids")

    def as_given(chat: Messages) -> str:
        return str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))

    parts = reads_parts(as_given)

    def rendered(chat: Messages) -> str:
        return as_given(for_template(chat, parts=parts))

    plain, keeps = messages_with_keeps(messages)
    try:
        text = rendered(without_marks(plain, keeps) if keeps else messages)
        text.encode()
        marked = MarkedChat(plain, text, keeps, system="system" in options.keep_by_role)
        chat = marked.contents(rendered(marked.messages))
    except InvalidRequestError:
        raise
    except UnicodeEncodeError as error:
        raise _no_text(error) from None
    except Exception as error:  # templates raise jinja2's errors and, through it, any other
        raise InvalidRequestError(f"the chat template cannot render these messages: {error}") from error
    lone = None
    with suppress(Exception):  # a template that refuses a lone user message: the prompt is read whole
        lone = rendered(frame_messages())
    chat = chat._replace(frame=frame_of(lone, partial(tokenizer.encode, add_special_tokens=False)))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = np.asarray(encoded.offset_mapping, np.int64).reshape(-1, 2)
    return RenderedPrompt(np.asarray(encoded.input_ids, np.int32), text, offsets, chat)


def _no_text(error: UnicodeEncodeError) -> InvalidRequestError:
    """A tokenizer cannot read a lone surrogate."""
    return InvalidRequestError(
        f"the prompt has half of a surrogate pair, {error.object[error.start]!a}, which is no character: read the text "
        "with the encoding that it was written with"
    )


def as_token_ids(prompt: Any) -> Int32Array:
    """Token ids as int32 [M]. Raises InvalidRequestError for anything else."""
    try:
        given = np.asarray(prompt)
    except ValueError:  # lists of different lengths
        given = np.empty((0, 0))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidRequestError(KINDS)
    if given.size and (given.max() > np.iinfo(np.int32).max or given.min() < 0):
        raise InvalidRequestError("token ids are numbers from 0 to 2^31 - 1")
    return given.astype(np.int32)


def reads_parts(rendered: Callable[[Messages], str]) -> bool:
    """Whether a template reads a content that is a list of parts. rendered: renders messages by it."""
    try:
        text = rendered([{"role": "user", "content": [{"type": "text", "text": TEXT}] * 2}])
    except Exception:  # templates raise any
        return False
    return text.count(TEXT) == 2 and f'"{TEXT}"' not in text  # otherwise it is the list as JSON


def for_template(messages: Messages, *, parts: bool) -> list[dict[str, Any]]:
    """Copies of the messages as vLLM's HTTP endpoint gives them to a chat template (`vllm.entrypoints.chat_utils`).

    Their contents are lists of text parts or, unless `parts`, texts in which the parts are lines. A tool's result is
    always a text. Raises InvalidRequestError for a content that is no text.
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
        text = part
        if isinstance(part, Mapping) and (field := PART_FIELDS.get(str(part.get("type", "text")))):
            text = part.get(field)
            if text is None:  # as over HTTP
                continue
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name}.{number} is no text: a pair reads text alone")
        yield text
