"""The guard: under `enabled: auto`, it keeps more of a prompt, or all of it, where a selection is likely to fail.

It acts twice, by signals that cost nothing:

1. Before the selection, by the task's text. What needs most of a text, or all of it to the letter, is not answered by
   a few chunks: to quote, translate, rewrite, summarise, convert, correct, compare, continue, count, list or sort. Some
   English patterns (`QUESTIONS`) give the kind, and a classifier (`whole_text`) knows the others, in many languages.
2. After the selection, by the scores of the units (`signals`). Scores that are nearly equal say that the speculator
   found no part that matters more than the others. The limit depends on the speculator and on how it scores, so there
   is no default: `skim calibrate` measures it.

An explicit wish is obeyed: the guard does nothing for a request with `enabled: always`, or with a keep rate or a
coverage of its own, be it for one role, range or content.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import re2

from actors.observability.meter import Meter
from kv_transfer.layout import TextLayout
from kv_transfer.messages import Selection
from kv_transfer.options import AUTO, SelectionOptions
from router.decision.rules import Decision
from router.decision.whole_text import whole_text_score
from router.options.request import PrefillOptions
from router.prompt.task.options import without_options
from router.prompt.task.words import asks

Verdict = Literal["compressed", "more", "dense"]

MORE = 0.4
"""The least share that is kept for a question of verdict `more`. A starting value: what is listed stands
in many chunks, so a fifth of them drops some of it."""

FEW_UNITS = 8
"""With fewer units that may be dropped, the entropy says nothing."""

EXPLICIT = frozenset({"keep_rate", "coverage", "max_keep", "keep_by_role"})
"""Options that say how much is kept. A request that gives one is obeyed. A floor (`min_keep`) lets more be kept."""


@dataclass(frozen=True, slots=True)
class QuestionKind:
    """A kind of task that a selection cannot be trusted with. patterns: of RE2; one of them is in the task's text."""

    name: str
    verdict: Verdict
    patterns: tuple[str, ...] = ()

    def matches(self, task: str) -> bool:
        return bool(self.patterns) and bool(re2.search(f"(?i){'|'.join(self.patterns)}", task))


QUESTIONS = (
    QuestionKind(
        "quoting",
        "dense",
        (
            r"\b(verbatim|word[- ]for[- ]word)\b",
            r"\bquote (me|the|what|how|from|exactly|a|an|each|every|it|this|that)\b",
            r"\bexact (words?|wording|text|quote|quotation|sentence|passage|phrase)\b",
            r"\b(repeat|copy|reproduce|transcribe|recite)\b[^.?!\n]{0,40}"
            r"\b(exactly|text|passage|sentence|paragraph|section|lines?|unchanged)\b",
        ),
    ),
    QuestionKind(
        "counting",
        "dense",
        (
            r"\bhow many (times|of|different|distinct)\b",
            r"\bhow (often|frequently) (is|are|was|were|does|do|did)\b[^.?!\n]{0,40}"
            r"\b(appear|occur|mention|mentioned|named|set|used|called|happen|ring)\b",
            r"\bnumber of (times|occurrences|different|distinct|unique)\b",
            r"\b(total|overall) (number|count|amount|sum)\b",
            r"\bcount (the|all|how|every|each)\b",
            r"\b(most|least) (often|frequent|frequently|common|commonly)\b",
            r"\b(average|median|sum) of (all|the)\b",
        ),
    ),
    QuestionKind(
        "listing",
        "more",
        (
            r"(^|[.:!?\n])[^\S\n]*(please )?(list|enumerate)\b",  # of white space, each part is read once
            r"\b(list|name|give|find|extract|identify|mention|show|state|report|what are|which are)\b"
            r"[^.?!\n]{0,20}\b(all|every|each)\b",
        ),
    ),
)
"""Documented in docs/options.md. The first kind that matches counts, and the classifier counts before one
of verdict `more`."""

WHOLE_TEXT = QuestionKind(
    "whole-text",
    "dense",
    (
        r"\btl;?dr\b",
        r"(?:^|[.!?\n][ \t]*)(?:summary|abstract|zusammenfassung|résumé|resumen|resumo|riassunto|samenvatting)[\s:]*$",
        r"(?:摘要|总结|總結|要約|요약)[\s:\x{ff1a}]*$",
    ),
)
"""What the classifier knows, and short words for it."""


_REFUSED = re2.compile(r"(?i)(?:not|n't) (?:quote|repeat|copy|reproduce|transcribe|recite)\b")


def task_kind(task: str) -> QuestionKind | None:
    """The kind of a task that a selection cannot be trusted with; None of another. The options of a question of choice
    do not count."""
    task = without_options(task)
    asked = _REFUSED.sub("", task)
    kind = next((kind for kind in QUESTIONS if kind.matches(asked)), None)
    if (kind is None or kind.verdict != "dense") and (WHOLE_TEXT.matches(task) or _needs_whole_text(task)):
        return WHOLE_TEXT
    return kind


