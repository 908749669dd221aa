"""A speculator engine in the tokens of a target with another tokenizer.

The engine below reads the text of a prompt in its own tokens. Its importance is carried back through the characters
that the tokens share. A span is a half-open range [start, end) of characters; spans of one tokenizer may share a
character (byte-level tokens inside it), may be empty, and may leave characters out.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, Span
from skim_common.models.info import ModelInfo, inspect_model, same_tokens
from skim_common.models.source import is_within_reach
from skim_common.models.token_text import Spans, TokenText
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine, TooLongError

logger = logging.getLogger(__name__)

Float64Array = npt.NDArray[np.float64]

_INVALID = dict.fromkeys(range(0xDC80, 0xDD00), "\N{REPLACEMENT CHARACTER}")
_SURROGATE = 0xD800
_CHARACTERS_OF_1_TO_4_BYTES = np.array([0x80, 0x800, 0x10000])
_TURN = b"\n"


@dataclass(frozen=True, slots=True, eq=False)
class TranslatedPrompt:
    """A prompt of the target in the speculator's tokens.

    ids: int32 [S]. spans, target_spans: the characters of the speculator's tokens [S, 2] and of the target's [M, 2].
    characters: length of the text.
    """

    ids: Int32Array
    spans: Spans
    target_spans: Spans
    characters: int

    def importance(self, importance: npt.ArrayLike) -> Float32Array:
        """The importance of the target's tokens [M], from that of the speculator's tokens [S]."""
        return carried_importance(importance, self.spans, self.target_spans, self.characters).astype(np.float32)

    def own_tokens(self, span: Span) -> Span | None:
        """The speculator's tokens that share a character with these tokens of the target; None for none."""
        first, last = self.target_spans[span[0], 0], self.target_spans[span[1] - 1, 1]
        touched = np.flatnonzero((self.spans[:, 0] < last) & (self.spans[:, 1] > first))
        return (int(touched[0]), int(touched[-1]) + 1) if touched.size else None


class Translator:
    """Reads prompts of one target for one speculator. A special token of the target becomes the speculator's special
    token of the same text, if it has one, else a line break: its text would be ordinary words to the speculator.
    """

    def __init__(self, speculator: TokenText, target: TokenText, info: ModelInfo | None = None) -> None:
        """info: of the target."""
        self.speculator, self.info = speculator, info
        shared = speculator.special.keys() & target.special.keys()
        unshared = {number for text, number in target.special.items() if text not in shared}
        self._read = [_TURN if number in unshared else piece for number, piece in enumerate(target.pieces)]

    def read(self, ids: Int32Array) -> TranslatedPrompt:
        """A prompt of the target's tokens [M], of any ids of its vocabulary."""
        pieces = [self._read[token] for token in ids.tolist()]
        text = text_of(b"".join(pieces))
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
        own, spans = self.speculator.read(readable(text))
        return TranslatedPrompt(own, spans, spans_of_bytes(text, sizes), len(text))


def translation_for(model: str, target: str) -> Translator | None:
    """How the speculator `model` reads for `target`; None if they share a tokenizer.

    A target's folder that is not on this machine counts as one with the same tokenizer; the router then refuses the
    pair if it is not. Raises ModelError for a tokenizer that cannot be translated.
    """
    if not is_within_reach(target):
        logger.warning(
            "the target's folder %s is not on this machine: one tokenizer for both models is assumed", target
        )
        return None
    info = inspect_model(target, engine="tokenizer")
    if same_tokens(inspect_model(model, engine="tokenizer"), info):
        return None
    return Translator(TokenText.of(model), TokenText.of(target), info)


def translated(engine: SpeculatorEngine, translation: Translator | None) -> SpeculatorEngine:
    return engine if translation is None else TranslatingSpeculator(engine, translation)


