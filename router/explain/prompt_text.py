"""A prompt's text, cut into the texts of its tokens, and where a chat's messages are in it."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array
from router.prompt.contents import ChatContents
from router.prompt.markers import CharSpan
from router.prompt.protected_spans import Offsets, char_ranges, tokens_touched_by_each
from skim_common.errors import InvalidRequestError, ModelError
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
    as `message_spans`.
    """

    text: str
    cuts: npt.NDArray[np.int64]
    messages: Sequence[MessageSpan] = ()

    @classmethod
    def of(cls, token_ids: Int32Array, tokens: TokenText, messages: Sequence[MessageSpan] = ()) -> "PromptText":
        """The text of `token_ids` [M]. messages: as `message_spans`."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        known = len(tokens.pieces)
        parts = [decoder.decode(tokens.pieces[i] if i < known else UNKNOWN) for i in token_ids.tolist()]
        parts[-1] += decoder.decode(b"", final=True)
        text, cuts = "".join(parts), np.cumsum([0, *map(len, parts)])
        return cls(text, cuts, messages)

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


def message_spans(chat: ChatContents | None, offsets: Offsets | None) -> list[MessageSpan]:
    """The messages of a chat whose place is known, each from its first content to its last; not the system's.

    chat: None for a raw prompt, which has none. offsets: each token's character range in the rendered chat. The last
    place of a content counts, if the template repeats it.
    """
    if chat is None or chat.contents is None or offsets is None:
        return []
    ranges, places = char_ranges(offsets), dict[int, CharSpan]()
    for content in chat.contents:
        for start, end in content.spans[-1:]:
            first, last = places.get(content.message, (start, end))
            places[content.message] = min(first, start), max(last, end)
    touched = tokens_touched_by_each(list(places.values()), ranges)
    found = ((chat.roles[number], span) for number, span in zip(places, touched, strict=True))
    return sorted((MessageSpan(role, *span) for role, span in found if span), key=lambda message: message.start)
