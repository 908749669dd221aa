"""`skim eval` with the router's HTTP app: an endpoint gets the same prompts as engines in this process."""

import httpx
import pytest
from transformers import AutoTokenizer

from evals.run.ask import Engines
from evals.run.endpoint import Endpoint
from evals.tasks.registry import make_samples
from skim_common.errors import SkimError
from tests.unit.router.conftest import MODELS

ASKED = {"keep_rates": (0.2, 0.5), "look_ahead": 8, "max_tokens": 8}


@pytest.fixture
def endpoint(served, pools):
    client = httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://router", timeout=60)
    return Endpoint("http://router", http_client=client, **ASKED)


@pytest.fixture(scope="module")
def sample():
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")

    def tokens(text):
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    [sample] = make_samples(["multi_key"], [1024], 1, seed=0, style="plain", tokens=tokens)
    return sample


@pytest.mark.asyncio(loop_scope="session")
async def test_an_endpoint_serves_what_the_engines_of_one_process_are_given(endpoint, use_pools, sample):
    profile = {"head_profile": True}  # so that windows are read
    pools = use_pools(speculator=profile)
    pair = (str(MODELS / "target"), str(MODELS / "speculator"))
    engines = Engines(*pair, engine="mock", target_options={}, speculator_options=profile, **ASKED)
    here, there = await engines.ask(sample), await endpoint.ask(sample)
    # The mock's answer is a hash of the kept ids, their positions and the context length.
    assert there == {case: here[case] for case in there}
    served = {"dense", "speculator", "look-ahead 0", "question", "auto", "heads", "heads, windows", "lexical"}
    assert {name for name, _ in there} == served
    assert len({answer.text for answer in there.values()}) > 1
    assert len(pools.generates) == 14


@pytest.mark.asyncio(loop_scope="session")
async def test_a_prompt_that_fell_back_to_dense_does_not_count(endpoint, pools, sample):
    pools.select_error = SkimError("the speculator is on holiday")
    with pytest.raises(SkimError, match=r"ran a speculative prompt dense \(speculator-error\)"):
        await endpoint.ask(sample)
