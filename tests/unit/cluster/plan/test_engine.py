"""The time and the memory of an engine, by counts that are made here in another way."""

from dataclasses import replace

import pytest
import transformers

from cluster.plan.engine import CAPTURED_ROWS, FRAME, LOOK_AHEAD, WINDOW, Model, PlannedEngine
from cluster.plan.gpus import GIB, GPUS, USABLE, WORKING_GIB, Machine, gpu_named
from kv_transfer.options import SelectionOptions
from skim_common.errors import ModelError, SkimError
from skim_common.models.costs import Read
from skim_common.models.size import ModelSize, parameter_counts
from speculator_service.vllm_backend.capture.scored_requests import STEP_ROWS
from tests.unit.cluster.plan.shapes import model

IDEAL = Machine(linear=1e12, attention=1e12, bandwidth=1e9)


def test_a_long_prompt_takes_its_operations():
    llama = model("llama-8b")
    engine = PlannedEngine(llama, IDEAL)
    linear = 2 * (llama.size.per_token * 32768 + llama.head)
    pairs = 32768 * 32769 / 2
    assert engine.read_s(Read(32768)) == pytest.approx((linear + 4 * 32 * 128 * 32 * pairs) / 1e12)


def test_a_read_in_windows_is_linear_in_the_prompt():
    llama = model("llama-1b")
    whole, windows = PlannedEngine(llama, IDEAL), PlannedEngine(llama, IDEAL, windows=True)
    once = replace(windows, again=False)
    assert once.select_s(Read(32768)) == pytest.approx(32768 / WINDOW * by_hand(llama, WINDOW + FRAME) / 1e12)
    assert once.select_s(Read(65536)) == pytest.approx(2 * once.select_s(Read(32768)))
    assert whole.select_s(Read(65536)) > 2.5 * whole.select_s(Read(32768))


@pytest.mark.parametrize(("tokens", "again"), [(8192, 2458), (32768, 9830), (131072, 16384)])
def test_the_best_of_several_windows_is_read_once_more(tokens, again):
    llama = model("llama-1b")
    engine = PlannedEngine(llama, IDEAL, windows=True)
    second = engine.select_s(Read(tokens)) - replace(engine, again=False).select_s(Read(tokens))
    assert second == pytest.approx(by_hand(llama, again + FRAME) / 1e12)
    assert engine.select_s(Read(WINDOW)) == replace(engine, again=False).select_s(Read(WINDOW))


def by_hand(llama, tokens):
    """Operations of one read by a 1B model."""
    return 2 * (llama.size.per_token * tokens + llama.head) + 4 * 32 * 64 * 16 * tokens * (tokens + 1) / 2


def test_without_a_head_profile_a_prompt_is_read_as_a_whole():
    llama = model("llama-1b")
    whole, windows = PlannedEngine(llama, IDEAL), PlannedEngine(llama, IDEAL, windows=True)
    look_ahead = LOOK_AHEAD * whole.step_s(1, 2000)
    assert whole.select_s(Read(2000)) == whole.read_s(Read(2000)) + look_ahead
    assert windows.select_s(Read(32768)) < whole.select_s(Read(32768)) / 1.5
    assert SelectionOptions().look_ahead == LOOK_AHEAD


def test_the_next_question_reads_its_own_tokens_in_each_window():
    engine = PlannedEngine(model("llama-1b"), IDEAL, windows=True)
    once = replace(engine, again=False)
    assert once.select_s(Read(20, 32768)) < 0.06 * once.select_s(Read(32788))
    second = engine.select_s(Read(32788)) - once.select_s(Read(32788))
    assert engine.select_s(Read(20, 32768)) - once.select_s(Read(20, 32768)) == pytest.approx(second)


def test_a_decode_step_reads_weights_and_kv_once():
    llama = model("llama-8b")
    step = PlannedEngine(llama, replace(IDEAL, linear=1e18, attention=1e18)).step_s(4, 1000)
    kv = 4 * 1000 * 2 * 2 * 32 * 8 * 128
    assert step == pytest.approx((2 * (llama.size.per_token + llama.head) + kv) / 1e9)
    fewer = PlannedEngine(llama, replace(IDEAL, linear=1e18, attention=1e18), weight_bits=8, kv_bits=8)
    assert fewer.step_s(4, 1000) == pytest.approx(step / 2)


