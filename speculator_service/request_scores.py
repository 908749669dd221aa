"""The scores of a request: the speculator's attention, the words shared with the question (BM25), or their sum."""

import asyncio
import time
from dataclasses import replace

import torch

from kv_transfer.messages import SelectRequest
from skim_common.errors import SkimError
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine
from speculator_service.lexical_engine import score_lexically
from speculator_service.reading.again import read_again
from speculator_service.reading.read import read_in_windows, reads_in_windows
from speculator_service.scoring.lexical import with_lexical
from speculator_service.scoring.passages import Masses, passage_importance


async def scores_of(engine: SpeculatorEngine, request: SelectRequest, *, keep_session: bool = False) -> Scores:
    """The scores of the prompt [M] by the request's options.

    keep_session: as in `SpeculatorEngine.score`.

    BM25 is in the sum if the options say so and the question is known. Retrieval heads are summed with it by passages.
    Raises as `SpeculatorEngine.score`, and SkimError for scores that do not fit the prompt.
    """
    options = request.options
    if options.selector == "lexical":
        return await asyncio.to_thread(score_lexically, request)
    by_passages = options.scoring == "heads" and options.granularity == "text" and request.layout.words.size > 0
    adds_lexical = len(request.layout.questions) > 0 and options.bm25_weight > 0 and not by_passages
    # A worker thread looks the words up while the engine reads.
    lexical = asyncio.create_task(asyncio.to_thread(score_lexically, request)) if adds_lexical else None
    if reads_in_windows(engine, request):
        scores = await read_in_windows(engine, request)
    else:
        scores = await engine.score(
            ScoreRequest(
                request.request_id,
                request.token_ids,
                options,
                cache_salt=request.cache_salt,
                keep_session=keep_session,
                questions=request.layout.final_questions(request.droppable),
            )
        )
    if scores.importance.shape != request.token_ids.shape:
        shapes = f"{tuple(scores.importance.shape)} for a prompt of {request.token_ids.shape}"
        raise SkimError(f"the speculator's scores do not fit the prompt: {shapes}")
    if by_passages:
        return await _by_passages(engine, request, scores)
    if lexical is None:
        return scores
    attention, words = scores.importance.to("cpu", torch.float32).numpy(), (await lexical).importance.numpy()
    return replace(
        scores, importance=torch.from_numpy(with_lexical(attention, words, options.bm25_weight, request.droppable))
    )


async def _by_passages(engine: SpeculatorEngine, request: SelectRequest, scores: Scores) -> Scores:
    """The sum of heads and words by passages, after a second read of what several windows rank highest."""
    first, weight = (
        Masses(scores.importance.to("cpu", torch.float32).numpy(), request.droppable),
        request.options.bm25_weight,
    )
    found = await asyncio.to_thread(passage_importance, first, request.layout, weight)
    timings, began = dict(scores.timings), time.perf_counter()
    if reads_in_windows(engine, request) and (again := await read_again(engine, request, found)) is not None:
        found = await asyncio.to_thread(passage_importance, first, request.layout, weight, again)
        timings["speculate"] = timings.get("speculate", 0.0) + 1e3 * (time.perf_counter() - began)
    return replace(scores, importance=torch.from_numpy(found), timings=timings)
