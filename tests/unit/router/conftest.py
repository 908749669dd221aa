"""The router's whole HTTP app over mock engines in this process: no Ray, no weights."""

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from kv_transfer.codec import decode, encode
from kv_transfer.messages import GenerateOutput, GenerateRequest, Selection, SelectRequest
from router.deployment import add_selection_route
from router.dispatch import Dispatcher
from router.openai_app import build_openai_app
from router.options import RequestOptions
from speculator_service.mock_engine import MockSpeculator
from speculator_service.service import SpeculatorService
from target_service.mock_engine import MockTarget

MODELS = Path(__file__).parents[3] / "demo_models"
MODEL_NAME = "demo"
MIN_PROMPT_TOKENS = 256
SELECT_TIMEOUT_S = 2.0


class LocalPools:
    """Both pools in this process; every message still makes its way over the wire's bytes."""

    def __init__(self) -> None:
        self.speculator_engine = MockSpeculator(str(MODELS / "speculator"))
        self.target_engine = MockTarget(str(MODELS / "target"))
        self.speculator, self.target = self.speculator_engine.info, self.target_engine.info
        self.selects: list[SelectRequest] = []
        self.generates: list[GenerateRequest] = []
        self.select_error: Exception | None = None
        self.generate_error: Exception | None = None

    async def select(self, request: SelectRequest) -> Selection:
        self.selects.append(request)
        if self.select_error is not None:
            raise self.select_error
        selection = await SpeculatorService(self.speculator_engine).select(decode(encode(request), SelectRequest))
        return decode(encode(selection), Selection)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        self.generates.append(request)
        if self.generate_error is not None:
            raise self.generate_error
        async for output in self.target_engine.generate(decode(encode(request), GenerateRequest)):
            yield decode(encode(output), GenerateOutput)


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[SimpleNamespace]:
    """client: httpx over the app. pools: the LocalPools behind it."""
    pools = LocalPools()
    dispatcher = Dispatcher(pools, RequestOptions(min_prompt_tokens=MIN_PROMPT_TOKENS), SELECT_TIMEOUT_S)
    app = await build_openai_app(dispatcher, str(MODELS / "target"), MODEL_NAME, 16384, {"dtype": "float32"})
    add_selection_route(app, dispatcher)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        yield SimpleNamespace(client=client, pools=pools, app=app, dispatcher=dispatcher)


@pytest.fixture
def pools(served: SimpleNamespace) -> LocalPools:
    """The module's pools, their records and failures cleared."""
    served.pools.selects.clear()
    served.pools.generates.clear()
    served.pools.select_error = served.pools.generate_error = None
    return served.pools


@pytest.fixture
def client(served: SimpleNamespace, pools: LocalPools) -> httpx.AsyncClient:
    return served.client
