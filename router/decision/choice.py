"""Dense or speculative: by rules that need no engine, and else by the time until the first token. Pure.

    dense       = queue(target) + time(target, M - cached)
    speculative = queue(speculator) + time(speculator, M - read) + queue(target) + time(target, kept - cached)

M is the prompt's length; `read`, `kept` and `cached` are tokens. `router.decision.pool_time` has the time of a pool.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.options import AUTO
from router.decision.pool_time import PoolTime
from router.options.request import PrefillOptions
from router.prompt.rendered import PromptSpans
from skim_common.models.costs import Read
from skim_common.models.info import ModelInfo

Mode = Literal["dense", "speculative"]
Selector = Literal["speculator", "lexical"]

MARGIN = 0.1
"""A prompt runs speculative, or changes the mode of its earlier turn, only for a gain of this share."""
STALE_S = 300.0
"""A prompt with n times the dense estimate tries the speculator again if nothing was read there for n times this."""

SPECULATOR_SHARE = 0.25
"""The speculator's time per token as a share of the target's, until both are measured."""


PLACED = 0.3
"""Words place a question if its best passage holds this share of the weight of the question's terms. The speculator
then reads nothing of the prompt before the target begins. Of 1,401 questions of people, 6 % are below it and at most
23 % of a set; of 80 generated ones that share no word with their evidence, 97 %."""
WORTH_A_READ = 0.05
"""A speculator that keeps so much more of people's evidence than words do reads every prompt."""
OF_THE_SPECULATOR = frozenset({"scoring", "read", "read_again", "window_tokens", "look_ahead", "layers", "aggregation"})
"""Options of the speculator's scores: a request that gives one is read."""


@dataclass(frozen=True, slots=True)
class Decision:
    """reason: why, in one word, for logs and headers."""

    speculative: bool
    reason: str


CACHED, UNMEASURED = Decision(False, "cached"), Decision(True, "unmeasured")


def selector_of(options: PrefillOptions, layout: TextLayout, speculator: ModelInfo | None, placed: float) -> Selector:
    """What selects from a prompt: by `selector: auto` the words, where they place the question.

    The speculator, if a request gives an option of its scores, if it keeps more than words do, and of a prompt without
    a question or units of text. layout: with or without its units. placed: as in TextLayout.
    """
    if options.selector != AUTO:
        return options.selector
    asked = any(getattr(options, name) != AUTO for name in options.model_fields_set & OF_THE_SPECULATOR)
    better = speculator is not None and (speculator.gain_over_words or 0.0) >= WORTH_A_READ
    has_words = options.granularity == "text" and len(layout.questions) > 0
    return "lexical" if has_words and placed >= PLACED and not (asked or better) else "speculator"


def decide(
    options: PrefillOptions,
    size: int,
    spans: PromptSpans | None = None,
    *,
    has_text: bool = False,
    untrusted: bool = False,
    prompt_logprobs: bool = False,
    echo: bool = False,
    beam_search: bool = False,
) -> Decision:
    """The first rule that applies makes the prompt dense and gives the reason. No rule: speculative.

    size: tokens of the prompt. spans: None if they are not known. has_text: the text is known, so that a task would be
    found. untrusted: a pool has failed its start probe.
    """
    layout = spans.layout if spans else NO_LAYOUT
    rules = (
        (not options.enabled, "disabled"),
        (options.keeps_all and not layout.rates.size, "keep-all"),
        (size < options.min_prompt_tokens, "short-prompt"),
        (untrusted, "start-probe"),
        (prompt_logprobs, "prompt-logprobs"),
        (echo, "echo"),
        (beam_search, "beam-search"),
        (spans is not None and spans.unmapped, "unmapped-chat"),
        (spans is not None and spans.protected_tokens == size, "all-protected"),
        # The look-ahead needs no task. All other scores do.
        (has_text and not len(layout.questions) and not options.for_prompt(windows=False).tokens_ahead, "no-task"),
    )
    return next((Decision(False, reason) for applies, reason in rules if applies), Decision(True, "requested"))


