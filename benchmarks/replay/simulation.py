"""A replay of a trace against mock engines in virtual time: thousands of requests of a large pair within minutes.

Real: the router's dispatcher with its decision, the selection with its records, the messages, the options. Modelled:
the time of the engines (`benchmarks.replay.cost_profiles`), which compute one prompt after the other, and their prefix
caches (`benchmarks.mock_engines.compute`). Not there: HTTP and Ray, in whose place every request of Skim takes
`router_ms` longer; the effect of decoding on prefills; the scores, which are a hash of the token ids. The stock server
is the target's mock engine with all GPUs and all KV memory of its node, without a router.

With several replicas, there are as many nodes of the profile's size. Each holds a replica of both pools, or a stock
server. The real affinity (`router.pools.affinity_router`) chooses the replicas, also among the stock servers.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Generic, TypeVar

from benchmarks.harness.models import Shape, make_model, usable_ids
from benchmarks.mock_engines.speculator import MockSpeculator
from benchmarks.mock_engines.target import MockTarget
from benchmarks.replay.cost_profiles import Profile, tokens_held
from benchmarks.replay.mooncake import TracedRequest
from benchmarks.replay.results import Replayed
from benchmarks.replay.trace import scaled, token_ids
from benchmarks.replay.virtual_time import run
from benchmarks.report.progress import Progress
from cluster.in_process.pools import Unmetered
from kv_transfer.messages import (
    GenerateOutput,
    GenerateRequest,
    Int32Array,
    KeptPrompt,
    Selection,
    SelectRequest,
    SessionHandle,
)
from kv_transfer.sampling import DELTA
from kv_transfer.wire.codec import decode, encode
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.interface import unwatched
from router.pools.prefix_affinity import PrefixKeys, preferred
from router.pools.serve_pools import Admitted
from router.prompt.rendered import RenderedPrompt
from skim_common.models.info import ModelInfo
from speculator_service.service import SpeculatorService

MOST_AT_ONCE = 64
"""Requests that a replica runs at a time, the default of `max_ongoing_requests`."""

Engine = TypeVar("Engine")

Ask = Callable[[int, Int32Array, int], Any]
"""Awaited with the request's number, its prompt and the length of its answer; gives the fields of a Replayed."""


