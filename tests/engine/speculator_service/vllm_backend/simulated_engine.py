"""vLLM's real scheduler and KV cache manager, over a KV cache that stores for each slot what it was computed for.

It replaces AsyncLLM and the worker. The simulated worker uses the scheduler's output only. A slot holds the hash of the
salt and of all tokens up to its own with their positions. A request that reads a slot computed for anything else is
counted in `wrong_reads`. The next token is a function of the hash.
"""

import asyncio
import itertools
from types import SimpleNamespace

import numpy as np
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kv_transfer.position_map import position_map
from speculator_service.scoring.queries import SCORE_ARG
from speculator_service.vllm_backend.multi_step import MULTI_STEP, following_steps, merge
from speculator_service.vllm_backend.scheduler import SpeculatorScheduler


class Sequence:
    """The hashes in the slots of a request, one per token."""

    def __init__(self, cache_salt=None, extra_args=None):
        self.states, self._positions = [hash(cache_salt)], position_map(extra_args)

    def read(self, tokens):
        """Add the slots of these tokens; returns the sequence."""
        offsets, start = np.zeros(len(tokens), np.int64), len(self.states) - 1
        if self._positions:
            self._positions.fill(offsets, start)
        for token, offset in zip(tokens, offsets.tolist(), strict=True):
            self.states.append(hash((self.states[-1], token, offset)))
        return self


def next_token(state):
    return 16 + state % 1000


def continuation(tokens, count, cache_salt=None, extra_args=None):
    """The `count` tokens that follow `tokens`."""
    sequence, found = Sequence(cache_salt, extra_args).read(tokens), []
    for _ in range(count):
        found.append(next_token(sequence.states[-1]))
        sequence.read(found[-1:])
    return found


class SimulatedEngine:
    """The methods of AsyncLLM that VllmSpeculator uses. config: vLLM's config with num_gpu_blocks_override."""

    errored = False

    def __init__(self, config, hash_function=sha256):
        self.vllm_config, self.model_config = config, config.model_config
        self._size, blocks = config.cache_config.block_size, config.cache_config.num_gpu_blocks_override
        config.cache_config.num_gpu_blocks = blocks
        dtype = config.model_config.dtype
        spec = FullAttentionSpec(block_size=self._size, num_kv_heads=1, head_size=1, dtype=dtype)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(self._size, hash_function)
        self.scheduler = SpeculatorScheduler(
            config,
            KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            StructuredOutputManager(config),
            self._size,
        )
        self.wrong_reads = self.most_running = self.tokens_read = self.steps = 0
        # Requests that ended while the model ran; steps in which a request had no block for a further token.
        self.aborted_in_flight = self.fell_behind = self.preempted = 0
        self._slots, self._states, self._done, self._cached, self._tokens, self._blocks = {}, {}, {}, {}, {}, {}
        self._arrivals = itertools.count()
        self._pump = None

    @property
    def referenced_blocks(self):
        pool = self.scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one block is vLLM's own null block

    async def generate(self, prompt, sampling, request_id):
        for _ in range(next(self._arrivals) % 3):  # requests sent together arrive one after the other
            await asyncio.sleep(0)
        request = Request(
            request_id,
            list(prompt["prompt_token_ids"]),
            sampling.clone(),
            None,
            cache_salt=prompt.get("cache_salt"),
            block_hasher=self._hasher,
        )
        self._states[request_id] = Sequence(request.cache_salt, sampling.extra_args)
        self._done[request_id] = asyncio.get_running_loop().create_future()
        self.scheduler.add_request(request)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        try:
            await self._done[request_id]
        finally:
            self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
            for known in (self._states, self._done, self._tokens, self._blocks):
                known.pop(request_id, None)
        yield self._output(request)

    def shutdown(self):
        self.scheduler.shutdown()

    def _output(self, request):
        tokens = list(request.output_token_ids)
        scored = SCORE_ARG in (request.sampling_params.extra_args or {})
        payload = {"importance": bytes(4 * request.num_prompt_tokens), "tokens": tokens[:-1], "speculate_ms": 0.0}
        return SimpleNamespace(
            finished=True,
            outputs=[SimpleNamespace(token_ids=tokens, logprobs=None)],
            num_cached_tokens=self._cached.pop(request.request_id, 0),
            kv_transfer_params=payload if scored else None,
        )

    async def _run(self):
        try:
            while self.scheduler.has_requests():
                await self._step()
                for _ in range(12):  # the next round may follow at once
                    await asyncio.sleep(0)
        except Exception as error:
            for done in self._done.values():
                done.set_exception(error)
            raise

    async def _step(self):
        step = self.scheduler.schedule()
        self.steps += bool(step.num_scheduled_tokens)  # an output without tokens only reports ended requests
        outputs = [self._execute(each) for each in (step, *following_steps(step))]
        requests = {request_id: self.scheduler.requests[request_id] for request_id in step.num_scheduled_tokens}
        for _ in range(10):  # while the model runs, requests come and are aborted
            await asyncio.sleep(0)
        self.aborted_in_flight += sum(request.is_finished() for request in requests.values())
        self.scheduler.update_from_output(step, merge(outputs))
        for request_id, request in requests.items():
            done = self._done.get(request_id)
            if request.is_finished() and done and not done.done():
                done.set_result(None)
            self.preempted += request.num_preemptions if request.is_finished() else 0
            alone = request_id not in getattr(step, MULTI_STEP)
            self.fell_behind += alone and not (request.is_finished() or request.is_prefill_chunk)

    def _execute(self, step):
        """The worker's step. It knows only the scheduler's output (new tokens, block ids) and its own samples."""
        starts = {}
        for new in step.scheduled_new_reqs:
            self._cached.setdefault(new.req_id, new.num_computed_tokens)
            self._tokens[new.req_id], self._blocks[new.req_id] = list(new.prompt_token_ids), list(new.block_ids[0])
            starts[new.req_id] = new.num_computed_tokens
        cached = step.scheduled_cached_reqs
        for id, blocks, start in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            known = [] if id in cached.resumed_req_ids else self._blocks[id]
            self._blocks[id], starts[id] = known + (blocks[0] if blocks else []), start
        self.tokens_read += step.total_num_scheduled_tokens
        self.most_running = max(self.most_running, len(starts))
        # As in a model's layer, all new keys are written before any key is read, so a step may read its own keys.
        for request_id, start in starts.items():
            self._write(request_id, start, step.num_scheduled_tokens[request_id])
        sampled = [self._read(id, start + step.num_scheduled_tokens[id]) for id, start in starts.items()]
        return ModelRunnerOutput(list(starts), {id: i for i, id in enumerate(starts)}, sampled)

    def _slots_of(self, request_id, count):
        blocks = self._blocks[request_id]
        return [blocks[i // self._size] * self._size + i % self._size for i in range(count)]

    def _write(self, request_id, start, count):
        states = self._states[request_id].states
        self._states[request_id].read(self._tokens[request_id][len(states) - 1 :])
        for i, slot in enumerate(self._slots_of(request_id, start + count)[start:], start):
            self._slots[slot] = states[i + 1]

    def _read(self, request_id, count):
        """Check the first `count` slots. Sample a token if these are all tokens of the request."""
        states, tokens = self._states[request_id].states, self._tokens[request_id]
        slots = self._slots_of(request_id, count)
        self.wrong_reads += sum(self._slots.get(slot) != state for slot, state in zip(slots, states[1:], strict=False))
        if count < len(tokens):
            return []
        tokens.append(next_token(self._slots[slots[-1]]))
        return tokens[-1:]
