"""Control tokens in the texts of messages: they become text, are refused, or stay what the tokenizer makes of them.

A chat template writes control tokens (`<|im_end|>`) between messages. A tokenizer makes the same tokens of a message's
text that looks like them. To undo that, the part of the prompt around such a token is encoded again by a copy of the
tokenizer that knows no control tokens. A part ends at the template's own control tokens. That is exact if a tokenizer
encodes what stands between two control tokens as if it stood alone, which `ControlTokens` tries out at its start.
"""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Literal

import numpy as np
import re2
from tokenizers import Tokenizer

from kv_transfer.arrays import mask_of
from router.prompt.contents import ChatContents, Messages, texts_of
from router.prompt.markers import CharSpan
from router.prompt.protected_spans import char_ranges, tokens_touched_by_each
from skim_common.errors import InvalidRequestError

Handling = Literal["text", "refuse", "allow"]

_SAMPLES = ("a", " a", "a ", "\n a", "A b")
_HINT = "send it without them, or as a raw prompt to /v1/completions"


class ControlTokens:
    """The control tokens of a tokenizer. backend: of a fast tokenizer. handling: of those in texts."""

    def __init__(self, backend: Tokenizer, handling: Handling) -> None:
        special = {number: token for number, token in backend.get_added_tokens_decoder().items() if token.special}
        self._ids, self._refuses = [*special], handling == "refuse"
        names = [re2.escape(token.content) for token in special.values()]
        self._pattern = re2.compile("|".join(names)) if names and handling != "allow" else None
        self._plain = Tokenizer.from_str(backend.to_str())
        self._plain.encode_special_tokens = True
        self._exact = all(_stands_alone(backend, self._plain, token.content) for token in special.values())

    def in_chat(self, messages: Messages) -> bool:
        """Whether a text of the messages has control tokens to be made text. Raises InvalidRequestError if refused."""
        if self._pattern is None or not any(
            self._pattern.search("".join(texts_of(message)))  # a token may begin in one text and end in the next
            for message in messages
        ):
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
        places = [*filter(None, tokens_touched_by_each(spans, char_ranges(offsets)))]
        special, in_content = np.isin(ids, self._ids), mask_of(places, len(ids))
        own, borders = special & in_content, np.flatnonzero(special & ~in_content).tolist()
        new_ids: list[int] = []
        new_offsets: list[CharSpan] = []
        for first, last in pairwise([-1, *borders, len(ids)]):
            if own[first + 1 : last].any():
                start = offsets[first][1] if first >= 0 else 0
                part = text[start : offsets[last][0] if last < len(ids) else len(text)]
                encoded = self._plain.encode(part, add_special_tokens=False)
                new_ids += encoded.ids
                new_offsets += [(start + a, start + b) for a, b in encoded.offsets]
            else:
                new_ids += ids[first + 1 : last]
                new_offsets += offsets[first + 1 : last]
            new_ids += ids[last : last + 1]
            new_offsets += offsets[last : last + 1]
        return new_ids, new_offsets


def _stands_alone(backend: Tokenizer, plain: Tokenizer, token: str) -> bool:
    """Whether text is encoded on each side of `token` as if it stood alone, and without control tokens alike."""
    number = backend.token_to_id(token)
    parts = {part: plain.encode(part, add_special_tokens=False).ids for part in _SAMPLES}
    return all(
        backend.encode(before + token + after, add_special_tokens=False).ids == [*parts[before], number, *parts[after]]
        for before, after in product(_SAMPLES, repeat=2)
    )