class Replicas(Generic[Engine]):
    """The replicas of one pool. `taken` gives a call the replica that the router's affinity would give it."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self._loads = dict.fromkeys(range(len(engines)), 0)

    @contextmanager
    def taken(self, key: str) -> Iterator[Engine]:
        within, beyond = preferred(key, self._loads, dict.fromkeys(self._loads, MOST_AT_ONCE))
        chosen = within[0] if within else min(beyond, key=self._loads.__getitem__)
        self._loads[chosen] += 1
        try:
            yield self.engines[chosen]
        finally:
            self._loads[chosen] -= 1


class MockPools:
    """Both pools in this process. Every message is encoded and decoded, as on the wire."""

    def __init__(self, speculators: Sequence[MockSpeculator], targets: Sequence[MockTarget]) -> None:
        self.speculator: ModelInfo | None = speculators[0].info
        self.target = targets[0].info
        self._services = Replicas([SpeculatorService(engine) for engine in speculators])
        self._targets = Replicas(targets)

    @classmethod
    def of(cls, profile: Profile, replicas: int, *, read: int = 0, held: int = 0) -> "MockPools":
        """Pools with so many replicas each. read, held: tokens that the caches of a speculator and of a target hold."""
        model, gpus = _model(), profile.speculator_gpus
        speculators = [
            MockSpeculator(
                model,
                ms_per_token=profile.speculator.ms_per_token(gpus),
                ms_per_look_ahead=profile.speculator.ms_per_step(gpus),
                cache_tokens=read,
                one_at_a_time=True,
            )
            for _ in range(replicas)
        ]
        return cls(speculators, _targets(model, profile, profile.gpus - gpus, held, replicas))

    untrusted = False

    def replicas(self, pool: str) -> float:
        """As many in each pool."""
        return len(self._targets.engines)

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched) -> Selection:
        with self._services.taken(request.envelope.affinity) as service:
            selection = await service.select(decode(encode(request), SelectRequest))
        return decode(encode(selection), Selection)

    async def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        with self._targets.taken(request.envelope.affinity) as target:
            async with aclosing(target.generate(decode(encode(request), GenerateRequest))) as outputs:
                async for output in outputs:
                    yield decode(encode(output), GenerateOutput)

    async def end_session(self, session: SessionHandle) -> None:
        """No session is kept, because nothing drafts."""


class _Skim:
    def __init__(
        self, profile: Profile, options: PrefillOptions, stock_tokens: int, router_ms: float, replicas: int
    ) -> None:
        held, read = tokens_held(stock_tokens, options.fixed_rate or options.largest_share, profile.ratio)
        self._options, self._decode = options, SpeculationOptions(method="none")
        self._pools = MockPools.of(profile, replicas, read=read, held=held)
        self._dispatcher = Dispatcher(
            self._pools, self._options, self._decode, RouterConfig(select_timeout_s=3600), Unmetered()
        )
        self._router_ms = router_ms

    async def ask(self, number: int, ids: Int32Array, answer_tokens: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        context = CallState(Request(self._options, self._decode.decode))
        prompt = Prompt(RenderedPrompt(ids), _sampling(answer_tokens), answer_tokens)
        await asyncio.sleep(self._router_ms / 1e3)
        first, cached = await _read(self._dispatcher.run(str(number), prompt, context))
        [outcome] = context.prompts
        return {
            "ttft_ms": 1e3 * (first - began),
            "kept_tokens": outcome.kept_tokens,
            "target_cached": cached,
            "reason": f"{outcome.mode}, {outcome.reason}",
        }


class _Stock:
    def __init__(self, profile: Profile, stock_tokens: int, replicas: int) -> None:
        self._targets = Replicas(_targets(_model(), profile, profile.gpus, stock_tokens, replicas))
        self._keys = PrefixKeys()

    async def ask(self, number: int, ids: Int32Array, answer_tokens: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        request = GenerateRequest(str(number), KeptPrompt.dense(ids), _sampling(answer_tokens))
        with self._targets.taken(self._keys.key(ids)) as target:
            first, cached = await _read(target.generate(request))
        ttft_ms = 1e3 * (first - began)
        return {"ttft_ms": ttft_ms, "kept_tokens": int(ids.size), "target_cached": cached, "reason": ""}


async def _read(answer: AsyncGenerator[GenerateOutput, None]) -> tuple[float, int]:
    """Read an answer to its end. Returns the time of its first output, and the cached tokens of its prompt."""
    loop, first, cached = asyncio.get_running_loop(), 0.0, 0
    async with aclosing(answer) as outputs:
        async for output in outputs:
            first, cached = first or loop.time(), cached or output.cached_tokens
    return first, cached


def simulate(
    requests: Sequence[TracedRequest],
    profile: Profile,
    *,
    options: PrefillOptions,
    block_tokens: int,
    answer_tokens: int,
    stock_tokens: int,
    router_ms: float,
    progress: Progress,
    replicas: int = 1,
) -> list[Replayed]:
    """Both systems, one after the other. stock_tokens: capacity of a stock server's KV cache; Skim's two replicas of a
    node share as much memory. replicas: of each pool, and stock servers.
    """
    replayed: list[Replayed] = []
    for part, system in enumerate(("stock", "skim")):

        def report(share: float, part: int = part, system: str = system) -> None:
            progress(f"simulating {system}", (part + share) / 2)

        skim = system == "skim"
        engines = (
            _Skim(profile, options, stock_tokens, router_ms, replicas)
            if skim
            else _Stock(profile, stock_tokens, replicas)
        )
        replayed += run(_replay(system, requests, engines.ask, block_tokens, answer_tokens, report))
    return replayed


async def _replay(
    system: str,
    requests: Sequence[TracedRequest],
    ask: Ask,
    block_tokens: int,
    answer_tokens: int,
    report: Callable[[float], None],
) -> list[Replayed]:
    begun = 0

    async def one(number: int, request: TracedRequest) -> Replayed:
        nonlocal begun
        await asyncio.sleep(request.at_s)
        begun += 1
        report(begun / len(requests))
        ids = token_ids(request, block_tokens, usable_ids())
        answer = min(answer_tokens, scaled(request.answer_tokens, block_tokens))
        told = await ask(number, ids, answer)
        return Replayed(system=system, round=1, number=number, prompt_tokens=int(ids.size), **told)

    return list(await asyncio.gather(*(one(number, request) for number, request in enumerate(requests))))


def _targets(model: str, profile: Profile, gpus: int, cache_tokens: int, count: int) -> list[MockTarget]:
    """So many target engines, each on `gpus` GPUs."""
    return [
        MockTarget(
            model,
            prefill_ms_per_token=profile.target.ms_per_token(gpus),
            decode_ms=profile.target.ms_per_step(gpus),
            cache_tokens=cache_tokens,
            one_at_a_time=True,
        )
        for _ in range(count)
    ]


def _sampling(answer_tokens: int) -> dict[str, Any]:
    return {"max_tokens": answer_tokens, "temperature": 0.0, "ignore_eos": True, "output_kind": DELTA}


def _model() -> str:
    """A folder with the config and tokenizer of a tiny model for long prompts; mock engines load no weights."""
    return str(make_model(Shape(layers=1, heads=1, kv_heads=1, intermediate=64), seed=0))
