"""An answer of the target in the speculator's tokens, translated as it grows."""

import numpy as np

from kv_transfer.arrays import Int32Array, no_numbers
from speculator_service.translation.translator import Translator, last_text, whole

SETTLED_AFTER = 64
"""An answer's tokens are translated again with each call until so many follow; a tokenizer can join the last ones."""


class AnswerTranslation:
    """The answer of one session. Text that is translated for good is not read again, so a call costs few tokens."""

    def __init__(self, translator: Translator, prompt_end: bytes) -> None:
        """prompt_end: the last text of the prompt."""
        self._translator, self._prompt_end = translator, prompt_end
        self._settled: Int32Array = no_numbers()
        self._settled_ids: list[int] = []
        self._settled_end = last_text(prompt_end)

    def read(self, answer: Int32Array) -> tuple[Int32Array, bytes, bytes] | None:
        """The answer [A] in the speculator's tokens, the text before the next token, and its incomplete last bytes.

        The tokens do not hold the incomplete bytes; the text does. None if the answer is not valid UTF-8: no drafts.
        """
        if not np.array_equal(answer[: self._settled.size], self._settled):
            self._settle(no_numbers(), [], self._prompt_end)
        if answer.size - self._settled.size >= 2 * SETTLED_AFTER:
            self._advance(answer[: answer.size - SETTLED_AFTER])
        text = self._translator.text(answer[self._settled.size :])
        shown = whole(text)
        partial = text[len(shown) :]
        if len(partial) > 3:
            return None
        ids = [*self._settled_ids, *self._translator.answer(self._settled_end, shown)]
        return np.array(ids, np.int32), self._settled_end + text, partial

    def _advance(self, answer: Int32Array) -> None:
        """Settle `answer` up to its last token that begins a word, if there is one."""
        settled, translator = self._settled.size, self._translator
        for end in range(answer.size - 1, settled, -1):
            if translator.text(answer[end : end + 1])[:1].isspace():
                text = translator.text(answer[settled:end])
                if whole(text) == text:
                    ids = translator.answer(self._settled_end, text)
                    self._settle(answer[:end], self._settled_ids + ids, self._settled_end + text)
                return

    def _settle(self, answer: Int32Array, ids: list[int], end: bytes) -> None:
        self._settled, self._settled_ids, self._settled_end = answer, ids, last_text(end)
