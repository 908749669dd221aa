"""The number of positions of models with scaled RoPE, against what vLLM makes of the same config.json.

The hooks of both model runners limit positions to this number, because vLLM's rotary table ends there.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding import get_rope

from kv_transfer.messages import KeptPrompt
from kv_transfer.position_map import position_args
from skim_common.errors import ModelError
from skim_common.models.info import inspect_model, position_count
from speculator_service.vllm_backend.start import engine_length
from vllm_hooks.positions import _restoring, restore_positions

DEMO = Path(__file__).parents[3] / "demo_models" / "target"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}


def folder(path: Path, model_type: str, rope: dict[str, Any] | None, **changes: Any) -> str:
    """A model folder without weights, with 16 dimensions per head."""
    architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[model_type]
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
        "vocab_size": 1024,
        "max_position_embeddings": 320,
        "rope_theta": 10000.0,
        "rope_scaling": rope,
        **changes,
    }
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, path)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


CASES = {
    "no scaling": ("llama", None, 320),
    "YaRN, Qwen2.5": ("qwen2", YARN, 1024),
    "YaRN, Qwen3": ("qwen3", YARN, 1024),
    "YaRN, the scaled length is given": ("qwen3", {**YARN, "factor": 1.25}, 320),
    "YaRN, no original length": ("qwen2", {"type": "yarn", "factor": 2.0}, 640),
    "llama3": ("llama", LLAMA3, 320),
    "linear": ("llama", {"type": "linear", "factor": 2.0}, 640),
    "longrope": ("llama", LONGROPE, 320),
}


def model_config(path: str, max_model_len: int | None = None) -> ModelConfig:
    return ModelConfig(model=path, tokenizer=path, dtype="float32", max_model_len=max_model_len)


def table_length(config: ModelConfig) -> int:
    """The rows of the table of rotary embeddings that vLLM makes for the model."""
    text = config.hf_text_config
    with set_current_vllm_config(VllmConfig(model_config=config)):
        rope = get_rope(16, text.max_position_embeddings, True, dict(text.rope_parameters), dtype=torch.float32)
    caches = [value for name, value in rope.named_buffers() if "cos_sin_cache" in name]
    return max(cache.shape[0] for cache in caches)


@pytest.mark.parametrize(("model_type", "rope", "count"), CASES.values(), ids=CASES)
def test_it_is_what_vllm_derives(tmp_path: Path, model_type: str, rope: dict[str, Any] | None, count: int) -> None:
    path = folder(tmp_path, model_type, rope)
    info = inspect_model(path, engine="vllm")
    assert (info.max_position, info.max_model_len) == (count, count)
    config = model_config(path, count)
    assert position_count(config.hf_text_config) == count
    with pytest.raises(ValueError, match=f"max_model_len .{count + 1}. is greater"):
        model_config(path, count + 1)
    # The table of longrope holds the rows of the short factors, too.
    assert table_length(config) == count + (64 if rope is LONGROPE else 0)
    with pytest.raises(ModelError, match=f"from 1 to {count}, .* not {count + 1}"):
        inspect_model(path, engine="vllm", max_model_len=count + 1)


def test_the_table_of_dynamic_scaling_is_shorter_than_vllm_derives(tmp_path: Path) -> None:
    path = folder(tmp_path, "llama", {"type": "dynamic", "factor": 2.0})
    config = model_config(path)
    assert config.max_model_len == 640
    assert table_length(config) == position_count(config.hf_text_config) == 320
    assert inspect_model(path, engine="vllm").max_position == 320


DYNAMIC = {"type": "dynamic", "factor": 2.0}
ROTATIONS = {  # model type, RoPE, max_model_len, number of positions in use
    "YaRN": ("qwen2", YARN, 1024, 1024),
    "llama3": ("llama", LLAMA3, 320, 320),
    "linear": ("llama", {"type": "linear", "factor": 2.0}, 640, 640),
    "dynamic": ("llama", DYNAMIC, 320, 320),
    "longrope, long factors": ("llama", LONGROPE, 320, 320),
    "longrope, short factors, as a speculator": ("llama", LONGROPE, 64, 64),
}


@pytest.fixture(autouse=True)
def new_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM keeps the tables of a process, and finds those of longrope by config.json alone, not by max_model_len."""
    monkeypatch.setattr(rotary_embedding, "_ROPE_DICT", {})


def rotations(path: str, max_model_len: int, positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """One query [positions, 16] after vLLM's rotary embedding and after that of transformers, which sees all gaps."""
    config = model_config(path, max_model_len)
    text = config.hf_text_config
    with set_current_vllm_config(VllmConfig(model_config=config)):
        rope = get_rope(16, text.max_position_embeddings, True, dict(text.rope_parameters), dtype=torch.float32)
    query = torch.randn(len(positions), 16, generator=torch.Generator().manual_seed(0))
    rotate = getattr(rope, "forward_native", rope)
    ours, _ = rotate(torch.tensor(positions), query.clone(), query.clone())
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(path))
    cos, sin = theirs(query[None], torch.tensor([positions]))
    expected, _ = apply_rotary_pos_emb(query[None, None], query[None, None], cos, sin)
    return ours.view(len(positions), 16), expected[0, 0]


@pytest.mark.parametrize(("model_type", "rope", "length", "count"), ROTATIONS.values(), ids=ROTATIONS)
def test_kept_positions_are_rotated_as_by_transformers(
    tmp_path: Path, model_type: str, rope: dict[str, Any], length: int, count: int
) -> None:
    """Eight tokens of a prompt that reaches the last position: far fewer than the original length of the model."""
    positions = [0, 1, 7, 20, 33, 60, count - 2, count - 1]
    ours, theirs = rotations(folder(tmp_path, model_type, rope), length, positions)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("sections", "interleaved"), [([2, 3, 3], False), ([4, 2, 2], True)])
