"""Scores of a Llama with 64-wide heads against the oracle: all options, batches, chunks, caches, ends, cancellation.

Prefill comes in chunks of 256 tokens, so every prompt over 256 is chunked.
"""

import asyncio
import itertools

import numpy as np
import pytest

from kv_transfer.options import SelectionOptions
from skim_common.errors import InvalidRequestError
from speculator_service.vllm_backend import keys
from speculator_service.vllm_backend import worker as scoring_worker
from tests.engine.speculator_service.vllm_backend.conftest import EARLY_PROMPT, TOLERANCE
from tests.reference.models import random_prompt

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = random_prompt(300, seed=1)
OPTIONS = SelectionOptions(look_ahead=4)


@pytest.fixture(scope="module")
def rig(llama_rig):
    return llama_rig


async def test_lengths_and_look_aheads_in_one_batch(rig):
    cases = [
        (random_prompt(length, seed=length + look_ahead), SelectionOptions(look_ahead=look_ahead))
        for length, look_ahead in itertools.product((1, 31, 100, 700), (0, 1, 8))
    ]
    cases.append((random_prompt(1500, seed=3), SelectionOptions(look_ahead=8)))
    assert max(await rig.errors(cases)) <= TOLERANCE


async def test_keys_that_are_read_in_pieces(rig, device):
    if device == "cuda":
        pytest.skip("there a head's keys are read at once")

    def read_little(worker):
        keys.PIECE_TOKENS, worker.usual, worker.read = 96, keys.PIECE_TOKENS, []
        gather = worker._keys.gather
        worker._keys.gather = lambda *args: worker.read.append(gather(*args)) or worker.read[-1]

    def lengths(worker):
        keys.PIECE_TOKENS = worker.usual
        del worker._keys.gather
        return {len(keys) for keys in worker.read}

    await rig.call(read_little)
    assert await rig.errors([(PROMPT, OPTIONS)]) <= [TOLERANCE]
    assert await rig.call(lengths) == [{96, 32}]  # 300 tokens in blocks of 32


async def test_what_is_compiled_at_the_start_is_what_requests_need(rig):
    def compile_again(worker):
        fill, worker.asked = worker._scoring.fill, []

        def noting(table, queries, keys, scales):
            worker.asked.append((queries.shape, queries.dtype, scales, table.shape[:2]))
            fill(table, queries, keys, scales)

        worker._scoring.fill = noting
        worker._compile_kernels([1, 16])

    def asked(worker):
        del worker._scoring.fill
        return worker.asked

    await rig.call(compile_again)
    assert await rig.errors([(PROMPT, SelectionOptions())]) <= [TOLERANCE]
    [[at_start, *others, of_request]] = await rig.call(asked)
    assert at_start == of_request
    assert [queries[1] for queries, *_ in others] == [1, 16]


@pytest.mark.parametrize("aggregation", ["max", "head_max_layer_mean"])
async def test_every_layers_option(rig, aggregation):
    cases = [
        (random_prompt(257, seed=4), SelectionOptions(layers=layers, aggregation=aggregation, look_ahead=3))
        for layers in ("all", "last_half", "last4", "last1")
    ]
    assert max(await rig.errors(cases)) <= TOLERANCE


@pytest.mark.parametrize("aggregation", ["max", "head_max_layer_mean"])
async def test_queries_are_scored_in_groups(rig, aggregation):
    def few_at_once(elements):
        def limit(worker):
            scoring_worker.TABLE_ELEMENTS = elements

        return limit

    await rig.call(few_at_once(7 * 300))
    try:
        assert await rig.errors([(PROMPT, SelectionOptions(aggregation=aggregation))]) <= [TOLERANCE]
    finally:
        await rig.call(few_at_once(2**26))


async def test_a_cached_prefix_changes_nothing(rig):
    prompt = random_prompt(640, seed=1005)  # of no other test with this engine
    longer = prompt + random_prompt(90, seed=6)
    spared = []
    for case in ((prompt, OPTIONS), (prompt, SelectionOptions(look_ahead=8)), (longer, OPTIONS)):
        assert await rig.errors([case]) <= [TOLERANCE]
        spared += rig.cached
    # First without a cache, then all but the last block, then the shared part.
    block = rig.engine._engine.vllm_config.cache_config.block_size
    assert spared == [0, 640 - block, 640]


