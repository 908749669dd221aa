"""Where a prompt holds the evidence of its answer, as token spans. Oracle chunks and chunk recall are made from it."""

from collections.abc import Iterable

from evals.tasks.quiz import Scored
from router.prompt.protected_spans import char_ranges, tokens_touched_by_each
from router.prompt.rendered import RenderedPrompt


def evidence_spans(prompt: RenderedPrompt, quiz: Scored) -> list[tuple[int, int]]:
    """The half-open token spans of `prompt` that touch one of the texts in `quiz.evidence`, ascending.

    A text counts wherever it occurs. Raises ValueError for a prompt without `offsets`, for a quiz without evidence, and
    for a text that the prompt does not hold.
    """
    if not quiz.evidence:
        raise ValueError("the quiz names no evidence")
    return spans_of_texts(prompt, quiz.evidence)


def spans_of_texts(prompt: RenderedPrompt, texts: Iterable[str]) -> list[tuple[int, int]]:
    """As `evidence_spans`, of any texts."""
    if prompt.text is None or prompt.offsets is None:
        raise ValueError("texts are found by the offsets of a rendered chat")
    found = []
    for text in texts:
        start = prompt.text.find(text)
        if start < 0:
            raise ValueError(f"the prompt does not hold the evidence {text!r}")
        while start >= 0:
            found.append((start, start + len(text)))
            start = prompt.text.find(text, start + len(text))
    return sorted({*filter(None, tokens_touched_by_each(found, char_ranges(prompt.offsets)))})
