"""Where a prompt holds the evidence of its answer, as token spans. Oracle chunks and chunk recall are made from it."""

from evals.tasks.quiz import Quiz
from router.prompt.protected_spans import char_ranges, tokens_touched
from router.prompt.rendered import RenderedPrompt


def evidence_spans(prompt: RenderedPrompt, quiz: Quiz) -> list[tuple[int, int]]:
    """The half-open token spans of `prompt` that touch one of the texts in `quiz.evidence`, ascending.

    A text counts wherever it occurs. Raises ValueError for a prompt without `offsets`, for a quiz without evidence, and
    for a text that the prompt does not hold.
    """
    if prompt.text is None or prompt.offsets is None:
        raise ValueError("evidence is found by the offsets of a rendered chat")
    ranges = char_ranges(prompt.offsets)
    if not quiz.evidence:
        raise ValueError("the quiz names no evidence")
    spans = set()
    for text in quiz.evidence:
        start = prompt.text.find(text)
        if start < 0:
            raise ValueError(f"the prompt does not hold the evidence {text!r}")
        while start >= 0:
            touched = tokens_touched((start, start + len(text)), ranges)
            assert touched is not None
            spans.add(touched)
            start = prompt.text.find(text, start + len(text))
    return sorted(spans)