async def test_an_end_stops_the_look_ahead(rig):
    options = SelectionOptions(look_ahead=8)
    answer = await rig.score(EARLY_PROMPT, options)
    assert 3 <= len(answer.look_ahead_tokens) < 8
    assert rig.compare(EARLY_PROMPT, options, answer) <= TOLERANCE
    # The EOS is the last look-ahead token: it is decoded, but never used as an input.
    shorter = SelectionOptions(look_ahead=len(answer.look_ahead_tokens))
    assert await rig.errors([(EARLY_PROMPT, shorter)]) <= [TOLERANCE]


async def test_timings(rig):
    timings = (await rig.score(PROMPT, OPTIONS)).timings
    assert set(timings) == {"queue", "speculate"}
    assert min(timings.values()) >= 0


async def test_a_cancelled_call_leaves_nothing_behind(rig):
    """50 requests; every second one is cancelled while it runs. None stays in the worker."""
    options = SelectionOptions(look_ahead=8)
    calls = [asyncio.create_task(rig.score(random_prompt(400, seed=i), options, f"c{i}")) for i in range(50)]
    await rig.score(random_prompt(300, seed=9), options, "beside")
    for call in calls[::2]:
        call.cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in done) >= 20
    assert not any(isinstance(result, Exception) for result in done)
    # The worker learns which requests ended in the scheduler's next step.
    for _ in range(2):
        await rig.score(PROMPT[:40], OPTIONS)
    assert (await rig.call(lambda worker: len(worker._ledger.requests)))[0] <= 1
    assert rig.engine._engine.get_num_unfinished_requests() == 0


async def test_refusals_before_the_engine(rig):
    limit = rig.engine.info.max_model_len
    longest = random_prompt(limit - 8, seed=10)
    options = SelectionOptions(look_ahead=8)
    with pytest.raises(InvalidRequestError, match=rf"{limit - 7} tokens.*look_ahead is 8.*{limit}"):
        await rig.score([*longest, 20], options)
    with pytest.raises(InvalidRequestError, match="empty"):
        await rig.score([], options)
    with pytest.raises(InvalidRequestError, match="Token id 1024"):
        await rig.score([20, 1024], options)
    answer = await rig.score(longest, options)
    assert answer.importance.numel() == limit - 8


async def test_packed_keys_are_read_element_by_element_too(rig, device):
    """Simulates a CPU whose kernels pack keys in another order than transposed."""
    if device != "cpu":
        pytest.skip("a GPU's keys are not packed")

    def element_by_element(worker):
        assert worker._keys._is_transposed
        worker._keys._is_transposed = False

    def as_before(worker):
        worker._keys._is_transposed = True

    await rig.call(element_by_element)
    try:
        assert await rig.errors([(PROMPT, OPTIONS)]) <= [TOLERANCE]
    finally:
        await rig.call(as_before)


async def test_control_one_wrong_row_is_seen(rig):
    """Capture the wrong row (one too early) in one layer: the comparison must fail."""

    def shift(worker):
        capture = worker._capture
        take = capture._take

        def wrong(index, name, query):
            take(index, name, query)
            if index == 1:
                rows = (capture._rows - 1).clamp(min=0)
                capture._buffer[index, : rows.numel()] = query[rows]

        capture._take, capture._right = wrong, take

    def as_before(worker):
        worker._capture._take = worker._capture._right

    # A new prompt: for a cached prompt only the last row would be read.
    prompt = random_prompt(300, seed=18)
    await rig.call(shift)
    try:
        assert (await rig.errors([(prompt, SelectionOptions(look_ahead=0))]))[0] > 10 * TOLERANCE
    finally:
        await rig.call(as_before)
    assert await rig.errors([(prompt, SelectionOptions(look_ahead=0))]) <= [TOLERANCE]


async def test_control_a_query_that_was_not_captured_is_never_a_stale_one(rig):
    """A layer that runs without Python code (as in a replayed CUDA graph) gives NaN, which the selection refuses."""

    def blind(worker):
        worker._capture._right = worker._capture._take
        worker._capture._take = lambda *args: None

    def as_before(worker):
        worker._capture._take = worker._capture._right

    await rig.call(blind)
    try:
        answer = await rig.score(PROMPT, OPTIONS)
    finally:
        await rig.call(as_before)
    assert np.isnan(answer.importance.numpy()).all()


async def test_control_ends_that_are_not_masked_are_seen(rig):
    eos = rig.engine.eos_token_ids
    rig.engine.eos_token_ids = ()
    try:
        answer = await rig.score(EARLY_PROMPT, SelectionOptions(look_ahead=8))
    finally:
        rig.engine.eos_token_ids = eos
    assert len(answer.look_ahead_tokens) == 8
    masked = await rig.score(EARLY_PROMPT, SelectionOptions(look_ahead=8))
    assert (answer.importance - masked.importance).abs().max() > 10 * TOLERANCE
