"""The lexical selector: scores by shared words, without a model. Also as an engine, for a pool without a speculator."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

from kv_transfer.arrays import Int32Array, no_numbers
from kv_transfer.messages import KeptPrompt, SelectRequest
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from skim_common.models.info import ModelInfo
from speculator_service.engine import Drafted, ScoreRequest, Scores, SpeculatorEngine
from speculator_service.scoring.lexical import lexical_importance


def score_lexically(request: SelectRequest) -> Scores:
    """The scores of `scoring.lexical`. Without a question, the last `options.protect_last` tokens are the question."""
    began = perf_counter()
    size, options = request.size, request.options
    questions = request.layout.questions.tolist() or [(max(0, size - options.protect_last), size)]
    units, words = request.layout.units if options.granularity == "text" else None, request.layout.words
    if units is not None and words.any():
        found = np.repeat(words, np.diff(units, append=size))
    else:
        found = lexical_importance(request.token_ids, questions, options.chunk_size, units)
    importance = torch.from_numpy(found)
    return Scores(importance, [], {"queue": 0.0, "speculate": 1e3 * (perf_counter() - began)})


class LexicalSpeculator(SpeculatorEngine):
    """An engine without a model, for what serves the lexical selector only. It drafts nothing.

    info: of the model whose token ids it reads; it caches nothing.
    """

    supports_drafts = False

    def __init__(self, info: ModelInfo) -> None:
        self.info = replace(info, cache_tokens=0)
        self._closed = False

    async def score(self, request: ScoreRequest) -> Scores:
        """Raises InvalidRequestError: there is no attention to score with. `score_lexically` needs no engine."""
        raise InvalidRequestError(
            "this deployment has no speculator model: speculative_prefill.selector must be lexical"
        )

    async def open_session(self, session: str, prompt: KeptPrompt, *, cache_salt: str | None = None) -> None:
        """Raises EngineUnavailableError; see `supports_drafts`."""
        raise EngineUnavailableError("the lexical selector has no model and keeps no sessions")

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        """An empty draft."""
        return Drafted(no_numbers())

    async def close_session(self, session: str) -> None:
        """There are no sessions."""

    async def check_health(self) -> None:
        """Raise EngineUnavailableError if the engine was closed."""
        if self._closed:
            raise EngineUnavailableError("the lexical selector was closed")

    def close(self) -> None:
        """See `SpeculatorEngine.close`."""
        self._closed = True