def test_a_large_batch_is_bound_by_operations():
    llama = model("llama-1b")
    engine = PlannedEngine(llama, replace(IDEAL, bandwidth=1e18))
    assert engine.step_s(64, 0) == pytest.approx(64 * (2 * (llama.size.per_token + llama.head) + 16 * 8192) / 1e12)


def test_ranks_divide_the_work_and_pay_for_all_reduces():
    llama = model("llama-70b")
    free = replace(IDEAL, link=float("inf"))
    alone, shared = (PlannedEngine(llama, free, ranks).read_s(Read(8192)) for ranks in (1, 8))
    assert shared == pytest.approx(alone / 8)
    linked = PlannedEngine(llama, replace(free, link=1e9), 8).read_s(Read(8192))
    assert linked - shared == pytest.approx(2 * 80 * 2 * (7 / 8) * 8192 * 8192 * 2 / 1e9)


def test_the_host_pays_for_each_token_and_each_step():
    llama = model("llama-1b")
    bare = PlannedEngine(llama, IDEAL).read_s(Read(20000))
    assert PlannedEngine(llama, replace(IDEAL, token_s=1e-3)).read_s(Read(20000)) == pytest.approx(bare + 20)
    assert PlannedEngine(llama, replace(IDEAL, step_s=1.0)).read_s(Read(20000)) == pytest.approx(
        bare + 3
    )  # chunks of 8192


def test_memory_is_divided_between_weights_work_buffers_and_kv():
    llama, gpu = model("llama-8b"), GPUS["h100"]
    memory = PlannedEngine(llama, IDEAL, 2).memory(gpu, 4096, rows=128, drafts=4)
    assert memory.weights == pytest.approx(llama.size.parameters / GIB)
    assert memory.buffers == pytest.approx(128 * 4 * 128256 * 4 / GIB)
    assert memory.weights + memory.working + memory.buffers + memory.kv == pytest.approx(USABLE * 80e9 / GIB)
    assert memory.working == WORKING_GIB
    assert memory.sessions == int(memory.kv * GIB / (4096 * 65536))  # half of 128 KiB a token
    assert PlannedEngine(model("llama-70b"), IDEAL).memory(gpu, 4096, rows=128) is None
    captured = PlannedEngine(llama, IDEAL).memory(gpu, 4096, rows=16, captures=True)
    assert captured.buffers == pytest.approx((16 + 1024) * 32 * 32 * 128 * 2 / GIB)
    assert CAPTURED_ROWS == STEP_ROWS


def test_more_ranks_than_kv_heads_hold_copies():
    llama = model("llama-8b")
    assert [PlannedEngine(llama, IDEAL, ranks).kv_bytes(1) for ranks in (1, 4, 8, 16)] == [131072, 32768, 16384, 16384]


def test_a_batch_reads_the_experts_that_its_tokens_choose():
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    size = ModelSize(1000, *parameter_counts(config))
    mixtral = Model.of("mixtral", config, size)
    expert = 2 * 3 * 64 * 96  # in two layers
    assert mixtral.idle == 6 * expert
    one = mixtral.touched(1)
    assert mixtral.touched(2) - one == pytest.approx(6 * expert * 0.25)
    assert mixtral.touched(1000) - one == pytest.approx(6 * expert)


def test_a_model_of_another_shape_is_refused():
    config = transformers.MambaConfig(hidden_size=64, num_hidden_layers=2)
    with pytest.raises(ModelError, match="no usual shape"):
        Model.of("mamba", config, ModelSize(1000, 10, 10))


def test_a_gpu_that_is_not_in_the_table_is_refused_with_those_that_are():
    assert gpu_named("H200") is GPUS["h200"]
    with pytest.raises(SkimError, match="--gpu v100: the plan knows a100, l40s, h100"):
        gpu_named("v100")
