"""Turns of a conversation about a long document: Skim and a stock vLLM server with its prefix cache.

A conversation has one document and several questions; each question is a turn. A client sends the whole history every
time, with the answers that it got. Every mode has its own conversation with the same document and questions, and its
own cache salt, so no mode finds what another one cached. The modes take turns after each request, in alternating order,
so other load on the machine slows all of them alike. Ratios are formed within a round; a round is one conversation. The
first round is a warm-up and is not counted.

The modes are in `MODES`; all but one of them switch the catch-up off, which would slow the others' requests. With
models of random weights the answers mean nothing, so the right answer goes into the history, and no answer is judged.
With `apart`, one system at a time is in memory: first all rounds of the stock server, then all of Skim. Ratios are then
not protected from other load.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp

from benchmarks.harness.chat_client import Timed, ask
from benchmarks.harness.conversations import Conversation, Style, conversation
from benchmarks.harness.servers import MODEL, SETTLE_S, engine_environment, engine_options, skim_config, stock_server
from benchmarks.latency.turns_results import Answered, describe, plot, rows_of, table, totals_of
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from skim_common.models.source import local_folder, public_name

__all__ = ["describe", "plot", "run", "table"]

MODES = {
    "dense": "a stock vLLM server with its prefix cache",
    "auto": "Skim decides for each turn whether it runs speculative",
    "speculative": "Skim runs every turn speculative",
    "fresh": "as speculative, and every turn is selected anew (`reuse: off`)",
    "caught up": "as auto, and the client waits until the target has read the whole conversation (`catch_up: always`)",
    "dense first": "Skim runs the first turn dense on request, and decides for the later ones",
}
"""Each mode and what it is. `dense` is always measured."""

_CHAT = "/v1/chat/completions"
# Tokens of a question, its answer and the template around them, at most, with any tokenizer.
_TURN_TOKENS = 128
CATCH_UP_LOOK_S = 0.1


@dataclass(frozen=True)
class TurnsSettings:
    """document_tokens: length of the first prompt in the demo tokenizer. scripted: the weights are random (see above).

    shapes: what the models are, for models of random weights.
    """

    target: str
    speculator: str
    document_tokens: int = 8192
    turns: int = 8
    rounds: int = 3
    keep_rate: float | Literal["auto"] = 0.1
    answer_tokens: int = 8
    modes: tuple[str, ...] = tuple(MODES)
    style: Style = "plain"
    scripted: bool = False
    apart: bool = False
    dtype: str = "float32"
    seed: int = 0
    shapes: str = ""

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer; other tokenizers need up to a quarter more than the demo's."""
        margin = 1 if self.style == "plain" else 1.25
        return round(self.document_tokens * margin) + _TURN_TOKENS * self.turns


