"""Both legs of a request on a split target, through Serve handles."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from kv_transfer.codec import decode, encode, encode_error
from kv_transfer.messages import (
    ACCEPTED,
    Completion,
    Envelope,
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
)
from router.pools.affinity_router import by_prefix
from router.pools.availability import PoolStates, Replicas
from router.pools.migration import MAX_REFUSALS
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from tests.unit.router.conftest import until
from tests.unit.router.serve_handles import (
    FOREVER,
    GOOD,
    REQUEST,
    SELECT,
    SELECTION,
    Reply,
    died,
    output,
    serve_pools,
    split_pools,
    texts,
)

BLOCKS = {"remote_block_ids": [[1, 2]]}


async def test_the_prefill_half_reads_the_prompts():
    states = PoolStates(30.0)
    states.note({"prefill": Replicas(3, 3), "target": Replicas(2, 2), "speculator": Replicas(4, 4)})
    split, *_ = split_pools(states=states)
    whole, *_ = serve_pools(states=states)
    assert (split.replicas("target"), split.replicas("speculator"), whole.replicas("target")) == (3, 4, 2)


def prefilled(**timings):
    return encode(GenerateOutput([], True, timings=timings, kv_blocks=BLOCKS))


async def test_a_split_target_prefills_in_one_half_and_decodes_in_the_other():
    first = GenerateOutput([Completion(0, "a", np.array([1], np.int32))], True, timings={"queue": 50.0, "prefill": 2.0})
    pools, target, prefill = split_pools(
        prefill=[Reply(ACCEPTED, prefilled(queue=3.0, prefill=40.0))], target=[Reply(ACCEPTED, encode(first))]
    )
    [told] = [output async for output in pools.generate(REQUEST)]
    leg, decoding = (decode(handle.payloads[0], GenerateRequest) for handle in (prefill, target))
    assert (leg.prefill_only, leg.kv_blocks, leg.sampling["max_tokens"]) == (True, None, 1)
    assert (decoding.prefill_only, decoding.kv_blocks, decoding.sampling) == (False, BLOCKS, REQUEST.sampling)
    assert leg.prompt.token_ids.tolist() == decoding.prompt.token_ids.tolist() == [1, 2, 3]
    assert told.timings == {"queue": 3.0, "prefill": 42.0}


@pytest.mark.parametrize(
    "leg",
    [
        [Reply(died()) for _ in range(MAX_REFUSALS)],
        [Reply(ACCEPTED, encode_error(EngineUnavailableError("no")))],
        [Reply(DeploymentUnavailableError(DeploymentID("prefill")))],
        [Reply(ACCEPTED, output("x"), died())],
    ],
)
async def test_whatever_happens_to_the_prefill_leg_the_other_half_answers(leg):
    pools, target, _ = split_pools(prefill=leg, target=[Reply(*GOOD)])
    assert await texts(pools) == ["a", "b"]
    assert target.payloads == [encode(REQUEST)]


async def test_a_prefill_replica_that_dies_is_replaced():
    pools, target, prefill = split_pools(
        prefill=[Reply(died()), Reply(ACCEPTED, died()), Reply(ACCEPTED, prefilled())], target=[Reply(*GOOD)]
    )
    assert await texts(pools) == ["a", "b"]
    assert decode(target.payloads[0], GenerateRequest).kv_blocks == BLOCKS
    assert len(prefill.payloads) == 3


async def test_both_legs_of_a_split_target_read_an_answer_that_has_begun():
    pools, target, prefill = split_pools(prefill=[Reply(ACCEPTED, prefilled())], target=[Reply(*GOOD)])
    request = GenerateRequest("r", REQUEST.prompt.extended([7, 8]), {"max_tokens": 9}, answered=2)
    _ = [output async for output in pools.generate(request)]
    leg, decoding = (decode(handle.payloads[0], GenerateRequest) for handle in (prefill, target))
    assert leg.prompt.token_ids.tolist() == decoding.prompt.token_ids.tolist() == [1, 2, 3, 7, 8]
    assert (leg.answered, decoding.answered) == (0, 2)


async def test_a_prompt_that_the_prefill_leg_refuses_is_refused():
    pools, target, _ = split_pools(prefill=[Reply(ACCEPTED, encode_error(InvalidRequestError("too long")))])
    with pytest.raises(InvalidRequestError, match="too long"):
        await texts(pools)
    assert target.payloads == []


@pytest.mark.parametrize("asked", [{"sampling": {"prompt_logprobs": 1}}, {"scored": 2}])
async def test_prompt_log_probabilities_are_made_where_the_answer_is(asked):
    pools, target, prefill = split_pools(target=[Reply(*GOOD)])
    request = GenerateRequest("r", KeptPrompt.dense([1, 2, 3]), **asked)
    _ = [output async for output in pools.generate(request)]
    assert (prefill.payloads, target.payloads) == ([], [encode(request)])


async def test_a_request_cancelled_in_its_prefill_leg_never_reaches_the_other_half():
    reply = Reply(ACCEPTED, FOREVER)
    pools, target, _ = split_pools(prefill=[reply])
    task = asyncio.create_task(texts(pools))
    await until(lambda: reply.waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.cancelled
    assert target.payloads == []


async def test_every_leg_prefers_the_replicas_of_the_prefix():
    ready = [Reply(*GOOD), Reply(*GOOD)]
    pools, target, prefill = split_pools(prefill=[Reply(ACCEPTED, prefilled())], target=ready)
    request = replace(REQUEST, envelope=Envelope(affinity="abc"))
    assert [output async for output in pools.generate(request)]
    assert (prefill.wishes, target.wishes) == ([("generate", by_prefix("abc", "r"))],) * 2
    pools, speculator, _ = serve_pools(speculator=[Reply(SELECTION), Reply(SELECTION)])
    await pools.select(replace(SELECT, envelope=Envelope(affinity="abc")))
    await pools.select(SELECT)
    assert speculator.wishes == [("select", by_prefix("abc", "r")), ("select", by_prefix("", "r"))]
