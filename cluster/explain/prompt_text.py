"""A prompt's text, cut into the texts of its tokens, with the messages of a chat."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router.prompt.rendered import MessageSpan, RenderedPrompt
from skim_common.errors import ModelError
from skim_common.models.token_text import TokenText

UNKNOWN = b"\xef\xbf\xbd"
"""The text of a token id that is not in the vocabulary: U+FFFD in UTF-8."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptText:
    """The text of a prompt of M tokens. Token i is text[cuts[i]:cuts[i + 1]].

    text: what the model reads, with the chat template. Bytes that are not UTF-8 are U+FFFD. cuts: int64 [M + 1], from 0
    to len(text), in code points, never falling; a character of several tokens belongs to the last of them. messages:
    as `RenderedPrompt.message_spans`.
    """

    text: str
    cuts: npt.NDArray[np.int64]
    messages: Sequence[MessageSpan] = ()

    @classmethod
    def of(cls, prompt: RenderedPrompt, tokens: TokenText) -> "PromptText":
        """The text of a prompt. tokens: of its model."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        known = len(tokens.pieces)
        parts = [decoder.decode(tokens.pieces[i] if i < known else UNKNOWN) for i in prompt.token_ids.tolist()]
        parts[-1] += decoder.decode(b"", final=True)
        text, cuts = "".join(parts), np.cumsum([0, *map(len, parts)])
        return cls(text, cuts, prompt.message_spans())


def read_token_text(model: str) -> TokenText:
    """The texts of a model's tokens. model: a folder or a hub name. Raises ModelError if its tokenizer has none."""
    try:
        return TokenText.of(model)
    except ModelError as error:
        raise ModelError(f"the explain view cannot show the text of this model's tokens: {error}") from None
