"""Answers to a sample's prompt from two engines in this process. `evals.run.endpoint` asks a running Skim endpoint."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

from evals.run.engines import start_pair
from evals.selection.prompts import render
from evals.selection.selectors import DENSE, SELECTORS, WRONG_ORIGIN, Reading, Selector
from evals.tasks.registry import Sample
from kv_transfer.messages import FINAL_ONLY, KeptPrompt
from kv_transfer.options import SelectionOptions
from router.explain.explained import Explained
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.engines import PairEngines
from skim_common.errors import SkimError
from skim_common.models import info
from skim_common.models.source import public_name

Case = tuple[str, float]
"""A selector and a keep rate: 1 for DENSE, 0 for a selector that chooses the rate itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """text: the target's answer. read: number of tokens that the target read, of `prompt` tokens."""

    text: str
    read: int
    prompt: int

    @classmethod
    def of(cls, text: str, kept: KeptPrompt) -> "Answer":
        """The answer to a kept prompt."""
        return cls(text, int(kept.token_ids.size), kept.context_length)

    @property
    def kept(self) -> float:
        """The share of the prompt's tokens that the target read."""
        return self.read / self.prompt


@dataclass(frozen=True, slots=True)
class Timing:
    """One case, alone and with cold caches. select_s: seconds until the kept prompt is known. prefill_s: seconds from
    there to the first token. read, prompt: as in Answer.
    """

    selector: str
    keep_rate: float
    select_s: float
    prefill_s: float
    read: int
    prompt: int


