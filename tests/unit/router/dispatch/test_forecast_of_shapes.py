"""The router's forecast of what the pools compute, for prompts of the shapes of agents and chats: counted, not timed.

The prompts are those of `skim bench forecast`, which measures the times with real engines. Here mock engines tell how
many tokens they computed.
"""

from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import pytest_asyncio

from benchmarks.latency.forecast_shapes import ROUNDS_APART, SHAPES, TEMPLATE
from router.decision.forecast import Forecaster
from router.decision.sizes import KeptSizes
from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from speculator_service.selection.records import Records
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import MODEL_NAME, MODELS, LocalPools

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_MODEL_LEN, HELD = 32_768, 2**20
SPECULATOR_TOKEN = 0.1
"""The work of a token of the speculator, if one of the target is 1."""
SHORT = 500
"""Work that takes little time, most of which no token takes. Its forecast is not judged, as in the benchmark."""
OF_BASE = [shape for shape in SHAPES if shape != "adapter"]  # the mock target has no adapters


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def router(tmp_path_factory):
    from router.vllm_front.app import ServedModel, build_openai_app

    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    engine = {"max_model_len": MAX_MODEL_LEN, "cache_tokens": HELD}
    pools = LocalPools(speculator={**engine, "head_profile": True}, target=engine)
    pools.records = Records()
    defaults, decode = PrefillOptions(), SpeculationOptions()
    dispatcher = Dispatcher(pools, defaults, decode, RouterConfig(), LocalMeter())
    folder = str(MODELS / "target")
    served = ServedModel(folder, "target", (MODEL_NAME,), MAX_MODEL_LEN, {"chat_template": str(template)})
    app = await build_openai_app(dispatcher, served)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://router", timeout=60
    ) as client:
        yield SimpleNamespace(client=client, forecaster=dispatcher.forecaster)


@pytest.fixture
def works(monkeypatch):
    """What was expected and what was computed, of the latest prompt: its work in both pools."""
    found = SimpleNamespace(expected=0.0, computed=0.0)
    selected, began = Forecaster.selected, Forecaster.began

    def note_selected(self, forecast, selection, options):
        size, cached = int(forecast.ids.size), selection.cached_tokens
        windows = forecast.windows
        computed = windows.tokens(cached) + windows.tokens_again() if windows else size - cached
        expected = self._reads(forecast, options).read
        found.computed = SPECULATOR_TOKEN * computed
        found.expected = SPECULATOR_TOKEN * expected.tokens if expected else 0.0
        return selected(self, forecast, selection, options)

    def note_began(self, forecast, prompt, cached, ms, queue_ms):
        if prompt.is_dense:
            found.computed = found.expected = 0.0
        reads = self._reads(forecast, note_began.options)
        found.expected += (reads.dense if prompt.is_dense else reads.kept).tokens
        found.computed += prompt.token_ids.size - cached
        began(self, forecast, prompt, cached, ms, queue_ms)

    monkeypatch.setattr(Forecaster, "selected", note_selected)
    monkeypatch.setattr(Forecaster, "began", note_began)
    found.options = lambda options: setattr(note_began, "options", options)
    return found


async def ask(router, works, prompt, read, mode, salt):
    """The expected work of a prompt, and the real one."""
    body = {"model": MODEL_NAME, "messages": prompt.messages, "max_tokens": 4, "cache_salt": salt, **prompt.fields}
    asked = {"enabled": {"dense": False, "speculative": "always"}[mode], "read": read}
    works.options(PrefillOptions(**asked).for_prompt(windows=read == "windows"))
    answer = await router.client.post("/v1/chat/completions", json={**body, "speculative_prefill": asked})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-skim-mode"] == mode
    return works.expected, works.computed


async def measured(router, works, shape, read, prompts=5):
    """The expected works [N] and the real ones [N], of some prompts of a shape in both modes."""
    found = []
    for number in range(prompts):
        case = SHAPES[shape](number)
        for mode in ("dense", "speculative"):
            salt = f"{shape} {read} {mode} {number if shape in ROUNDS_APART else ''}"
            for prompt, before in case.before:
                await ask(router, works, prompt, read, before, salt)
            found.append(await ask(router, works, case.asked, read, mode, salt))
    return np.array(found).T


@pytest.mark.parametrize("read", ["windows", "whole"])
@pytest.mark.parametrize("shape", OF_BASE)
async def test_the_forecast_of_the_work_is_right_for_every_shape(router, works, shape, read):
    # The first prompts tell how much a selection keeps, and the first later turns how many late tokens they read.
    prompts, first = (10, 6) if shape == "later turns" else (5, 2)
    expected, computed = await measured(router, works, shape, read, prompts=prompts)
    found = (expected / computed)[first:][computed[first:] > SHORT]
    assert found.size >= 5
    # What is kept follows from scores, which are random here: of late tokens in a later turn, and of short messages
    # read whole where the question shares no word with them.
    right = {("later turns", read): 0.8, ("100 messages", "whole"): 0.75}.get((shape, read), 0.9)
    assert np.mean((found > 0.8) & (found < 1.25)) >= right, found.round(2).tolist()


@pytest.mark.parametrize("shape", ["system 5k", "tools 8k"])
async def test_without_what_is_always_kept_the_forecast_of_an_agents_prompt_is_wrong(router, works, shape, monkeypatch):
    """The negative control: protected text counts as text that may be dropped."""
    sizes = KeptSizes.of
    monkeypatch.setattr(KeptSizes, "of", lambda size, protect_last, layout: sizes(size, protect_last))
    expected, computed = await measured(router, works, shape, "windows")
    found = (expected / computed)[3::2]
    assert not ((found > 0.8) & (found < 1.25)).any()
