"""All selectors by name: each gives the kept prompt of a sample at a keep rate, or the dense prompt.

The rules are those of serving. For all selectors alike, the router decides whether a prompt is compressed and which
tokens are protected (`skim.prompts`). A served selector is serving's own selection with other options. A
baseline keeps the protected tokens too, and fills the rest of the speculator's budget with the chunks that it prefers;
of the last chunk it may keep a part.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.selection import rankings
from evals.selection.rankings import Preference
from evals.tasks.registry import Sample
from kv_transfer.arrays import Int32Array
from kv_transfer.layout import TextLayout
from kv_transfer.messages import KeptPrompt, Selection, SelectRequest
from kv_transfer.options import AUTO, SelectionOptions
from router.decision.guard import needs_whole_text
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.engines import PairEngines

DENSE = "dense"
SPECULATOR, NO_LOOK_AHEAD = "speculator", "look-ahead 0"
GUARDED = "auto + guard"
GUARDED_WINDOWS, GUARDED_WHOLE = "auto + guard, windows", "auto + guard, whole"
GUARDED_LONG, GUARDED_LESS = f"{GUARDED_WINDOWS}, coverage 0.4", f"{GUARDED_WINDOWS}, coverage 0.3"
HEADS: dict[str, Any] = {"scoring": "heads"}
WINDOWS: dict[str, Any] = {"scoring": "heads", "read": "windows"}
RENUMBERED, WRONG_ORIGIN = "renumbered", "wrong origin"


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a selector may use. layout: of the prompt. options: with the keep rate. chosen: the speculator's selection
    with these options; its size is the budget of the baselines. salt: prompts with different salts share no cached KV;
    None shares all.
    """

    sample: Sample
    prompt: RenderedPrompt
    layout: TextLayout
    options: PrefillOptions
    pair: PairEngines
    chosen: KeptPrompt | None = None
    salt: str | None = None

    def selection_options(self, **changes: Any) -> SelectionOptions:
        """The options of serving's selection. changes: of them."""
        return self.options.selection.model_copy(update={"reuse": "off", **changes})

    async def select(self, **changes: Any) -> KeptPrompt:
        """Serving's selection. changes: of the options."""
        return (await self.selected(self.selection_options(**changes))).kept

    async def selected(self, options: SelectionOptions) -> Selection:
        """The speculator's answer to a request with these options."""
        name = self.pair.name("select")
        request = SelectRequest(name, self.prompt.token_ids, options, self.layout, cache_salt=self.salt)
        return await self.pair.select(request)


def default_options(reading: Reading, **changes: Any) -> PrefillOptions:
    """The prompt's options with `keep_rate: auto` as the deployment's default. changes: of the other options."""
    return reading.options.model_copy(update={"keep_rate": AUTO, "reuse": "off", **changes})


async def keep_guarded(reading: Reading, **changes: Any) -> KeptPrompt:
    """The kept prompt with `keep_rate: auto` as the deployment's default; the dense prompt where the guard wants it.

    changes: of the other options.
    """
    prompt = reading.prompt
    if needs_whole_text(prompt.task_text(reading.layout)):
        return KeptPrompt.dense(prompt.token_ids)
    return (await reading.selected(default_options(reading, **changes).selection)).kept


Keep = Callable[[Reading], Awaitable[KeptPrompt]]


@dataclass(frozen=True, slots=True)
class Selector:
    """what: what it keeps, for the results page. keep: does it. served: the options of a served selector, which an
    endpoint can run too; None for others. follows: it needs `Reading.chosen`. rated: it obeys the keep rate; one that
    chooses the rate itself runs once. vllm: only the vLLM target can run it.
    """

    what: str
    keep: Keep
    served: Mapping[str, Any] | None = None
    follows: bool = False
    rated: bool = True
    vllm: bool = False


def served(what: str, **options: Any) -> Selector:
    """Serving's selection with other options. One that sets the keep rate runs once."""
    rated = "keep_rate" not in options
    return Selector(what, lambda reading: reading.select(**options), served=options, rated=rated)


