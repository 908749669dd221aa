"""The prompts of a calibration: the user's own, from a JSONL file, or generated ones."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.json_file import read_text
from evals.selection.evidence import evidence_spans
from evals.selection.prompts import decision_of
from evals.selection.prompts import render as render_sample
from evals.tasks.registry import Sample, make_samples
from kv_transfer.layout import TextLayout
from router.decision.guard import needs_whole_text
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.prompts import render
from skim_common.errors import InvalidRequestError, SkimError

TASKS = (
    "single_needle",
    "ruler/niah_multikey_1",
    "ruler/niah_multiquery",
    "association",
    "ruler/vt",
    "default_value",
    "json_records",
    "agent_loop",
)
"""Tasks of `skim eval` with evidence, whose questions the guard does not send dense; one prompt of each in turn."""


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationPrompt:
    """One prompt. name: for the journal. evidence: token spans that hold the answer; empty for a user's prompt."""

    name: str
    prompt: RenderedPrompt
    layout: TextLayout
    evidence: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """Prompts of a file that serving would not compress under `auto`, by reason."""

    reasons: dict[str, int]


def generated(
    tokenizer: Any, options: PrefillOptions, tokens: int, count: int, seed: int
) -> Iterator[CalibrationPrompt]:
    """`count` prompts of about `tokens` tokens for each task of TASKS, with their evidence. Raises SkimError."""

    def length(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    samples = make_samples(TASKS, [tokens], count, seed=seed, style="instruct", tokens=length)
    for sample in sorted(samples, key=_index):
        prompt = render_sample(sample, tokenizer, options)
        yield CalibrationPrompt(sample.seed, prompt, prompt.layout(options), evidence_spans(prompt, sample.quiz))


def _index(sample: Sample) -> int:
    """One prompt of each task first, so that a run that is cut off has seen all tasks."""
    return int(sample.seed.rsplit(" ", 1)[1])


def from_file(
    path: Path, tokenizer: Any, options: PrefillOptions, limit: int
) -> tuple[list[CalibrationPrompt], Skipped]:
    """The first `limit` prompts of a JSONL file that serving would compress, and why the others are left out.

    A line is {"messages": [...]}, {"prompt": "..."}, or such an object in the field `body` (a batch file of OpenAI).
    Raises SkimError for a line that is none of these, or if no prompt is left.
    """
    found: list[CalibrationPrompt] = []
    reasons: dict[str, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or len(found) == limit:
            continue
        try:
            prompt = render(_asked(line, f"{path}: line {number}"), tokenizer)
            layout = prompt.layout(PrefillOptions())
        except InvalidRequestError as error:
            raise SkimError(f"{path}: line {number}: {error}") from None
        if reason := why_dense(prompt, options):
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            found.append(CalibrationPrompt(f"line {number}", prompt, layout))
    if not found:
        shown = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "it is empty"
        raise SkimError(f"{path} has no prompt that would be compressed ({shown}): give longer prompts")
    return found, Skipped(reasons)


def why_dense(prompt: RenderedPrompt, options: PrefillOptions) -> str:
    """Why serving would run this prompt dense under `auto`, by its size or its question; empty if it would not."""
    decision = decision_of(prompt, options)
    if not decision.speculative:
        return decision.reason
    return "guard-whole-text" if needs_whole_text(prompt.task_text(prompt.spans(options).layout)) else ""


def _asked(line: str, where: str) -> Any:
    """The text or the messages of a line."""
    wanted = f'{where}: must be {{"messages": [...]}} or {{"prompt": "..."}}'
    try:
        fields = json.loads(line)
    except ValueError:
        raise SkimError(wanted) from None
    if isinstance(fields, dict):
        fields = fields.get("body", fields)
    checks: Sequence[tuple[str, Callable[[Any], bool]]] = (
        ("messages", lambda value: isinstance(value, list) and bool(value) and all(isinstance(m, dict) for m in value)),
        ("prompt", lambda value: isinstance(value, str) and bool(value)),
    )
    for name, is_right in checks:
        if isinstance(fields, dict) and name in fields and is_right(fields[name]):
            return fields[name]
    raise SkimError(wanted)
