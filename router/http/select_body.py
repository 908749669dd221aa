"""The body of `POST /v1/select`: what a client asks to be selected from, and the options that act there."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kv_transfer.options import ALWAYS
from router.dispatch.request import Request
from router.options.errors import InvalidOptionError, RefusedError
from router.options.request import DECODE, PREFILL, PolicyOptions, PrefillOptions, clipped
from router.prompt.contents import changed
from router.prompt.keep_fields import KeepFields, messages_with_keeps
from router.prompt.markers import Markers

MOST_TEXTS = 1024

_OF_ANSWERS = (*(name for name in PrefillOptions.model_fields if name not in PolicyOptions.model_fields), "reuse")
"""Options that say whether and how a target reads the kept prompt, or name places in a prompt that no client knows."""
_OF_CHATS = ("keep_by_role", "protect_tools", "keep_short")

Messages = list[dict[str, Any]]


class SelectBody(BaseModel):
    """Either `messages`, or `question` with `text` or `texts`.

    max_tokens_kept: the most tokens that are kept of each text, or of all messages together. scores: the answer has the
    score of each unit. speculative_prefill: as on every endpoint (the middleware reads it).
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    messages: Messages | None = Field(None, min_length=1)
    text: str | None = None
    texts: list[str] | None = Field(None, min_length=1, max_length=MOST_TEXTS)
    question: str | None = None
    max_tokens_kept: int | None = Field(None, ge=1)
    scores: bool = False
    speculative_prefill: Any = None

    def check(self, max_bytes: int) -> None:
        """Raise InvalidOptionError for a body that does not fit, and RefusedError if its question, which is read with
        each text, makes more than `max_bytes` of it."""
        if unknown := next(iter(self.model_extra or ()), None):
            name, known = clipped(unknown), ", ".join(type(self).model_fields)
            raise InvalidOptionError(f"unknown field {name}; the fields are {known}", name)
        given = [name for name in ("messages", "text", "texts") if getattr(self, name) is not None]
        if len(given) != 1:
            named = " and ".join(given) or "none of them"
            raise InvalidOptionError(
                f"give one of messages, text and texts, not {named}", given[-1] if given else "text"
            )
        if self.messages is not None:
            if self.question is not None:
                raise InvalidOptionError("question goes with text or texts; messages ask by themselves", "question")
            return
        texts = {"text": self.text} if self.texts is None else {f"texts.{i}": one for i, one in enumerate(self.texts)}
        for name, text in {**texts, "question": self.question}.items():
            if not (text and text.strip()):
                raise InvalidOptionError(f"{name} is missing or blank; give it some text", name)
        size = sum(map(_bytes_of, texts.values())) + len(texts) * _bytes_of(self.question)
        if size > max_bytes:
            message = (
                f"the question is read with each of the {len(texts)} texts, together {size} bytes, but this server's "
                f"limit is {max_bytes}; shorten the question or send fewer texts"
            )
            raise RefusedError(413, "RequestTooLargeError", message)

    def request(self, request: Request, max_bytes: int) -> tuple[Request, Iterator[Messages]]:
        """The call with the options of a selection, and the chats to render, one for each text, with the marks of
        their `keep` fields. Each is made when it is asked for, so that a question is not held with all texts at once.

        request: as the middleware read it. Raises InvalidRequestError, and RefusedError as `check`.
        """
        self.check(max_bytes)
        options = request.options
        if request.decode_is_explicit:
            raise InvalidOptionError(f"{DECODE.name} has no effect on this endpoint; leave it out", DECODE.name)
        wrong = (*_OF_ANSWERS, *(() if self.messages is not None else _OF_CHATS))
        if name := next((name for name in wrong if name in options.model_fields_set), None):
            name = f"{PREFILL.name}.{name}"
            what = "this endpoint" if self.messages is not None else "a text on this endpoint"
            raise InvalidOptionError(f"{name} has no effect on {what}; leave it out", name)
        own: dict[str, Any] = {"enabled": ALWAYS, "min_prompt_tokens": 1, "lossy": "allow", "reuse": "off"}
        if self.messages is None and "protect_last" not in options.model_fields_set:
            own["protect_last"] = 1  # the prompt ends with the question, which is kept
        if self.messages is not None:
            marked, keeps = messages_with_keeps(self.messages)
            chats = iter([marked])
        else:
            texts, question = self.texts or [self.text or ""], self.question or ""
            keeps = KeepFields(Markers(question, *texts), ["auto", "always"], ["text", "question"])
            chats = _chats(texts, question, keeps.marks)
        return replace(request, options=options.model_copy(update=own), keep_fields=keeps), chats


def _bytes_of(text: str | None) -> int:
    return len((text or "").encode())


def _chats(texts: list[str], question: str, marks: Markers) -> Iterator[Messages]:
    """A text and its question are two parts of one user turn, so that neither is searched for the other."""
    asked = {"type": "text", "text": marks.around(1, question)}
    for text in texts:
        yield [{"role": "user", "content": [{"type": "text", "text": marks.around(0, text)}, asked]}]


def texts_of(messages: Messages) -> list[tuple[int, int, str]]:
    """The texts of messages in their order, each with the index of its message and its index among that one's texts."""
    found: list[tuple[int, int, str]] = []
    counts = Counter[int]()

    def note(message: int, text: str) -> str:
        found.append((message, counts[message], text))
        counts[message] += 1
        return text

    changed(messages, note)
    return found