def run(settings: TurnsSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows` and `totals` are described in `turns_results`. Raises SkimError if a system does not start or
    answer.
    """
    began = machine()
    skim = [mode for mode in settings.modes if mode != "dense"]
    phases = [["dense"], skim] if settings.apart else [["dense", *skim]]
    answered: list[Answered] = []
    for number, modes in enumerate(phase for phase in phases if phase):
        with ExitStack() as stack:
            urls = _started(settings, modes, stack, progress)
            done = (number / len(phases), 1 / len(phases))
            answered += asyncio.run(converse(settings, modes, urls, progress, done))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {
        "machine": began,
        "settings": asdict(settings) | names,
        "modes": {mode: MODES[mode] for mode in ("dense", *skim)},
        "engine_options": engine_options(settings.longest, dtype=settings.dtype),
        "environment": engine_environment(),
        "rows": rows_of(answered),
        "totals": totals_of(answered),
    }


def _started(settings: TurnsSettings, modes: Sequence[str], stack: ExitStack, progress: Progress) -> dict[str, str]:
    """Start the systems that the modes need. Gives the base URL of each mode."""
    from cluster.serve.deployment import deployed

    target, longest = Path(local_folder(settings.target, weights=True)), settings.longest
    urls = {}
    if "dense" in modes:
        progress("starting a stock vLLM server", 0)
        urls["dense"] = stack.enter_context(stock_server(target, longest, 2 * longest, dtype=settings.dtype))
    if skim := [mode for mode in modes if mode != "dense"]:
        progress("starting Skim", 0)
        # Each mode keeps a conversation of its own in the caches.
        held = (len(skim) + 1) * longest
        config = skim_config(target, Path(settings.speculator), longest, held, dtype=settings.dtype)
        urls |= dict.fromkeys(skim, stack.enter_context(deployed(config, progress=lambda _: None)))
    return urls


async def converse(
    settings: TurnsSettings,
    modes: Sequence[str],
    urls: Mapping[str, str],
    progress: Progress,
    done: tuple[float, float],
) -> list[Answered]:
    """All rounds of these modes. urls: base URLs by mode. done: the share of the run that is finished, and that of this
    part.
    """
    answered: list[Answered] = []
    timeout = aiohttp.ClientTimeout(total=1800)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for index in range(settings.rounds + 1):
            chat = conversation(settings.document_tokens, settings.turns, settings.seed + index, settings.style)
            clients = {mode: _Client(settings, session, urls[mode], mode, chat, index) for mode in modes}
            which = f"round {index} of {settings.rounds}" if index else "warming up"
            planned = list(turns(settings.turns, modes, index))
            for place, (turn, mode) in enumerate(planned):
                share = (index * settings.turns + turn) / (settings.rounds + 1) / settings.turns
                progress(f"{which}, turn {turn + 1}: {mode}", done[0] + done[1] * share)
                got = await clients[mode].ask(turn)
                if mode == "dense" and planned[place + 1 : place + 2] != [(turn + 1, "dense")]:
                    await asyncio.sleep(SETTLE_S)
                if index:
                    answered.append(got)
    return answered


def turns(count: int, modes: Sequence[str], index: int) -> Iterator[tuple[int, str]]:
    """Turns and modes of a round in their order. The order of the modes is reversed from turn to turn and from round
    to round.
    """
    for turn in range(count):
        yield from ((turn, mode) for mode in (modes if (turn + index) % 2 else modes[::-1]))


def prefill_options(settings: TurnsSettings, mode: str, turn: int) -> Any:
    """The body field `speculative_prefill` of a mode's turn."""
    if mode == "dense first" and turn == 0:
        return False
    asked: dict[str, Any] = {"keep_rate": settings.keep_rate, "catch_up": "always" if mode == "caught up" else "off"}
    if mode in ("speculative", "fresh"):
        asked["enabled"] = "always"
    if mode == "fresh":
        asked["reuse"] = "off"
    return asked


class _Client:
    """One mode's conversation."""

    def __init__(
        self,
        settings: TurnsSettings,
        session: aiohttp.ClientSession,
        url: str,
        mode: str,
        chat: Conversation,
        index: int,
    ) -> None:
        self._settings, self._session, self._url = settings, session, url
        self._mode, self._chat, self._index = mode, chat, index
        self._answers: list[str] = []

    async def ask(self, turn: int) -> Answered:
        """Send this turn and add its answer to the history."""
        settings = self._settings
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": self._chat.messages(turn, self._answers),
            "max_tokens": settings.answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": f"{settings.seed}-{self._index}-{self._mode}",
        }
        if settings.scripted:
            body["ignore_eos"] = True
        if self._mode != "dense":
            body["speculative_prefill"] = prefill_options(settings, self._mode, turn)
        timed = await ask(self._session, self._url + _CHAT, body)
        if timed.headers.get("x-skim-catch-up", "").startswith("planned"):
            await self._caught_up(timed)
        question = self._chat.questions[turn]
        self._answers.append(f"{question.expected}." if settings.scripted else timed.text)
        prompt_tokens = int(timed.usage["prompt_tokens"])
        return Answered(
            mode=self._mode,
            round=self._index,
            turn=turn,
            ttft_ms=timed.first_ms,
            prompt_tokens=prompt_tokens,
            kept_tokens=int(timed.headers.get("x-skim-kept-tokens", prompt_tokens)),
            target_cached=timed.cached_tokens,
            speculator_cached=await self._speculator_cached(timed),
            reason=timed.reason.partition(";")[0],
            right=None if settings.scripted else question.is_right(timed.text),
            parts=timed.parts,
        )

    async def _caught_up(self, timed: Timed) -> None:
        """Wait until the catch-up of an answer has ended, whatever became of it."""
        while (await self._selection(timed)).get("catch_up", {}).get("state") in (None, "reading"):  # noqa: ASYNC110
            await asyncio.sleep(CATCH_UP_LOOK_S)

    async def _speculator_cached(self, timed: Timed) -> int | None:
        speculative = timed.headers.get("x-skim-mode") == "speculative"
        return int((await self._selection(timed))["cached_tokens"]) if speculative else None

    async def _selection(self, timed: Timed) -> Mapping[str, Any]:
        async with self._session.get(f"{self._url}/v1/requests/{timed.request_id}/selection") as response:
            response.raise_for_status()
            return dict(await response.json())
