"""The asked turns of an agent's conversations, run as a router runs them: dense, by the default, and with catch-up.

Each conversation and mode has a dispatcher of its own and a cache salt of its own, over the same two engines. So what
one conversation teaches a router changes no answer of another, and no mode finds what another one cached. No speed is
known to the dispatchers, so they decide by tokens: a busy machine changes no answer.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import aclosing
from typing import Any

from evals.run.ask import Answer, Case, InProcess
from evals.selection.prompts import template_messages
from evals.selection.selectors import DENSE
from evals.tasks.registry import Sample
from kv_transfer.messages import FINAL_ONLY
from kv_transfer.options import ALWAYS, AUTO, DecodeOptions
from router.decision.pool_time import PoolTime
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState, Outcome
from router.options.request import OFF, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim.engines import InProcessPools, SelectionFailedError, Unmetered
from skim.prompts import render
from skim_common.errors import SkimError

WITHOUT, CAUGHT_UP = "auto", "auto + catch-up"
MODES: Mapping[str, str] = {
    WITHOUT: "the default without catch-up: each turn extends what was kept for the turn before it",
    CAUGHT_UP: "the default, and after each answer from a part of the prompt the target reads all of it, before the"
    " next turn is asked",
}
"""What each mode beside dense is, by name."""

_PREFILL: Mapping[str, dict[str, Any]] = {
    DENSE: {"enabled": False},
    WITHOUT: {"enabled": AUTO, "catch_up": OFF},
    CAUGHT_UP: {"enabled": AUTO, "catch_up": ALWAYS},
}
_TIMES = ("speculator", "target", "adapted", "windows", "lexical")
_LOOK_S = 0.05
_FOREVER_S = 1e9


class AgentEngines(InProcess):
    """The modes, from engines in this process. The turns of a conversation must be asked in their order."""

    selectors = tuple(MODES)

    def __init__(self, target: str, speculator: str, **settings: Any) -> None:
        """As `InProcess`."""
        super().__init__(target, speculator, **settings)
        self._least = PrefillOptions().min_prompt_tokens
        self._dispatchers: dict[tuple[str, str], Dispatcher] = {}

    @property
    def cases(self) -> list[Case]:
        """All cases of a turn."""
        return [(DENSE, 1.0), *((name, 0.0) for name in self.selectors)]

    async def ask(self, sample: Sample, known: Collection[Case] = ()) -> dict[Case, Answer]:
        """Ask one turn in each mode. Raises SkimError for a prompt that cannot be served, and for a catch-up that does
        not come to its end.

        known: only a dense answer is not asked again; those of the other modes follow from the turns before.
        """
        asked = [case for case in self.cases if case[0] != DENSE or case not in known]
        return {(name, rate): await self._ask(sample, name) for name, rate in asked}

    async def _ask(self, sample: Sample, mode: str) -> Answer:
        # No field counts as set: the guard obeys a request that says how much to keep.
        fields = {**self._options.model_dump(), "min_prompt_tokens": self._least, **_PREFILL[mode]}
        options = PrefillOptions.model_construct(set(), **fields)
        rendered = render(template_messages(sample.messages), self._tokenizer, options)
        most = min(self._max_tokens, sample.max_tokens or self._max_tokens)
        sampling = {"temperature": 0.0, "max_tokens": most, "output_kind": FINAL_ONLY}
        prompt = Prompt(rendered, sampling, most, cache_salt=f"{sample.seed} {mode}")
        call = CallState(Request(options, DecodeOptions(method="none"), has_tools=True))
        dispatcher, name = self._dispatcher(sample.seed, mode), self._pair.name("ask")
        try:
            async with aclosing(dispatcher.run(name, prompt, call)) as outputs:
                [output] = [output async for output in outputs]
        except SelectionFailedError as failed:
            raise failed.error from None
        [outcome] = call.prompts
        if mode == CAUGHT_UP:
            await _caught_up(dispatcher, name, outcome)
        return Answer(output.completions[0].text, outcome.kept_tokens, outcome.prompt_tokens)

    def _dispatcher(self, conversation: str, mode: str) -> Dispatcher:
        key = conversation, mode
        if key not in self._dispatchers:
            settings = RouterConfig(migration=False, select_timeout_s=_FOREVER_S)
            pools = InProcessPools(self._pair, drafts=False)
            dispatcher = Dispatcher(pools, self._options, SpeculationOptions(), settings, Unmetered())
            for name in _TIMES:
                setattr(dispatcher.forecaster, name, _Unmeasured(asyncio.get_running_loop().time))
            self._dispatchers[key] = dispatcher
        return self._dispatchers[key]


class _Unmeasured(PoolTime):
    """A pool whose speed stays unknown."""

    @property
    def is_known(self) -> bool:
        return False


async def _caught_up(dispatcher: Dispatcher, name: str, outcome: Outcome) -> None:
    """Wait until the target has read the whole turn. Raises SkimError if it will not."""
    if not outcome.catch_up_reason:
        return
    state = "reading" if outcome.catches_up else outcome.catch_up_state
    while state == "reading":
        await asyncio.sleep(_LOOK_S)
        entry = dispatcher.log.get(name)
        state = entry.catch_up["state"] if entry and entry.catch_up else "reading"
    if state != "done":
        raise SkimError(f"{outcome.prompt_tokens} tokens were not caught up ({state}): give the target more KV cache")