class Asker(Protocol):
    """Asks a sample's question by every selector and at every keep rate. selectors: those that it can measure. cases:
    all that `ask` answers.
    """

    selectors: tuple[str, ...]

    @property
    def cases(self) -> list[Case]: ...

    async def ask(self, sample: Sample, known: Collection[Case] = ()) -> dict[Case, Answer]:
        """The answers to all cases that are not `known`."""
        ...

    async def close(self) -> None: ...


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a model, a folder or a hub name. Raises ModelError without a usable model, SkimError without a
    chat template.
    """
    tokenizer = info.load_tokenizer(model)
    if not tokenizer.chat_template:
        raise SkimError(f"{model} has no chat template: the tasks are chat prompts, give an instruct model")
    return tokenizer


class InProcess:
    """A speculator and a target engine in this process, without Ray: what the askers with engines share."""

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
        create_target: Callable[..., Any] | None = None,
    ) -> None:
        """The first prompt starts the engines. engine: vllm or mock. create_target: as `EngineSettings.create`."""
        self._tokenizer = load_tokenizer(target)
        self._rates = [rate for rate in keep_rates if rate < 1]
        self._options = PrefillOptions(look_ahead=look_ahead, min_prompt_tokens=1)
        self._max_tokens = max_tokens
        self._start = partial(start_pair, target, speculator, engine, target_options, speculator_options, create_target)

    @cached_property
    def _pair(self) -> PairEngines:
        """Both engines. A run whose answers are all known starts none. Raises as `start_pair`."""
        return self._start()

    async def _answer(
        self, kept: KeptPrompt, extra_args: Mapping[str, Any] | None = None, limit: int | None = None
    ) -> str:
        """The target's answer. extra_args: of vLLM's sampling parameters. limit: as `Sample.max_tokens`."""
        most = min(self._max_tokens, limit or self._max_tokens)
        sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": most, "output_kind": FINAL_ONLY}
        if extra_args:
            sampling["extra_args"] = dict(extra_args)
        outputs = [output async for output in self._pair.generate(kept, sampling)]
        return outputs[-1].completions[0].text

    async def close(self) -> None:
        """Stop both engines, if they run."""
        if "_pair" in vars(self):
            await self._pair.close()


class Engines(InProcess):
    """Selectors of `evals.selection.selectors`, from engines in this process."""

    known: Mapping[str, Selector] = SELECTORS
    """All selectors, by name."""

    def __init__(
        self, target: str, speculator: str, *, engine: str, selectors: Sequence[str] = tuple(SELECTORS), **settings: Any
    ) -> None:
        """As `InProcess`. selectors: names; those that the engine cannot run are left out."""
        self.selectors = tuple(name for name in selectors if engine == "vllm" or not self.known[name].vllm)
        create = _create_wrong_origin if engine == "vllm" and WRONG_ORIGIN in selectors else None
        super().__init__(target, speculator, engine=engine, create_target=create, **settings)

    @property
    def cases(self) -> list[Case]:
        """All cases of a sample."""
        return cases_of(self.selectors, self._rates)

    @property
    def explained(self) -> tuple[str, ...]:
        """The selectors whose selections `explain` can show."""
        return tuple(name for name in self.selectors if self.known[name].served is not None)

    async def ask(self, sample: Sample, known: Collection[Case] = ()) -> dict[Case, Answer]:
        """Raises SkimError for a prompt that cannot be served, or that serving would not compress."""
        prompt = self._prompt(sample)
        cases = [case for case in self.cases if case not in known]
        chosen: dict[float, KeptPrompt] = {}
        asked: dict[Case, KeptPrompt] = {}
        # One after the other: all but the first find the prompt in the speculator's prefix cache.
        for case in cases:
            reading = await self._reading(sample, prompt, case, chosen)
            asked[case] = await self._kept(reading, case)
        # A wrong origin has the same prompt as the speculator's selection: asked later, it finds that in the cache too.
        late = [case for case in cases if case[0] == WRONG_ORIGIN]
        answers: dict[Case, Answer] = {}
        for group in ([case for case in cases if case not in late], late):
            # Decoding is greedy, so equal prompts have equal answers.
            prompts = {_identity(asked[case]): asked[case] for case in group}
            extra = _extra_args(group[0]) if group else {}
            texts = await asyncio.gather(*(self._answer(kept, extra, sample.max_tokens) for kept in prompts.values()))
            by_prompt = dict(zip(prompts, texts, strict=True))
            answers |= {
                case: Answer(by_prompt[_identity(asked[case])], int(asked[case].token_ids.size), prompt.size)
                for case in group
            }
        return answers

    async def time(self, sample: Sample) -> list[Timing]:
        """Measure each case of a sample, one after the other and each with cold caches."""
        prompt = self._prompt(sample)
        chosen: dict[float, KeptPrompt] = {}
        timings = []
        for case in self.cases:
            salt = self._pair.name("cold")
            reading = await self._reading(sample, prompt, case, chosen, salt)
            began = time.perf_counter()
            kept = await self._kept(reading, case)
            selected = time.perf_counter()
            async for _ in self._pair.generate(kept, {"temperature": 0.0, "max_tokens": 1}, cache_salt=salt):
                pass
            ended = time.perf_counter()
            size = int(kept.token_ids.size)
            timings.append(Timing(*case, selected - began, ended - selected, size, kept.context_length))
        return timings

    async def explain(self, sample: Sample, case: Case) -> tuple[RenderedPrompt, Explained]:
        """The prompt and the selection of a case of one of the selectors `explained`, made again."""
        prompt = self._prompt(sample)
        reading = await self._reading(sample, prompt, case, {})
        options = self._explained_options(reading, case[0])
        selection = await reading.selected(options)
        return prompt, Explained(selection, options, reading.layout, selection.timings)

    def _explained_options(self, reading: Reading, name: str) -> SelectionOptions:
        return reading.selection_options(**(self.known[name].served or {}))

    def _prompt(self, sample: Sample) -> RenderedPrompt:
        return render(sample, self._tokenizer, self._options)

    async def _choose(self, reading: Reading) -> KeptPrompt:
        """What the selectors that follow another one follow."""
        return await reading.select()

    async def _reading(
        self,
        sample: Sample,
        prompt: RenderedPrompt,
        case: Case,
        chosen: dict[float, KeptPrompt],
        salt: str | None = None,
    ) -> Reading:
        """The selector's input. chosen: the speculator's selections by keep rate; a missing one is added."""
        name, rate = case
        selector = self.known.get(name)
        rated = self._options.model_copy(update={"keep_rate": rate} if 0 < rate < 1 else {})
        reading = Reading(sample, prompt, prompt.layout(rated), rated, self._pair, salt=salt)
        if selector is None or not selector.follows:
            return reading
        if rate not in chosen:
            chosen[rate] = await self._choose(replace(reading, salt=None))
        return replace(reading, chosen=chosen[rate])

    async def _kept(self, reading: Reading, case: Case) -> KeptPrompt:
        name, _ = case
        return KeptPrompt.dense(reading.prompt.token_ids) if name == DENSE else await self.known[name].keep(reading)


def _identity(kept: KeptPrompt) -> tuple[bytes, bytes]:
    """What makes two kept prompts of one sample equal."""
    return kept.token_ids.tobytes(), kept.positions.tobytes()


def cases_of(
    selectors: Sequence[str], keep_rates: Sequence[float], known: Mapping[str, Selector] = SELECTORS
) -> list[Case]:
    """Dense, every selector at every keep rate below 1, and once those that choose the rate themselves.

    known: the selectors by name.
    """
    rated = [(name, rate) for rate in keep_rates for name in selectors if known[name].rated]
    return [(DENSE, 1.0), *rated, *((name, 0.0) for name in selectors if not known[name].rated)]


def _extra_args(case: Case) -> Mapping[str, Any]:
    if case[0] != WRONG_ORIGIN:
        return {}
    from evals.run.wrong_origin import FROM_KEPT

    return {FROM_KEPT: True}


def _create_wrong_origin(kind: str, model: str, *, tensor_parallel: int, options: Mapping[str, Any]) -> Any:
    """A vLLM target that can decode from a wrong origin; arguments as `target_service.engine.create_engine`."""
    from evals.run.wrong_origin import WrongOriginTarget

    return WrongOriginTarget(model, tensor_parallel=tensor_parallel, **options)


def model_name(path: str | None) -> str | None:
    """The folder's name, or the hub name. Results do not show where a folder lies."""
    return None if path is None else public_name(path)
