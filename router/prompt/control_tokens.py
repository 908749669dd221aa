"""Control tokens in the texts of messages: they become text, are refused, or stay what the tokenizer makes of them.

A chat template writes control tokens (`<|im_end|>`) between messages. A tokenizer makes the same tokens of a message's
text that looks like them. To undo that, the part of the prompt around such a token is encoded again by a copy of the
tokenizer that knows no control tokens. A part ends at the template's own control tokens. That is exact if a tokenizer
encodes what stands between two control tokens as if it stood alone, which `ControlTokens` tries out at its start.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import re2
from tokenizers import Tokenizer

from router.prompt.contents import ChatContents
from router.prompt.markers import CharSpan
from skim_common.errors import InvalidRequestError

Handling = Literal["text", "refuse", "allow"]

_SAMPLES = ("a", " a", "a ", "\n a", "A b")
_HINT = "send it without them, or as a raw prompt to /v1/completions"


class ControlTokens:
    """The control tokens of a tokenizer. backend: of a fast tokenizer. handling: of those in texts."""

    def __init__(self, backend: Tokenizer, handling: Handling) -> None:
        special = {number: token for number, token in backend.get_added_tokens_decoder().items() if token.special}
        self._ids, self._refuses = frozenset(special), handling == "refuse"
        names = [re2.escape(token.content) for token in special.values()]
        self._pattern = re2.compile("|".join(names)) if names and handling != "allow" else None
        self._plain = Tokenizer.from_str(backend.to_str())
        self._plain.encode_special_tokens = True
        self._exact = all(_stands_alone(backend, self._plain, token.content) for token in special.values())

    def in_chat(self, messages: Iterable[Mapping[str, Any]]) -> bool:
        """Whether a text of the messages has control tokens to be made text. Raises InvalidRequestError if refused."""
        if self._pattern is None or not any(self._pattern.search(text) for text in map(_text_of, messages)):
            return False
        if self._refuses or not self._exact:
            raise InvalidRequestError(f"a message contains a control token of the model; {_HINT}")
        return True

    def as_text(
        self, text: str, ids: Sequence[int], offsets: Sequence[CharSpan] | None, chat: ChatContents
    ) -> tuple[list[int], list[CharSpan]]:
        """The tokens of a rendered chat and their character ranges in `text`, with those in its contents as text.

        ids, offsets: of the tokenizer. Raises InvalidRequestError if it is not known where the contents are.
        """
        if offsets is None or chat.contents is None or any(content.lost for content in chat.contents):
            raise InvalidRequestError(f"a message contains a control token, and this chat is not mapped; {_HINT}")
        spans = sorted(span for content in chat.contents for span in content.spans)
        starts, ends = [start for start, _ in spans], [*accumulate((end for _, end in spans), max)]

        def in_content(start: int, end: int) -> bool:
            before = bisect_left(starts, end)
            return before > 0 and ends[before - 1] > start

        own = [
            number in self._ids and in_content(start, end) for number, (start, end) in zip(ids, offsets, strict=True)
        ]
        borders = [at for at, number in enumerate(ids) if number in self._ids and not own[at]]
        new_ids: list[int] = []
        new_offsets: list[CharSpan] = []
        for first, last in zip([-1, *borders], [*borders, len(ids)], strict=True):
            if any(own[first + 1 : last]):
                start = offsets[first][1] if first >= 0 else 0
                part = text[start : offsets[last][0] if last < len(ids) else len(text)]
                encoded = self._plain.encode(part, add_special_tokens=False)
                new_ids += encoded.ids
                new_offsets += [(start + a, start + b) for a, b in encoded.offsets]
            else:
                new_ids += ids[first + 1 : last]
                new_offsets += offsets[first + 1 : last]
            if last < len(ids):
                new_ids.append(ids[last])
                new_offsets.append(offsets[last])
        return new_ids, new_offsets


def _stands_alone(backend: Tokenizer, plain: Tokenizer, token: str) -> bool:
    """Whether text is encoded on each side of `token` as if it stood alone, and without control tokens alike."""
    for before in _SAMPLES:
        for after in _SAMPLES:
            whole = backend.encode(before + token + after, add_special_tokens=False).ids
            number = backend.token_to_id(token)
            parts = [plain.encode(part, add_special_tokens=False).ids for part in (before, after)]
            if whole != [*parts[0], number, *parts[1]]:
                return False
    return True


def _text_of(message: Mapping[str, Any]) -> str:
    """The texts of a message one after the other: a control token may begin in one and end in the next."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))