def _needs_whole_text(task: str) -> bool:
    """As the classifier says of the task, or of a request before the colon of a line, which has the text behind it."""
    clauses = (line.partition(":")[0] for line in task.replace("\uff1a", ":").split("\n"))
    requests = "\n".join(clause for clause in clauses if asks(clause, 0, len(clause)))
    return max(whole_text_score(task), whole_text_score(requests)) > 0


@dataclass(frozen=True, slots=True)
class Advice:
    """What the guard says before the selection. options: the request's, with more to keep if the verdict is `more`.

    kind: as `task_kind`; empty for None. acts: False for an explicit wish.
    """

    options: PrefillOptions
    verdict: Verdict = "compressed"
    kind: str = ""
    acts: bool = True

    @property
    def reason(self) -> str:
        """The reason of a dense run, one word."""
        return f"guard-{self.kind}"


class Guard:
    """The guard of one router; it counts its verdicts. enabled: False: it never acts.

    entropy: a prompt whose unit scores have a higher normalised entropy runs dense; None: the scores are not judged.
    """

    def __init__(self, meter: Meter, *, enabled: bool, entropy: float | None = None) -> None:
        self._meter, self._enabled, self._entropy = meter, enabled, math.inf if entropy is None else entropy

    def advise(self, options: PrefillOptions, task: str, *, explicit: bool = False) -> Advice:
        """The advice for a request by its task's text; "" if it is unknown. explicit: a content has a `keep`."""
        if explicit or not self._enabled or options.enabled != AUTO or says_how_much(options):
            return Advice(options, acts=False)
        kind = task_kind(task)
        if kind is None:
            return Advice(options)
        return Advice(keeping_more(options) if kind.verdict == "more" else options, kind.verdict, kind.name)

    def before(self, advice: Advice, decision: Decision) -> Decision:
        """The decision on a prompt that would run speculative: dense, if the advice is."""
        if advice.verdict != "dense":
            return decision
        self.count(advice.verdict, advice.kind)
        return Decision(False, advice.reason)

    def disagrees(self) -> Decision:
        """The decision on a prompt whose kind the dense model has answered otherwise too often
        (`router.decision.agreements`)."""
        self.count("dense", "agreement")
        return Decision(False, "guard-agreement")

    def distrusts(self, advice: Advice, selection: Selection, layout: TextLayout) -> str | None:
        """Why this prompt runs dense after its selection, in one word; None if the selection stands."""
        if not advice.acts:
            return None
        found = signals(selection, advice.options, layout)
        reason = "guard-flat" if found.get("entropy", 0.0) > self._entropy else None
        self.count("dense" if reason else advice.verdict, "flat" if reason else advice.kind or "none")
        return reason

    def count(self, verdict: Verdict, kind: str) -> None:
        """Count one verdict on a prompt that would run speculative."""
        self._meter.record("skim_router_guard_total", 1, verdict=verdict, reason=kind)


def says_how_much(options: PrefillOptions) -> bool:
    """Whether the request itself says how much is kept. `keep_rate: auto` leaves it to Skim."""
    given = options.model_fields_set & EXPLICIT
    return bool(given - {"keep_rate"} if options.keep_rate == AUTO else given)


def keeping_more(options: PrefillOptions) -> PrefillOptions:
    """The options with a keep rate of at least MORE, whatever rule they use."""
    if options.fixed_rate is not None:
        return options.model_copy(update={"keep_rate": max(MORE, options.fixed_rate)})
    bounds = {"min_keep": max(MORE, options.min_keep), "max_keep": max(MORE, options.largest_share)}
    return options.model_copy(update={"keep_rate": AUTO, **bounds})


def signals(selection: Selection, options: SelectionOptions, layout: TextLayout) -> Mapping[str, float]:
    """Signals of a selection, from the scores of the units that may be dropped; empty if there are too few, or if the
    scores are missing or are not those of the prompt's units.

    entropy: of the scores as a distribution, divided by its maximum: 1 if all are equal.
    coverage: the share of these scores that the kept units have.
    """
    scores, positions = selection.unit_scores, selection.kept.positions
    starts = layout.unit_starts(selection.kept.context_length, options)
    if scores is None or scores.size != starts.size or options.granularity == "token":
        return {}
    fixed = layout.fixed(selection.kept.context_length, options.protect_last)
    kept = np.zeros(fixed.size, bool)
    kept[positions] = True
    droppable = np.add.reduceat(~fixed, starts, dtype=np.int64)
    weights = np.where(droppable > 0, scores.astype(np.float64), 0.0)
    if (droppable > 0).sum() < FEW_UNITS or not weights.any():
        return {}
    chosen = np.add.reduceat(kept & ~fixed, starts, dtype=np.int64) > 0
    return {
        "entropy": _normalised_entropy(weights[droppable > 0]),
        "coverage": float(weights[chosen].sum() / weights.sum()),
    }


def _normalised_entropy(weights: np.ndarray) -> float:
    shares = weights[weights > 0] / weights.sum()
    return float(-(shares * np.log(shares)).sum() / np.log(weights.size))
