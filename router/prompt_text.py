"""A prompt's text, cut into the texts of its tokens, and where a chat's messages are in it."""

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.errors import InvalidRequestError, ModelError
from kv_transfer.messages import Int32Array
from router.marks import CharSpan
from speculator_service.translation.token_text import TokenText

UNKNOWN = b"\xef\xbf\xbd"
"""The text of a token id that is not in the vocabulary: U+FFFD in UTF-8."""


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """The content of one message of a chat: its role and its half-open token span."""

    role: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class PromptText:
    """The text of a prompt of M tokens. Token i is text[cuts[i]:cuts[i + 1]].

    text: what the model reads, with the chat template. Bytes that are not UTF-8 are U+FFFD. cuts: int64 [M + 1], from 0
    to len(text), in code points, never falling; a character of several tokens belongs to the last of them. messages:
    of a chat, those whose contents are found in the text; empty for a raw prompt.
    """

    text: str
    cuts: npt.NDArray[np.int64]
    messages: Sequence[MessageSpan] = ()

    @classmethod
    def of(
        cls, token_ids: Int32Array, tokens: TokenText, conversation: Sequence[Mapping[str, Any]] | None = None
    ) -> "PromptText":
        """The text of `token_ids` [M]. conversation: the chat's messages (role, content); None for a raw prompt."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        known = len(tokens.pieces)
        parts = [decoder.decode(tokens.pieces[i] if i < known else UNKNOWN) for i in token_ids.tolist()]
        parts[-1] += decoder.decode(b"", final=True)
        text, cuts = "".join(parts), np.cumsum([0, *map(len, parts)])
        return cls(text, cuts, list(_messages(text, cuts, conversation or ())))

    @classmethod
    def from_json(cls, data: Mapping[str, Any], prompt_tokens: int) -> "PromptText":
        """What `as_json` gave. Raises InvalidRequestError if it does not fit a prompt of this length."""
        try:
            text, cuts = str(data["text"]), np.asarray(data["cuts"], np.int64)
            messages = [MessageSpan(str(m["role"]), int(m["start"]), int(m["end"])) for m in data["messages"]]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InvalidRequestError("the prompt's text has not the form that the explain view gives") from None
        rising = cuts.shape == (prompt_tokens + 1,) and bool((np.diff(cuts) >= 0).all())
        if not rising or cuts[0] != 0 or cuts[-1] != len(text):
            raise InvalidRequestError(f"the prompt's text does not fit the selection's {prompt_tokens} tokens")
        return cls(text, cuts, messages)

    def as_json(self) -> dict[str, Any]:
        """JSON values of the fields."""
        messages = [{"role": m.role, "start": m.start, "end": m.end} for m in self.messages]
        return {"text": self.text, "cuts": self.cuts.tolist(), "messages": messages}


def read_token_text(model: str) -> TokenText:
    """The texts of a model's tokens. model: a folder or a hub name. Raises ModelError if its tokenizer has none."""
    try:
        return TokenText.of(model)
    except ModelError as error:
        raise ModelError(f"the explain view cannot show the text of this model's tokens: {error}") from None


def _messages(
    text: str, cuts: npt.NDArray[np.int64], conversation: Sequence[Mapping[str, Any]]
) -> Iterator[MessageSpan]:
    """The messages whose contents are found, each from its first part to its last."""
    places: dict[int, tuple[int, int]] = {}
    for number, place in _content_places(text, conversation):
        if place is not None:
            first, _ = places.get(number, place)
            places[number] = (first, place[1])
    for number, (first, last) in places.items():
        start = int(np.searchsorted(cuts, first, "right")) - 1
        end = int(np.searchsorted(cuts, last, "left"))
        yield MessageSpan(str(conversation[number].get("role", "")), start, end)


def _content_places(text: str, messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, CharSpan | None]]:
    """Of each text part of each message, the message's number and the part's place in `text`, the rendered chat.

    None for a part that is missing or ambiguous.
    """
    parts = [(i, part) for i, message in enumerate(messages) for part in _texts(message.get("content"))]
    places = _places(text, [part for _, part in parts])
    return [(i, place) for (i, _), place in zip(parts, places, strict=True)]


def _places(text: str, parts: Sequence[str]) -> list[CharSpan | None]:
    """The place of each of `parts` in `text`, in this order; None for a part that is missing or ambiguous.

    A part's place is certain if the search from the left and the search from the right find the same one.
    """
    leftmost, cursor = [], 0
    for part in parts:
        leftmost.append(text.find(part, cursor))
        if leftmost[-1] >= 0:
            cursor = leftmost[-1] + len(part)
    rightmost, cursor = [], len(text)
    for part in reversed(parts):
        rightmost.append(text.rfind(part, 0, cursor))
        if rightmost[-1] >= 0:
            cursor = rightmost[-1]
    places = zip(leftmost, reversed(rightmost), parts, strict=True)
    return [(left, left + len(part)) if left == right >= 0 else None for left, right, part in places]


def _texts(content: Any) -> Iterable[str]:
    """The text parts of a message's content, stripped, as most templates write them."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        text = part if isinstance(part, str) else part.get("text")
        if isinstance(text, str) and text.strip():
            yield text.strip()
