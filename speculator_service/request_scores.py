"""The scores of a request: the speculator's attention, the words shared with the question (BM25), or their sum."""

import time
from dataclasses import replace

import torch

from kv_transfer.messages import SelectRequest
from skim_common.errors import InvalidRequestError, SkimError
from speculator_service.apart import apart
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine
from speculator_service.reading import read_again, read_in_windows, reads_in_windows
from speculator_service.scoring.lexical import lexical_importance, with_lexical
from speculator_service.scoring.passages import Masses, passage_importance


async def scores_of(engine: SpeculatorEngine, request: SelectRequest, *, keep_session: bool = False) -> Scores:
    """The scores of the prompt [M] by the request's options.

    keep_session: as in `SpeculatorEngine.score`.

    Words are in the sum where the layout has them: with retrieval heads by passages. Raises as
    `SpeculatorEngine.score`, InvalidRequestError for a lexical selection without words, and SkimError for scores that
    do not fit the prompt.
    """
    options, layout = request.options, request.layout
    has_words = options.granularity == "text" and layout.words.size > 0
    asks = has_words and len(layout.questions) > 0
    if options.selector == "lexical":
        if not asks:
            raise InvalidRequestError(
                "speculative_prefill.selector lexical needs granularity text and a prompt of text with a question: send"
                " such a prompt, or set the selector to speculator"
            )
        return Scores(torch.from_numpy(lexical_importance(layout, request.size)), [], {"queue": 0.0, "speculate": 0.0})
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
                questions=layout.final_questions(request.droppable),
            )
        )
    if scores.importance.shape != request.token_ids.shape:
        shapes = f"{tuple(scores.importance.shape)} for a prompt of {request.token_ids.shape}"
        raise SkimError(f"the speculator's scores do not fit the prompt: {shapes}")
    if options.scoring == "heads" and has_words:
        return await _by_passages(engine, request, scores)
    if not asks:
        return scores
    attention, words = scores.importance.to("cpu", torch.float32).numpy(), lexical_importance(layout, request.size)
    return replace(scores, importance=torch.from_numpy(with_lexical(attention, words, request.droppable)))


async def _by_passages(engine: SpeculatorEngine, request: SelectRequest, scores: Scores) -> Scores:
    """The sum of heads and words by passages, after a second read of what several windows rank highest."""
    first = Masses(scores.importance.to("cpu", torch.float32).numpy(), request.droppable)
    found = await apart(request.size, passage_importance, first, request.layout)
    timings, began = dict(scores.timings), time.perf_counter()
    if reads_in_windows(engine, request) and (again := await read_again(engine, request, found)) is not None:
        found = await apart(request.size, passage_importance, first, request.layout, again)
        timings["speculate"] = timings.get("speculate", 0.0) + 1e3 * (time.perf_counter() - began)
    return replace(scores, importance=torch.from_numpy(found), timings=timings)
