"""Answer quality over the turns of a conversation: each turn extends what was kept for the last one, or selects anew.

All questions are about records of one document, which stands in the first turn. The history holds the right answers, so
that every selector answers the same prompts.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.in_process.async_pair import AsyncPair, EngineSettings
from cluster.in_process.prompts import RenderedPrompt
from evals.ask import Answer, Case, load_tokenizer
from evals.prompts import DENSE, SPECULATOR, render
from evals.quiz import Count, Quiz, Style, ask, compose
from evals.retrieval import ONE_NUMBER, WORDING, with_distractors
from evals.tasks import Sample
from kv_transfer.environment import unless_set
from kv_transfer.messages import KeptPrompt, Selection
from router.options import PrefillOptions
from target_service.sampling import FINAL_ONLY

EXTENDED, NO_LATE = "extended", "no late chunks"

SELECTORS = {
    EXTENDED: "each turn extends what was kept for the turn before it, as in serving",
    SPECULATOR: "each turn is selected anew (`reuse: off`)",
    NO_LATE: "as *extended*, but without the late chunks",
}
"""What each selector keeps, by name; shown on the results page."""


def task_name(turn: int) -> str:
    """The task of a turn, counted from 1."""
    return f"turn {turn}"


def describe_turn(task: str) -> str:
    """The task of a turn and its metric."""
    return f"One of many records of a document, asked for in {task}. Metric: the answer states the value."


def make_conversations(
    turns: int, lengths: Sequence[int], count: int, *, seed: int, style: Style, tokens: Count
) -> Iterator[list[Sample]]:
    """`count` conversations of `turns` samples for each length of the first turn; arguments as in `make_samples`."""
    for length in lengths:
        for index in range(count):
            name = f"{seed} turns {length} {index}"
            rng = random.Random(name)
            found = with_distractors(turns, length, rng)
            history: list[dict[str, str]] = []
            samples = []
            for turn, record in enumerate(rng.sample(found, turns), 1):
                needles = [r.sentence() for r in found] if turn == 1 else []
                quiz = Quiz(needles, record.question(wording=WORDING), ONE_NUMBER, (record.value,))
                text = compose(quiz, length, style, tokens, rng) if turn == 1 else ask(quiz, style)
                samples.append(Sample(task_name(turn), length, quiz, text, name, tuple(history)))
                history += [{"role": "user", "content": text}, {"role": "assistant", "content": f"{record.value}."}]
            yield samples


class TurnEngines:
    """A speculator and a target engine in this process, without Ray."""

    selectors = tuple(SELECTORS)

    def __init__(
        self,
        target: str,
        speculator: str,
        *,
        engine: str,
        keep_rates: Sequence[float],
        look_ahead: int,
        max_tokens: int,
        target_options: Mapping[str, Any],
        speculator_options: Mapping[str, Any],
    ) -> None:
        """As `evals.ask.Engines`."""
        self._tokenizer = load_tokenizer(target)
        self._rates = [rate for rate in keep_rates if rate < 1]
        self._options = PrefillOptions(look_ahead=look_ahead)
        self._max_tokens = max_tokens
        environment = unless_set({"VLLM_CPU_KVCACHE_SPACE": "1"}) if engine == "vllm" else {}
        self._pair = AsyncPair(
            speculator=EngineSettings(speculator, engine, speculator_options, environment=environment),
            target=EngineSettings(target, engine, target_options, environment=environment),
        )

    async def ask(self, sample: Sample) -> dict[Case, Answer]:
        """Ask one turn; those before it must have been asked. Raises SkimError for a prompt that cannot be served."""
        prompt = render(sample, self._tokenizer, self._options)
        asked: dict[Case, KeptPrompt] = {(DENSE, 1.0): KeptPrompt.dense(prompt.token_ids)}
        for rate in self._rates:
            asked |= {(name, rate): kept for name, kept in (await self._select(sample, prompt, rate)).items()}
        texts = await asyncio.gather(*(self._answer(kept) for kept in asked.values()))
        shares = (kept.token_ids.size / prompt.token_ids.size for kept in asked.values())
        return {case: Answer(text, share) for case, text, share in zip(asked, texts, shares, strict=True)}

    async def _select(self, sample: Sample, prompt: RenderedPrompt, rate: float) -> Mapping[str, KeptPrompt]:
        options = self._options.selection.model_copy(update={"keep_rate": rate})
        # The salt separates the records of the keep rates.
        extended = await self._pair.select(prompt, options, cache_salt=f"{sample.seed} {rate}")
        fresh = await self._pair.select(prompt, options.model_copy(update={"reuse": "off"}))
        return {EXTENDED: extended.kept, SPECULATOR: fresh.kept, NO_LATE: without_late_chunks(extended)}

    async def _answer(self, kept: KeptPrompt) -> str:
        sampling = {"temperature": 0.0, "max_tokens": self._max_tokens, "output_kind": FINAL_ONLY}
        outputs = [output async for output in self._pair.generate(kept, sampling)]
        return outputs[-1].completions[0].text

    async def close(self) -> None:
        """Stop both engines."""
        await self._pair.close()


def without_late_chunks(selection: Selection) -> KeptPrompt:
    """The kept prompt without the tokens that this turn added from the text before it."""
    kept, stays = selection.kept, ~selection.late
    return replace(kept, token_ids=kept.token_ids[stays], positions=kept.positions[stays])