class Reads(NamedTuple):
    """What each pool would read: the target of the whole prompt, the speculator, the target of the kept prompt."""

    dense: Read
    read: Read
    kept: Read


@dataclass(frozen=True, slots=True)
class Work:
    """Milliseconds of computing until the first token, by pool; 0 where they are not known."""

    speculator_ms: float = 0.0
    target_ms: float = 0.0
    selects: bool = False  # the prompt goes to the speculator first
    most_tokens: int = 0  # of the answer
    # The speculator's read of the kept prompt, after the selection. The prompt's own first token does not wait for it,
    # but the prompts behind do.
    drafts_ms: float = 0.0
    answers: bool = True  # False: the prompt ends with its selection, and the target gets nothing of it

    @property
    def total_ms(self) -> float:
        return self.speculator_ms + self.target_ms


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds until the first token, in both modes."""

    dense: float
    speculative: float
    cold: float  # dense with an empty cache
    age_s: float = 0.0  # seconds since the speculator was measured
    later: float = 0.0  # how much longer the turns after this one are expected to take if it runs speculative
    queue: float = 0.0  # the wait for the target, which is a part of all three
    burden: float = 0.0  # how much longer all others wait if this prompt runs dense and not speculative

    def of(self, mode: str) -> float:
        return self.speculative if mode == "speculative" else self.dense


def estimate(reads: Reads, speculator: PoolTime, target: PoolTime, now: float, later: float = 0.0) -> Estimate | None:
    """None before both pools have been measured often enough. later: as in Estimate."""
    read, kept, dense = speculator.estimate(reads.read), target.estimate(reads.kept), target.estimate(reads.dense)
    cold = target.estimate(Read(reads.dense.tokens + reads.dense.cached))
    if read is None or kept is None or dense is None or cold is None:
        return None
    queue, speculator_queue = target.queue_ms, speculator.queue_ms
    return Estimate(
        dense=queue + dense,
        speculative=speculator_queue + queue + read + kept,
        cold=queue + cold,
        age_s=now - speculator.measured_at,
        later=later,
        queue=queue,
        # As many wait behind this prompt as before it: the queue, divided by the time that one of them takes.
        burden=(dense - kept - later) * queue / kept - speculator_queue if kept else 0.0,
    )


def sooner(estimate: Estimate, before: Mode | None = None) -> Decision:
    """Speculative if its first token is sooner by MARGIN, after what later turns lose then; else dense.

    before: how the earlier turn of this prompt ran, if there was one. After a speculative turn, dense must be sooner by
    MARGIN. MARGIN is a share of what the prompt itself takes: were it one of the wait too, a loaded target would get
    dense prompts, which load it more.
    """

    def less(ms: float) -> float:
        return ms - MARGIN * (ms - estimate.queue)

    dense = estimate.dense if before == "speculative" else less(estimate.dense)
    alone = less(estimate.speculative) if before == "speculative" else estimate.speculative
    speculative = alone + estimate.later
    if speculative < dense:
        return Decision(True, "sooner")
    if speculative < dense + estimate.burden:  # a dense run would delay others more
        return Decision(True, "load")
    if estimate.age_s * estimate.dense > STALE_S * speculative:  # to measure the speculator again
        return Decision(True, "probe")
    if alone < dense:
        return Decision(False, "later-turns")
    return Decision(False, "cached" if estimate.speculative < less(estimate.cold) else "sooner")


def fewer(reads: Reads, extra: float) -> Decision:
    """As `sooner`, before both pools have been measured: speculative, unless dense reads no more tokens.

    extra: tokens that later turns read more if this one runs speculative (`LaterTurns.extra_tokens`).
    """
    if reads.dense.tokens <= reads.kept.tokens:
        return Decision(False, "cached" if reads.dense.cached else "sooner")
    if extra and reads.dense.tokens <= SPECULATOR_SHARE * reads.read.tokens + reads.kept.tokens + extra:
        return Decision(False, "later-turns")
    return UNMEASURED
