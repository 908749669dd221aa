"""The router's whole HTTP app over mock engines in this process: no Ray, no weights."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from benchmarks.mock_engines.speculator import MockSpeculator
from benchmarks.mock_engines.target import MockTarget
from demo_models.documents import DemoDocument, make_document
from kv_transfer.codec import decode, encode
from kv_transfer.messages import GenerateOutput, GenerateRequest, Selection, SelectRequest, SessionHandle
from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.interface import unwatched
from router.pools.serve_pools import Admitted
from speculator_service.selection.records import Records
from speculator_service.service import SpeculatorService
from tests.unit.actors.local_meter import LocalMeter

MODELS = Path(__file__).parents[3] / "demo_models"
MODEL_NAME = "demo"
MAX_MODEL_LEN = 4096
MIN_PROMPT_TOKENS = 256
SELECT_TIMEOUT_S = 60.0
KEEP_ALIVE_S = 60.0


class LocalPools:
    """Both pools in this process. Every message is still encoded to bytes and decoded.

    speculator, target: options of the mocks. selects, generates: the requests that arrived. A selection
    leaves a session in the mock speculator. Nothing drafts, so only `end_session` ends it.
    """

    def __init__(self, speculator: dict[str, Any] | None = None, target: dict[str, Any] | None = None) -> None:
        self.speculator_engine = MockSpeculator(str(MODELS / "speculator"), **(speculator or {}))
        self.target_engine = MockTarget(str(MODELS / "target"), **{"max_model_len": MAX_MODEL_LEN, **(target or {})})
        self.speculator, self.target = self.speculator_engine.info, self.target_engine.info
        self.selects: list[SelectRequest] = []
        self.generates: list[GenerateRequest] = []
        self.records: Records | None = None  # None: a selection knows no earlier one
        self.select_error: Exception | None = None
        self.generate_error: Exception | None = None

        self.untrusted = False

    def replicas(self, pool: str) -> float:
        return 1.0

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched, answers: bool = True) -> Selection:
        self.selects.append(request)
        if self.select_error is not None:
            raise self.select_error
        admitted()
        service = SpeculatorService(self.speculator_engine, "here:1")
        if self.records is not None:
            service.records = self.records
        received = decode(encode(request), SelectRequest)
        if received.decode is not None:  # over the kept prompt, the drafting side opens the session, which is not here
            received = replace(received, decode=received.decode.model_copy(update={"draft_context": "full"}))
        selection = await service.select(received)
        return decode(encode(selection), Selection)

    async def end_session(self, session: SessionHandle) -> None:
        await self.speculator_engine.close_session(session.id)

    async def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        self.generates.append(request)
        if self.generate_error is not None:
            raise self.generate_error
        admitted()
        async with aclosing(self.target_engine.generate(decode(encode(request), GenerateRequest))) as outputs:
            async for output in outputs:
                yield decode(encode(output), GenerateOutput)


async def until(condition: Callable[[], object]) -> None:
    """Poll until another task makes the condition true; the mocks send no signal."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


# Building the app takes seconds, so the whole session uses one app, in one event loop.
@contextmanager
def built_with(dispatcher: Dispatcher, **settings: Any) -> Iterator[None]:
    """While this lasts, an app that is built over the dispatcher has these settings, too."""
    before = dispatcher.settings
    dispatcher.settings = before.model_copy(update=settings)
    try:
        yield
    finally:
        dispatcher.settings = before


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served() -> AsyncIterator[SimpleNamespace]:
    """client: httpx client of the app. dispatcher: the app's; its `pools` can be replaced."""
    from router.vllm_front.app import ServedModel, build_openai_app

    defaults = PrefillOptions(enabled="always", min_prompt_tokens=MIN_PROMPT_TOKENS, selector="speculator")
    settings = RouterConfig(
        select_timeout_s=SELECT_TIMEOUT_S,
        keep_alive_s=KEEP_ALIVE_S,
    )
    dispatcher = Dispatcher(
        LocalPools(),
        defaults,
        SpeculationOptions(),
        settings,
        LocalMeter(),
    )
    folder = str(MODELS / "target")
    model = ServedModel(folder, "target", (MODEL_NAME,), MAX_MODEL_LEN, {"dtype": "float32"})
    app = await build_openai_app(dispatcher, model)
    dispatcher.log.add_routes(app)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        yield SimpleNamespace(client=client, app=app, dispatcher=dispatcher)


@pytest.fixture
def use_pools(served: SimpleNamespace) -> Iterator[Any]:
    """Replace the pools behind the app with `use_pools(speculator={...}, target={...})`, which returns them."""
    before = served.dispatcher.pools

    def use(**options: Any) -> LocalPools:
        served.dispatcher.pools = LocalPools(**options)
        return served.dispatcher.pools

    yield use
    served.dispatcher.pools = before


@pytest.fixture
def pools(served: SimpleNamespace) -> LocalPools:
    """The pools behind the app, with their records and failures cleared."""
    pools = served.dispatcher.pools
    pools.selects.clear()
    pools.generates.clear()
    pools.select_error = pools.generate_error = None
    return pools


@pytest.fixture
def client(served: SimpleNamespace, pools: LocalPools) -> httpx.AsyncClient:
    return served.client


@pytest.fixture(scope="session")
def document() -> DemoDocument:
    """A document of about a thousand tokens and a question."""
    return make_document(1000, seed=1)
