"""A speculator engine in the tokens of a target with another tokenizer. Everything above it is as with one tokenizer.

Prompts come in the target's tokens. The engine below reads their text in its own tokens. Its importance is
carried back through the characters that the tokens share, so the selection, protected spans and keep rates count
target tokens. It drafts nothing.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from skim_common.models.info import ModelInfo, inspect_model, same_tokens
from skim_common.models.source import is_within_reach
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine, TooLongError
from speculator_service.translation.token_text import TokenText
from speculator_service.translation.translator import Translator

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Translation:
    """How a speculator reads for a target with another tokenizer. target: the facts of the target's model."""

    translator: Translator
    target: ModelInfo


def translation_for(model: str, target: str) -> Translation | None:
    """How the speculator `model` reads for `target`; None if they share a tokenizer.

    model, target: folders or hub names; only configs and tokenizers are read. A target's folder that is not on this
    machine counts as one with the same tokenizer; the router then refuses the pair if it is not.
    Raises ModelError for a tokenizer that cannot be translated.
    """
    if not is_within_reach(target):
        logger.warning(
            "the target's folder %s is not on this machine: one tokenizer for both models is assumed", target
        )
        return None
    info = inspect_model(target, engine="tokenizer")
    if same_tokens(inspect_model(model, engine="tokenizer"), info):
        return None
    return Translation(Translator(TokenText.of(model), TokenText.of(target)), info)


def translated(engine: SpeculatorEngine, translation: Translation | None) -> SpeculatorEngine:
    """The engine in the target's tokens; the engine itself without a translation."""
    return engine if translation is None else TranslatingSpeculator(engine, translation)


class TranslatingSpeculator(SpeculatorEngine):
    """`SpeculatorEngine` in the target's tokens, over an engine with another tokenizer.

    info: the engine's, with the target's vocabulary. Its limits count the speculator's tokens. So a window that fits by
    the target's tokens can be too long (`TooLongError`).
    """

    supports_drafts = False

    def __init__(self, engine: SpeculatorEngine, translation: Translation) -> None:
        self._engine, self._translator = engine, translation.translator
        target = translation.target
        self.info = replace(engine.info, vocab_size=target.vocab_size, fingerprint=target.fingerprint)

    async def score(self, request: ScoreRequest) -> Scores:
        """See `SpeculatorEngine.score`. The time of the translation is part of `speculate`."""
        began = perf_counter()
        # The tokenizer releases the GIL: the event loop answers other calls meanwhile.
        reading = await asyncio.to_thread(self._translator.read, request.token_ids)
        ahead = request.options.tokens_ahead
        self._check_length(int(reading.ids.size), ahead)
        translated = perf_counter() - began
        questions = tuple(filter(None, map(reading.own_tokens, request.questions)))
        scores = await self._engine.score(replace(request, token_ids=reading.ids, questions=questions))
        began = perf_counter()
        importance = torch.from_numpy(reading.importance(scores.importance.numpy()))
        translated += perf_counter() - began
        timings = {**scores.timings, "speculate": scores.timings.get("speculate", 0.0) + 1e3 * translated}
        return Scores(importance, [], timings, scores.cached_tokens)

    def _check_length(self, tokens: int, look_ahead: int) -> None:
        limit = min(self._engine.info.max_model_len, self._engine.info.max_position)
        if tokens + look_ahead > limit:
            raise TooLongError(
                f"the prompt has {tokens} tokens in the speculator's own tokenizer and look_ahead is {look_ahead}, but "
                f'the speculator reads at most {limit}; shorten the prompt or send "speculative_prefill": false'
            )

    async def stats(self) -> dict[str, Any]:
        """See `SpeculatorEngine.stats`."""
        return await self._engine.stats()

    async def check_health(self) -> None:
        """See `SpeculatorEngine.check_health`."""
        await self._engine.check_health()

    async def sign_of_life(self) -> None:
        """See `SpeculatorEngine.sign_of_life`."""
        await self._engine.sign_of_life()

    def close(self) -> None:
        """See `SpeculatorEngine.close`."""
        self._engine.close()
