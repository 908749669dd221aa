"""While answers run, a step reads what `stream_share` leaves of its time; else as much as it can.

The target's real schedulers and vLLM's KV cache manager, without a model. What a step reads decides how long it takes.
"""

from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from skim_common.errors import SkimError
from skim_common.symbols import VLLM
from target_service.vllm_backend.scheduler import AsyncTargetScheduler, TargetScheduler
from target_service.vllm_backend.stream_share import FEWEST_TOKENS, HOOK, check_chunks
from vllm_hooks.engine import engine_config
from vllm_hooks.machine_flags import with_stream_share

SHARE, MOST, BLOCK, BLOCKS = 0.5, 1024, 32, 400
ALONE_S, PER_TOKEN_S = 1.0, 0.01
"""Of a step, and of each prompt token that it reads."""


class Simulation:
    """A scheduler and its steps. ahead: steps that are scheduled before the last one has ended."""

    def __init__(self, model, scheduler, share, ahead=0):
        options = {"max_model_len": 4096, "max_num_batched_tokens": MOST, "block_size": BLOCK, "enforce_eager": True}
        config = engine_config("refused", model=model, dtype="float32", **options, **with_stream_share({}, share))
        config.cache_config.num_gpu_blocks = BLOCKS
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=config.model_config.dtype)
        groups = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
        self.scheduler = scheduler(config, groups, StructuredOutputManager(config), BLOCK)
        self.scheduler.clock = lambda: self.now
        self.now, self.ahead, self.under_way = 0.0, ahead, []
        self.steps = []
        """Of each step: the ids of the answers that ran before it, the ids that it computes, and prompt tokens read."""

    def add(self, name, prompt, answer):
        """prompt, answer: numbers of tokens. Prompts of other lengths have nothing in common."""
        sampling = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        tokens = [16 + (prompt * 7 + i) % 700 for i in range(prompt)]
        self.scheduler.add_request(Request(name, tokens, sampling, None, block_hasher=self.hasher))

    def run_until(self, done):
        for _ in range(5000):
            if done():
                return
            self.step()
        raise AssertionError("it does not end")

    def step(self):
        requests = self.scheduler.requests
        streams = {r.request_id for r in self.scheduler.running if not r.is_prefill_chunk}
        output = self.scheduler.schedule()
        computed = output.num_scheduled_tokens
        reads = sum(count for id, count in computed.items() if id not in streams)
        sampled = [[] if requests[id].is_prefill_chunk else [7] for id in computed]
        self.steps.append((streams, set(computed), reads))
        self.under_way.append((output, sampled, reads))
        if len(self.under_way) > self.ahead:
            output, sampled, reads = self.under_way.pop(0)
            self.now += ALONE_S + PER_TOKEN_S * reads
            ids = list(output.num_scheduled_tokens)
            self.scheduler.update_from_output(
                output, ModelRunnerOutput(ids, {id: i for i, id in enumerate(ids)}, sampled)
            )

    def has(self, name):
        return name in self.scheduler.requests

    def beside_a_stream(self):
        """What steps read while two cold prompts are read beside an answer, and their seconds but for the last read."""
        self.add("stream", 50, 3000)
        self.run_until(lambda: self.steps and "stream" in self.steps[-1][0])
        began, first = self.now, len(self.steps)
        self.add("cold 1", 2000, 2)
        self.add("cold 2", 900, 2)
        self.run_until(lambda: not self.has("cold 1") and not self.has("cold 2"))
        steps = self.steps[first:]
        assert all("stream" in computed for _, computed, _ in steps), "each step gives it a token"
        return [reads for _, _, reads in steps], self.now - began


@pytest.fixture(params=[(TargetScheduler, 0), (AsyncTargetScheduler, 1)], ids=["sync", "async"])
def simulate(model, request):
    scheduler, ahead = request.param
    return lambda share=SHARE: Simulation(model, scheduler, share, ahead)


def test_reads_beside_a_stream_are_bounded(simulate):
    reads, seconds = simulate().beside_a_stream()
    longest = max(reads)
    assert longest <= max(FEWEST_TOKENS, 2 * ALONE_S / PER_TOKEN_S)
    assert len(reads) * ALONE_S / (seconds - longest * PER_TOKEN_S) >= SHARE
    assert len(reads) * ALONE_S / seconds <= SHARE + 0.15, "reads get the rest"


def test_control_without_a_share_a_read_takes_all_that_a_step_has(simulate):
    reads, seconds = simulate(None).beside_a_stream()
    assert max(reads) == MOST - 1
    assert len(reads) * ALONE_S / seconds < SHARE / 2


def test_control_that_hears_of_no_time_reads_without_a_bound(simulate, monkeypatch):
    simulation = simulate()
    simulation.scheduler.clock = lambda: 0.0
    monkeypatch.setattr(type(simulation.scheduler._account), "tokens", lambda account: MOST)
    reads, _ = simulation.beside_a_stream()
    assert max(reads) == MOST - 1


def test_reads_are_not_bounded_where_no_stream_runs(simulate):
    simulation = simulate()
    for name in ("before", "after"):
        simulation.add(name, 2000 if name == "before" else 2001, 1)
        first = len(simulation.steps)
        simulation.run_until(lambda name=name: not simulation.has(name))
        assert max(reads for _, _, reads in simulation.steps[first:]) == MOST
        simulation.add("stream", 50, 5)
        simulation.run_until(lambda: not simulation.has("stream"))


def test_an_answer_that_begins_during_a_read_gets_its_tokens_too(simulate):
    """Its prompt is cached, so it joins in a step that reads nothing, and comes after the prompt that is read."""
    simulation = simulate()
    prompt = 2 * BLOCK + 1
    simulation.add("known", prompt, 1)
    simulation.run_until(lambda: not simulation.has("known"))
    simulation.add("stream", 50, 3000)
    simulation.run_until(lambda: "stream" in simulation.steps[-1][0])
    simulation.add("cold", 3000, 1)
    simulation.run_until(lambda: "cold" in simulation.steps[-1][1])
    simulation.add("late", prompt, 3000)
    simulation.run_until(lambda: "late" in simulation.steps[-1][0])
    assert simulation.has("cold")
    first = len(simulation.steps)
    simulation.run_until(lambda: not simulation.has("cold"))
    assert all({"stream", "late"} <= computed for _, computed, _ in simulation.steps[first:])


@pytest.mark.parametrize("whole", [True, False])
def test_an_engine_that_reads_prompts_whole_cannot_keep_it(whole):
    chunks = SimpleNamespace(enable_chunked_prefill=not whole)
    check_chunks(SimpleNamespace(additional_config={}, scheduler_config=chunks))
    config = SimpleNamespace(scheduler_config=chunks, **with_stream_share({}, SHARE))
    if whole:
        with pytest.raises(SkimError, match=r"set target\.engine_options\.enable_chunked_prefill to true"):
            check_chunks(config)
    else:
        check_chunks(config)


def test_the_installed_vllm_has_what_it_needs():
    VLLM.check(HOOK.symbols)
