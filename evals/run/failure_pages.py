"""Pages of the answers that a selection made worse: what was kept of the prompt, beside the question and the answers.

They are made after the run. Each selection is made again, as only its answer is kept.
"""

import html
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report.progress import Progress
from cluster.explain.page import PromptText, explain_page, read_token_text, visible
from evals.run.ask import Answer, Case, Engines
from evals.selection.evidence import evidence_spans
from evals.selection.selectors import DENSE
from evals.tasks.registry import Sample
from router.explain.explained import DROPPED, Explained
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import SkimError

INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class Worse:
    """An answer with a lower score than the dense one. number: of the sample in the run."""

    number: int
    sample: Sample
    case: Case
    answer: Answer
    dense: Answer

    @property
    def file(self) -> str:
        """The name of its page."""
        name, rate = self.case
        words = f"{self.sample.task}-{self.sample.length}-{self.number}-{name}-{rate:g}"
        return re.sub(r"[^\w.-]+", "-", words) + ".html"


def worse_answers(
    samples: Sequence[Sample], answers: Sequence[Mapping[Case, Answer]], shown: Collection[str]
) -> Iterator[Worse]:
    """The answers to serving's own selections that are worse than the dense answers. Baselines have no scores to show.

    answers: those to each sample, by case. shown: the selectors whose selections can be shown.
    """
    for number, (sample, by_case) in enumerate(zip(samples, answers, strict=True)):
        dense = by_case[DENSE, 1.0]
        for case, answer in by_case.items():
            if case[0] not in shown:
                continue
            if sample.quiz.score(answer.text) < sample.quiz.score(dense.text):
                yield Worse(number, sample, case, answer, dense)


async def write_pages(asker: Engines, target: str, found: Sequence[Worse], folder: Path, progress: Progress) -> None:
    """Write one page for each answer, and an index of them. target: the model whose tokens are shown.

    Raises SkimError if a page cannot be written.
    """
    tokens = read_token_text(target)
    for number, one in enumerate(found):
        progress(f"page of {one.sample.task}", number / len(found))
        prompt, explained = await asker.explain(one.sample, one.case)
        text = PromptText.of(prompt, tokens)
        title = f"{one.sample.task}: {one.case[0]}, keep rate {one.case[1]:g}"
        notes = [*_notes(one), ("Evidence", _evidence(one.sample, prompt, explained))]
        _write(folder, one.file, explain_page(explained.as_json(), text, title=title, notes=notes))
    _write(folder, INDEX, index(found))


def _write(folder: Path, name: str, page: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(page, encoding="ascii")
    except OSError as error:
        raise SkimError(f"cannot write {folder / name}: {error.strerror}") from None


def index(found: Sequence[Worse]) -> str:
    """A table of the answers with links to their pages, as HTML in ASCII."""
    heads = ("page", "tokens", *(name.lower() for name, _ in _notes(found[0]))) if found else ("page",)
    rows = [
        [f'<a href="{one.file}">{_shown(f"{one.sample.task}, {one.case[0]}, {one.case[1]:g}")}</a>',
         f"{one.answer.read:,} of {one.answer.prompt:,}", *(_shown(text) for _, text in _notes(one))]
        for one in found
    ]  # fmt: skip
    lines = [f"<tr><th>{'<th>'.join(heads)}</tr>", *(f"<tr><td>{'<td>'.join(row)}</tr>" for row in rows)]
    return _INDEX.format(count=len(found), rows="\n".join(lines))


def _notes(one: Worse) -> list[tuple[str, str]]:
    quiz = one.sample.quiz
    asked = [("Question", quiz.question), ("Expected", ", ".join(quiz.expected))]
    return [*asked, ("Answer", one.answer.text.strip()), ("Dense answer", one.dense.text.strip())]


def _evidence(sample: Sample, prompt: RenderedPrompt, explained: Explained) -> str:
    """Where the evidence of the answer is in the prompt, and how much of it was kept."""
    if not sample.quiz.evidence:
        return "not known"
    reasons = explained.reasons()
    spans = evidence_spans(prompt, sample.quiz)
    kept = [int((reasons[start:end] != DROPPED).sum()) for start, end in spans]
    parts = [f"tokens {a:,} to {b - 1:,}: {k} of {b - a} kept" for (a, b), k in zip(spans, kept, strict=True)]
    return "\n".join(parts)


def _shown(text: str) -> str:
    return html.escape(visible(text)).encode("ascii", "xmlcharrefreplace").decode()


_INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Worse than dense</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1.5rem; }}
td, th {{ text-align: left; vertical-align: top; padding: .35rem 1rem .35rem 0; overflow-wrap: anywhere; }}
</style>
<h1>{count} answers that are worse than the dense ones</h1>
<table>
{rows}
</table>
</html>
"""
