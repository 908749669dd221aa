"""The ways to answer a question of people that are compared with dense: the default, and others with as many tokens.

Each is run once with what the default keeps (keep rate 0 in the results), and at each keep rate of the user, where the
default is a request with that keep rate.
"""

from collections.abc import Sequence
from typing import Any

from evals.questions.samples import QuestionSample
from evals.run.ask import Case, Engines
from evals.selection.prompts import decision_of, template_messages
from evals.selection.selectors import DENSE, SELECTORS, Reading, Selector, default_options, keep_guarded
from evals.tasks.registry import Sample
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from router.decision.choice import selector_of
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.prompts import render

DEFAULT, BM25, NO_DOCUMENT = "default", "BM25", "no document"
LEXICAL = {"selector": "lexical"}
LEAST = 0.001


async def _default(reading: Reading) -> KeptPrompt:
    assert reading.chosen is not None
    return reading.chosen


async def _lexical(reading: Reading) -> KeptPrompt:
    chosen = await _default(reading)
    rate = rate_of(reading.prompt, reading.options, chosen.token_ids.size)
    return await reading.select(**LEXICAL, keep_rate=rate) if rate < 1 else chosen


def rate_of(prompt: RenderedPrompt, options: PrefillOptions, kept: int) -> float:
    """The keep rate at which `kept` tokens of the prompt are kept: their share of those that may be dropped."""
    protected = int(prompt.layout(options).fixed(prompt.size, options.protect_last).sum())
    return max(LEAST, (kept - protected) / (prompt.size - protected)) if prompt.size > protected else 1.0


async def _alone(reading: Reading) -> KeptPrompt:
    assert isinstance(reading.sample, QuestionSample)
    message = {"role": "user", "content": reading.sample.alone}
    return KeptPrompt.dense(render([message], reading.pair.tokenizer).token_ids)


WAYS: dict[str, Selector] = {
    DEFAULT: Selector(
        "Skim without an option: `keep_rate: auto` with the guard, short prompts dense", _default, follows=True
    ),
    BM25: Selector(
        "`selector: lexical`, which has no speculator, with as many tokens as the default (of lines and sentences)",
        _lexical,
        follows=True,
    ),
    "random": SELECTORS["random"],
    "first + last": SELECTORS["first + last"],
    "last": SELECTORS["last window"],
    NO_DOCUMENT: Selector("the question without its document: what the target knows", _alone, rated=False),
}
"""By name, in the order of the tables. All but the last follow the default."""


def question_cases(ways: Sequence[str], keep_rates: Sequence[float]) -> list[Case]:
    """Dense, then each way with the default's tokens, then those that have a keep rate at each one."""
    rated = [(name, rate) for rate in keep_rates for name in ways if WAYS[name].rated]
    return [(DENSE, 1.0), *((name, 0.0) for name in ways), *rated]


class QuestionEngines(Engines):
    """The ways, from engines in this process."""

    known = WAYS

    def __init__(self, target: str, speculator: str, **settings: Any) -> None:
        """As `Engines`. selectors: names in WAYS."""
        super().__init__(target, speculator, **settings)
        short = PrefillOptions().min_prompt_tokens
        self._options = self._options.model_copy(update={"min_prompt_tokens": short})

    @property
    def cases(self) -> list[Case]:
        """All cases of a question."""
        return question_cases(self.selectors, self._rates)

    @property
    def explained(self) -> tuple[str, ...]:
        """Only the default's own selection."""
        return tuple(name for name in self.selectors if name == DEFAULT)

    def _prompt(self, sample: Sample) -> RenderedPrompt:
        # A prompt that serving runs dense is no error here.
        return render(template_messages(sample.messages), self._tokenizer, self._options)

    async def _choose(self, reading: Reading) -> KeptPrompt:
        if not decision_of(reading.prompt, self._options).speculative:
            return KeptPrompt.dense(reading.prompt.token_ids)
        layout, speculator = reading.layout, reading.pair.speculator.info
        by_default = {"selector": selector_of(PrefillOptions(), layout, speculator, layout.placed)}
        fixed = reading.options.fixed_rate
        return await (reading.select(**by_default) if fixed else keep_guarded(reading, **by_default))

    def _explained_options(self, reading: Reading, name: str) -> SelectionOptions:
        if reading.options.fixed_rate:
            return reading.selection_options()
        return default_options(reading).selection