def test_three_equal_positions_of_mrope_are_rotated_as_one(
    tmp_path: Path, sections: list[int], interleaved: bool
) -> None:
    """A token of text has the same position three times, so it is rotated as by transformers' plain RoPE."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    config = model_config(folder(tmp_path, "llama", None), 320)
    positions = [0, 1, 7, 20, 33, 60, 318, 319]
    query = torch.randn(len(positions), 16, generator=torch.Generator().manual_seed(0))
    with set_current_vllm_config(VllmConfig(model_config=config)):
        mrope = {**rope, "mrope_section": sections, "mrope_interleaved": interleaved}
        rotary = get_rope(16, 320, True, mrope, dtype=torch.float32)
    rotate = getattr(rotary, "forward_native", rotary)
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(config.model))
    cos, sin = theirs(query[None], torch.tensor([positions]))
    expected, _ = apply_rotary_pos_emb(query[None, None], query[None, None], cos, sin)
    rows = torch.tensor([positions] * 3)
    ours, _ = rotate(rows, query.clone(), query.clone())
    torch.testing.assert_close(ours.view(len(positions), 16), expected[0, 0], rtol=1e-4, atol=1e-4)
    rows[1] = torch.arange(len(positions))
    wrong, _ = rotate(rows, query.clone(), query.clone())
    assert not torch.allclose(wrong.view(len(positions), 16), expected[0, 0], atol=0.1)


def test_long_factors_are_used_below_the_original_length_too(tmp_path: Path) -> None:
    """Where vLLM differs from transformers, and a control: short prompts of a model whose maximum is long."""
    ours, theirs = rotations(folder(tmp_path, "llama", LONGROPE), 320, [0, 1, 7, 20, 33, 60])
    assert not torch.allclose(ours, theirs, atol=0.1)


def test_layers_of_different_tables() -> None:
    """As in Gemma 3: the scaled table of some layers is longer than max_position_embeddings."""
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}
    assert position_count(SimpleNamespace(max_position_embeddings=100, rope_parameters=rope)) == 100


KEPT = SimpleNamespace(extra_args=position_args(KeptPrompt(np.zeros(3, np.int32), np.array([0, 2, 5], np.int32), 1020)))
SLOTS = [3, 4, 5, 6, 7]
LIMITED = [1020, 1021, 1022, 1023, 1023]


def test_the_v1_hook_reaches_the_scaled_positions(tmp_path: Path) -> None:
    seen: list[list[int]] = []
    positions = torch.tensor(SLOTS)
    runner: Any = SimpleNamespace(
        positions=positions,
        uses_mrope=False,
        device=torch.device("cpu"),
        requests={"r": SimpleNamespace(sampling_params=KEPT)},
        input_batch=SimpleNamespace(req_ids=["r"], num_reqs=1, num_computed_tokens_cpu=np.array([3])),
        query_start_loc=SimpleNamespace(np=np.array([0, 5])),
        model_config=model_config(folder(tmp_path, "qwen3", YARN), 1024),
        _model_forward=lambda: seen.append(positions.tolist()),
    )
    restore_positions(runner)
    runner._model_forward()
    assert seen == [LIMITED]


class State:
    """What the V2 hook needs of a ModelState. rows: those of vLLM's own M-RoPE, if the model has it."""

    def __init__(self, config: ModelConfig, rows: torch.Tensor | None = None) -> None:
        self.max_num_tokens, self.device = 16, torch.device("cpu")
        self.model_config, self.rows = config, rows

    def add_request(self, req_index: int, new_req_data: Any) -> None: ...

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        return {} if self.rows is None else {"positions": self.rows}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        return {} if self.rows is None else {"positions": self.rows[:, :num_tokens]}


def v2_state(path: Path, rows: torch.Tensor | None = None) -> tuple[Any, Any]:
    """A state with one kept prompt, and a batch with five tokens of it."""
    state = _restoring(State)(model_config(folder(path, "qwen3", YARN), 1024), rows)
    state.add_request(0, SimpleNamespace(req_id="r", sampling_params=KEPT))
    return state, SimpleNamespace(
        num_tokens_after_padding=5,
        positions=torch.tensor(SLOTS),
        req_ids=["r"],
        query_start_loc_np=np.array([0, 5]),
        num_computed_tokens_np=np.array([3]),
    )


def test_the_v2_hook_reaches_the_scaled_positions(tmp_path: Path) -> None:
    state, batch = v2_state(tmp_path)
    assert state.prepare_inputs(batch, None)["positions"].tolist() == LIMITED


def test_the_v2_hook_restores_all_three_positions_of_mrope_in_vllms_buffer(tmp_path: Path) -> None:
    rows = torch.tensor([SLOTS] * 3)
    state, batch = v2_state(tmp_path, rows)
    restored = state.prepare_inputs(batch, None)["positions"]
    assert restored.tolist() == [LIMITED] * 3
    # CUDA graphs are captured with this buffer, and replayed with it.
    assert restored.data_ptr() == rows.data_ptr() == state.prepare_dummy_inputs(1, 5)["positions"].data_ptr()


def test_a_short_longrope_speculator_keeps_the_short_factors(tmp_path: Path) -> None:
    """The engine has one position more than the speculator offers, except where this would change the factors."""
    path = folder(tmp_path, "llama", LONGROPE)
    assert [engine_length(path, limit, 320) for limit in (40, 63, 64, 65, 319, 320)] == [41, 64, 64, 66, 320, 320]
    assert engine_length(folder(tmp_path, "llama", LLAMA3), 64, 320) == 65
