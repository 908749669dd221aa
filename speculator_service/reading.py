"""How a prompt is read: what is decided for it once, its windows, and the best of several windows once more.

**Windows.** Short texts share a window with what stands between them (`kv_transfer.windows.WindowPlan`). A longer text
is cut at units. Which unit begins a window depends on the unit's own tokens (content-defined chunking, as in LBFS:
Muthitacharoen et al., 2001), so the same text gives the same windows wherever it stands.

**Read.** Each window is a scored request of its own, `head + window + joint + questions + tail`
(`kv_transfer.layout.Frame`), so the prefix cache serves the next question about the same text. Attention that finds
nothing goes to the first token and to the question, so all scores are compared as they are.

**Second read.** The best units of all windows are read before one question, with the labels that name them, and compete
in one softmax. `selection.passages` ranks by both.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, no_pairs, no_scores
from kv_transfer.limits import check_speculator_length, check_tokens
from kv_transfer.messages import SelectRequest
from kv_transfer.windows import QUESTION_SHARE, WHOLE, Window, WindowPlan, shares
from skim_common.models.info import ModelInfo
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine, TooLongError
from speculator_service.selection.passages import Masses
from speculator_service.selection.select import select

LEAST_HALVED = 256
"""Tokens. A shorter text is too long only with a question that is too long itself."""

INLINE_TOKENS = 8192
"""The work for a longer prompt is done in a thread: for 131,072 tokens in as many units it takes up to a second."""

Result = TypeVar("Result")


async def apart(tokens: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work` returns, for a prompt of so many tokens."""
    return await asyncio.to_thread(work, *arguments) if tokens > INLINE_TOKENS else work(*arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A request with what is decided for its prompt, once.

    request: with `SelectionOptions.for_prompt`, and windows of a size that this speculator can read. droppable: bool
    [M]. plan: of the windows; None: the prompt is read as a whole, or not at all.
    """

    request: SelectRequest
    droppable: npt.NDArray[np.bool_]
    plan: WindowPlan | None

    @classmethod
    def of(cls, request: SelectRequest, info: ModelInfo) -> "Reading":
        """info: of the speculator. Windows need its retrieval heads."""
        droppable, layout, options = request.droppable, request.layout, request.options
        plan = WindowPlan.of(droppable, layout, options.window_tokens) if info.has_head_profile else None
        options = options.for_prompt(windows=plan is not None)
        if plan is not None and layout.frame is not None:
            # With room for the longest question: windows and their cache do not depend on what is asked.
            room = min(info.max_model_len, info.max_position) - layout.frame.size
            most = int(room / (WHOLE + 1 / QUESTION_SHARE))
            if most < options.window_tokens:
                options = options.model_copy(update={"window_tokens": max(1, most)})
                plan = WindowPlan.of(droppable, layout, options.window_tokens)
        if options.read != "windows" or options.selector == "lexical":
            plan = None
        return cls(replace(request, options=options), droppable, plan)

    @property
    def is_lexical(self) -> bool:
        return self.request.options.selector == "lexical"

    def check(self, info: ModelInfo) -> None:
        """Raise InvalidRequestError unless the speculator can take the prompt and, if it reads it whole, its length."""
        options = self.request.options
        check_tokens(self.request.token_ids, info.vocab_size)
        if self.plan is None and not self.is_lexical:
            check_speculator_length(self.request.size, options.tokens_ahead, info)


def windows_of(token_ids: Int32Array, plan: WindowPlan, starts: npt.NDArray[np.integer]) -> list[Window]:
    """The windows of a prompt [M]: they hold every token of the plan's parts once, in the order of the text. starts:
    int [U], the first tokens of the units, from 0. A unit that is longer than a window is one.
    """
    windows: list[Window] = []
    for first, end in plan.parts:
        if end - first <= plan.largest:
            windows.append((first, end))
            continue
        inside = starts[np.searchsorted(starts, first, "right") : np.searchsorted(starts, end, "left")]
        borders = np.concatenate([[first], inside, [end]]).astype(np.int64)
        windows += pairwise(_cuts(token_ids, borders, plan))
    return windows


def _cuts(token_ids: Int32Array, borders: npt.NDArray[np.int64], plan: WindowPlan) -> list[int]:
    """The borders of the windows of one text. borders: those of its units. Among the units that could begin the next
    window, the one with the smallest hash does."""
    cuts = [int(borders[0])]
    hashes: dict[int, bytes] = {}

    def hashed(place: int) -> bytes:
        if place not in hashes:
            unit = token_ids[borders[place] : borders[place + 1]]
            hashes[place] = blake2b(unit.tobytes(), digest_size=8).digest()
        return hashes[place]

    while borders[-1] - cuts[-1] > plan.size:
        low = int(np.searchsorted(borders, cuts[-1] + plan.least, "left"))
        high = int(np.searchsorted(borders, cuts[-1] + plan.size, "right"))
        candidates = range(low, min(high, borders.size - 1))
        place = min(candidates, key=hashed, default=low)  # none: one unit has all these places
        if place >= borders.size - 1:
            break
        cuts.append(int(borders[place]))
    return [*cuts, int(borders[-1])]


async def read_in_windows(engine: SpeculatorEngine, reading: Reading) -> Scores:
    """The scores of the prompt [M]: 0 for what may not be dropped. Cancelling this call, and a window that fails, end
    all windows. Raises as `SpeculatorEngine.score`.
    """
    began, request, plan = time.perf_counter(), reading.request, reading.plan
    assert plan is not None
    starts = request.layout.unit_starts(request.size, request.options)
    windows = await apart(request.size, windows_of, request.token_ids, plan, starts)
    texts = {f".window{start}": request.token_ids[start:end] for start, end in windows}
    scores_of_each = await _read_texts(engine, request, texts)
    importance = np.zeros(request.size, np.float32)
    for (start, end), scores in zip(windows, scores_of_each, strict=True):
        importance[start:end] = scores.importance
    importance[~reading.droppable] = 0
    queue = min((scores.timings.get("queue", 0.0) for scores in scores_of_each), default=0.0)
    timings = {"queue": queue, "speculate": max(0.0, 1e3 * (time.perf_counter() - began) - queue)}
    return Scores(importance, [], timings, sum(scores.cached_tokens for scores in scores_of_each))


async def _read_texts(engine: SpeculatorEngine, request: SelectRequest, texts: dict[str, Int32Array]) -> list[Scores]:
    """The scores of each text, which is read as a short prompt with the questions of `request` behind it; in halves if
    it is too long in the speculator's own tokens. texts: int32 [n], by what is added to the request's id."""
    questions = _questions(request)
    tasks = [asyncio.create_task(_read(engine, request, name, text, questions)) for name, text in texts.items()]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _read(
    engine: SpeculatorEngine, request: SelectRequest, name: str, text: Int32Array, questions: Sequence[Int32Array]
) -> Scores:
    frame = request.layout.frame
    assert frame is not None
    parts, spans, begin = [frame.head, text], [], frame.head.size
    size = begin + text.size
    for question in questions:
        parts += [frame.joint, question]
        size += frame.joint.size + question.size
        spans.append((size - question.size, size))
    token_ids, salt = np.concatenate([*parts, frame.tail]).astype(np.int32), request.cache_salt
    asked = ScoreRequest(request.request_id + name, token_ids, request.options, salt, questions=tuple(spans))
    try:
        scores = await engine.score(asked)
        return replace(scores, importance=scores.importance[begin : begin + text.size], look_ahead_tokens=[])
    except TooLongError:
        if text.size < LEAST_HALVED:
            raise
    first, second = [
        await _read(engine, request, f"{name}.{number}", half, questions)
        for number, half in enumerate((text[: text.size // 2], text[text.size // 2 :]))
    ]
    importance = np.concatenate([first.importance, second.importance])
    return replace(first, importance=importance, cached_tokens=first.cached_tokens + second.cached_tokens)


def _questions(request: SelectRequest) -> list[Int32Array]:
    """The tokens of each question. They share the room for the questions; of a long one, as many tokens from its
    beginning as from its end."""
    layout, room = request.layout, request.options.window_tokens // QUESTION_SHARE
    assert layout.frame is not None
    room -= (len(layout.questions) - 1) * layout.frame.joint.size
    parts = [request.token_ids[first:end] for first, end in layout.questions.tolist()]
    sizes = shares([part.size for part in parts], room)
    return [
        np.concatenate([part[: size - size // 2], part[part.size - size // 2 :]])
        for part, size in zip(parts, sizes, strict=True)
    ]


async def read_again(engine: SpeculatorEngine, reading: Reading, importance: Float32Array) -> Masses | None:
    """What a second read finds; None if there is none. importance: by passages (`selection.passages`), float32 [M].
    Raises as `SpeculatorEngine.score`."""
    request, plan = reading.request, reading.plan
    if request.options.read_again == "off" or plan is None:
        return None
    room = min(engine.info.max_model_len, engine.info.max_position) - plan.around
    chosen = await apart(request.size, best_tokens, reading, importance, min(plan.tokens_again, room))
    if not chosen.size:
        return None
    [scores] = await _read_texts(engine, request, {".again": request.token_ids[chosen]})
    masses, read = np.zeros_like(importance), np.zeros(importance.size, bool)
    masses[chosen], read[chosen] = scores.importance, True
    return Masses(masses, read)


def best_tokens(reading: Reading, importance: Float32Array, most: int) -> Int32Array:
    """The tokens of the best units and of their labels, of those that may be dropped: at most `most`. int32 [K],
    ascending."""
    request, droppable = reading.request, reading.droppable
    if most < 1 or not importance[droppable].any():
        return np.zeros(0, np.int32)
    share = most / int(droppable.sum())
    options = request.options.model_copy(update={"keep_rate": min(1.0, share), "coverage": None, "min_keep": share})
    kept, _ = select(importance, options, replace(request.layout, rate_spans=no_pairs(), rates=no_scores()))
    return kept[droppable[kept]][:most].astype(np.int32)