def baseline(what: str, rank: Callable[[Sample, RenderedPrompt, int], Preference]) -> Selector:
    """A ranking of chunks that fills the speculator's budget."""

    async def keep(reading: Reading) -> KeptPrompt:
        prompt, options = reading.prompt, reading.options.selection
        preference = rank(reading.sample, prompt, options.chunk_size)
        always = reading.layout.fixed(prompt.size, options.protect_last)
        at = fill(preference, always, _budget(reading), options.chunk_size)
        return KeptPrompt(prompt.token_ids[at], at, prompt.token_ids.size)

    return Selector(what, keep, follows=True)


async def _renumbered(reading: Reading) -> KeptPrompt:
    assert reading.chosen is not None
    return KeptPrompt.dense(reading.chosen.token_ids)


async def _chosen(reading: Reading) -> KeptPrompt:
    assert reading.chosen is not None
    return reading.chosen


def _guarded_windows(coverage: float) -> Selector:
    return Selector(
        f"as *{GUARDED}*, with retrieval heads over windows, and coverage {coverage}",
        lambda reading: keep_guarded(reading, coverage=coverage, **WINDOWS),
        rated=False,
    )


SELECTORS: dict[str, Selector] = {
    SPECULATOR: served("the speculator's selection at its original positions", selector="speculator"),
    NO_LOOK_AHEAD: served("as *speculator*, but scored only by the queries of the last prompt token", look_ahead=0),
    "auto": served("as *speculator*, with `keep_rate: auto`", keep_rate="auto", selector="speculator"),
    GUARDED: Selector(
        "the default, also for short prompts: as *auto*, with the guard; some prompts run dense",
        keep_guarded,
        rated=False,
    ),
    GUARDED_WHOLE: Selector(
        f"as *{GUARDED}*, and each prompt is read as a whole",
        lambda reading: keep_guarded(reading, scoring="attention", read="whole"),
        rated=False,
    ),
    GUARDED_WINDOWS: _guarded_windows(0.5),
    GUARDED_LONG: _guarded_windows(0.4),
    GUARDED_LESS: _guarded_windows(0.3),
    "heads": served("as *speculator*, but scored by retrieval heads", **HEADS),
    "heads, windows": served("as *heads*, and the prompt is read in windows", **WINDOWS),
    "lexical": served("serving's own BM25 (`selector: lexical`), without a speculator", selector="lexical"),
    "bm25": baseline("the chunks with the highest BM25 for the question", rankings.bm25),
    "embedding": baseline("the chunks whose static embedding is nearest to the question's", rankings.embedding),
    "random": baseline("random chunks", rankings.random_chunks),
    "last window": baseline("the last chunks of the prompt", rankings.last_window),
    "first + last": baseline("chunks from both ends of the prompt", rankings.first_and_last),
    "oracle": baseline("the chunks that hold the evidence, then those of *bm25*", rankings.oracle),
    RENUMBERED: Selector("as *speculator*, but the kept tokens are numbered from 0", _renumbered, follows=True),
    WRONG_ORIGIN: Selector(
        "as *speculator*, but the answer starts at position len(kept) instead of the prompt's length",
        _chosen,
        follows=True,
        vllm=True,
    ),
}
"""In the order of the results page."""


def fill(preference: Preference, always: npt.NDArray[np.bool_], budget: int, chunk: int) -> Int32Array:
    """The positions of `budget` tokens, int32 and ascending: those in `always`, then chunks by their preference.

    preference: float [chunks]. always: bool [M], true for at most `budget` tokens. With the speculator's mean scores
    and the size of its selection, the result is that selection.
    """
    by_chunk = np.argsort(-preference, kind="stable")
    order = (by_chunk[:, None] * chunk + np.arange(chunk)).ravel()
    order = order[order < always.size]
    free = order[~always[order]][: budget - int(always.sum())]
    return np.sort(np.concatenate([np.flatnonzero(always), free])).astype(np.int32)


def _budget(reading: Reading) -> int:
    assert reading.chosen is not None
    return int(reading.chosen.token_ids.size)