class TranslatingSpeculator(SpeculatorEngine):
    """An engine with another tokenizer, in the target's tokens. It drafts nothing.

    info: with the target's vocabulary; its limits count the speculator's tokens, so a window that fits by the target's
    tokens can be too long (`TooLongError`).
    """

    supports_drafts = False

    def __init__(self, engine: SpeculatorEngine, translator: Translator) -> None:
        self._engine, self._translator, target = engine, translator, translator.info
        assert target is not None
        self.info = replace(engine.info, vocab_size=target.vocab_size, fingerprint=target.fingerprint)

    async def score(self, request: ScoreRequest) -> Scores:
        """See `SpeculatorEngine.score`."""
        began = perf_counter()
        # The tokenizer releases the GIL: the event loop answers other calls meanwhile.
        reading = await asyncio.to_thread(self._translator.read, request.token_ids)
        tokens, look_ahead = int(reading.ids.size), request.options.tokens_ahead
        if tokens + look_ahead > (limit := min(self._engine.info.max_model_len, self._engine.info.max_position)):
            raise TooLongError(
                f"the prompt has {tokens} tokens in the speculator's own tokenizer and look_ahead is {look_ahead}, but "
                f'the speculator reads at most {limit}; shorten the prompt or send "speculative_prefill": false'
            )
        questions = tuple(filter(None, map(reading.own_tokens, request.questions)))
        own = perf_counter() - began
        scores = await self._engine.score(replace(request, token_ids=reading.ids, questions=questions))
        began = perf_counter()
        importance = reading.importance(scores.importance)
        speculate = scores.timings.get("speculate", 0.0) + 1e3 * (own + perf_counter() - began)
        return Scores(importance, [], {**scores.timings, "speculate": speculate}, scores.cached_tokens)

    async def stats(self) -> dict[str, Any]:
        return await self._engine.stats()

    async def check_health(self) -> None:
        await self._engine.check_health()

    async def sign_of_life(self) -> None:
        await self._engine.sign_of_life()

    def close(self) -> None:
        self._engine.close()


def text_of(data: bytes) -> str:
    """UTF-8 as text. Each byte that is not valid becomes one lone surrogate, so no character is lost or merged."""
    return data.decode("utf-8", "surrogateescape")


def readable(text: str) -> str:
    """`text` of `text_of` with U+FFFD in place of each invalid byte; it has the same length."""
    return text.translate(_INVALID)


def spans_of_bytes(text: str, sizes: npt.NDArray[np.int64]) -> Spans:
    """The characters of `text`, of `text_of`, that each token covers, [T, 2]. sizes: bytes per token, [T].

    A token that begins or ends inside a character covers that character.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    widths = 1 + np.searchsorted(_CHARACTERS_OF_1_TO_4_BYTES, codes, "right")
    widths[codes >> 11 == _SURROGATE >> 11] = 1
    begins = np.cumsum(widths) - widths
    ends = np.cumsum(sizes)
    starts = ends - sizes
    first = np.maximum(np.searchsorted(begins, starts, "right") - 1, 0)
    # An empty token covers nothing, also where it stands inside a character.
    return np.stack([first, np.where(sizes > 0, np.searchsorted(begins, ends, "left"), first)], 1)


def carried_importance(importance: npt.ArrayLike, spans: Spans, to: Spans, characters: int) -> Float64Array:
    """Importance of the tokens with the spans `to` [T, 2], from that of tokens [S] with `spans` [S, 2] of one text.

    A character has the mean importance of the tokens that cover it, a token the mean of its characters. A token without
    a character that others cover gets a value between its neighbours'. Equal scores stay equal.
    """
    values = np.asarray(importance, np.float64)
    total, covered = _added(spans, values, characters), _added(spans, np.ones_like(values), characters)
    of_character = np.divide(total, covered, out=np.zeros(characters), where=covered > 0)
    sums = np.concatenate([[0.0], np.cumsum(of_character)])
    counts = np.concatenate([[0], np.cumsum(covered > 0)])
    shared = counts[to[:, 1]] - counts[to[:, 0]]
    known = shared > 0
    if not known.any():
        return np.full(len(to), values.mean() if values.size else 0.0)
    result = np.divide(sums[to[:, 1]] - sums[to[:, 0]], shared, out=np.zeros(len(to)), where=known)
    places = np.arange(len(to))
    result[~known] = np.interp(places[~known], places[known], result[known])
    # The differences of sums carry rounding errors.
    used = values[spans[:, 1] > spans[:, 0]]
    return np.clip(result, used.min(), used.max())


def _added(spans: Spans, values: Float64Array, characters: int) -> Float64Array:
    """For each character, the sum of the values of the spans that cover it."""
    sizes = spans[:, 1] - spans[:, 0]
    inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = np.repeat(spans[:, 0], sizes) + inside
    return np.bincount(places, np.repeat(values, sizes), characters).astype(np.float64)
