"""What a speculator refuses on CUDA, tested without a GPU: layers, and CUDA graphs that run no Python."""

import re
from types import SimpleNamespace

import pytest
import torch
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.config.compilation import PassConfig
from vllm.model_executor.layers.attention import Attention, ChunkedLocalAttention, MLAAttention, StaticSinkAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase

from skim_common.errors import ModelError
from speculator_service.vllm_backend.query_capture import attention_formula, scorable_layers
from speculator_service.vllm_backend.start import FULL_GRAPH_PASSES, _refuse_full_graphs, _refuse_unsupported

MODES = {True: CUDAGraphMode.FULL_AND_PIECEWISE, False: CUDAGraphMode.PIECEWISE}
"""The modes that `start` sets on CUDA, by whether the V2 runner is used."""


def graphs(mode: CUDAGraphMode, **passes: bool) -> CompilationConfig:
    """The compilation settings of a speculator on CUDA, after vLLM has applied these passes."""
    config = CompilationConfig(mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=mode, pass_config=PassConfig(**passes))
    config.set_splitting_ops_for_v1("naive")
    return config


@pytest.mark.parametrize("v2", MODES)
def test_graphs_without_prompts_are_accepted(v2: bool) -> None:
    _refuse_full_graphs("m", graphs(MODES[v2]), v2=v2)
    _refuse_full_graphs("m", graphs(CUDAGraphMode.PIECEWISE), v2=v2)
    without = CompilationConfig(mode=CompilationMode.NONE, cudagraph_mode=CUDAGraphMode.NONE)
    _refuse_full_graphs("m", without, v2=v2)


@pytest.mark.parametrize("v2", MODES)
@pytest.mark.parametrize("name", FULL_GRAPH_PASSES)
def test_a_pass_that_captures_the_whole_model_is_named(name: str, v2: bool) -> None:
    said = rf"{MODES[v2].name}, but compilation_config\.pass_config\.{name} changed it to FULL"
    with pytest.raises(ModelError, match=said):
        _refuse_full_graphs("m", graphs(MODES[v2], **{name: True}), v2=v2)


def test_a_mode_with_full_graphs_of_prompts_is_refused() -> None:
    with pytest.raises(ModelError, match="another engine option changed it to FULL; leave it out"):
        _refuse_full_graphs("m", graphs(CUDAGraphMode.FULL), v2=True)
    with pytest.raises(ModelError, match="changed it to FULL_DECODE_ONLY"):
        _refuse_full_graphs("m", graphs(CUDAGraphMode.FULL_DECODE_ONLY), v2=False)


def test_breakable_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")
    with pytest.raises(ModelError, match="VLLM_USE_BREAKABLE_CUDAGRAPH=1; set it to 0"):
        _refuse_full_graphs("m", graphs(CUDAGraphMode.PIECEWISE), v2=True)


def test_prefill_context_parallel_is_refused() -> None:
    """A CPU cannot make the configuration: its model runner refuses the option first."""
    sizes = {"pipeline": 1, "data": 1, "decode_context": 1, "prefill_context": 2}
    parallel = SimpleNamespace(**{f"{name}_parallel_size": size for name, size in sizes.items()})
    config = SimpleNamespace(
        parallel_config=parallel, cache_config=SimpleNamespace(cache_dtype="auto"), speculative_config=None
    )
    with pytest.raises(ModelError, match="cannot run with prefill context parallel 2 yet"):
        _refuse_unsupported("m", config)
    parallel.prefill_context_parallel_size = 1
    _refuse_unsupported("m", config)


def layer(size: int = 64, size_v: int = 64, kind: type[Attention] = Attention, **changes: object) -> Attention:
    """An attention layer with the attributes that the check reads."""
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    vars(made).update(num_heads=2, head_size=size, head_size_v=size_v, sliding_window=None, kv_cache_dtype="auto")
    vars(made).update({"impl": SimpleNamespace(), "kv_sharing_target_layer_name": None, **changes})
    made._k_scale = torch.tensor(1.0)
    return made


class StateSpace(MambaBase):
    """A layer without attention."""

    mamba_type = get_state_dtype = get_state_shape = None  # type: ignore[assignment]


def config(*layers: AttentionLayerBase) -> SimpleNamespace:
    named = {f"model.layers.{i}.attn": each for i, each in enumerate(layers)}
    return SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=named), model_config=SimpleNamespace(model="m")
    )


def test_values_of_another_size_than_the_keys_are_refused() -> None:
    plain = layer()
    assert scorable_layers(config(plain)) == [plain]
    with pytest.raises(ModelError, match="keys of size 64 with values of size 32"):
        scorable_layers(config(plain, layer(64, 32)))


def test_only_layers_that_attend_to_the_whole_prompt_are_scored(caplog: pytest.LogCaptureFixture) -> None:
    """The others may differ from them, because nothing of them is read."""
    whole = layer(), layer()
    others = (
        layer(32, 16, sliding_window=128),
        layer(kind=ChunkedLocalAttention, attention_chunk_size=64),
        layer(kv_sharing_target_layer_name="model.layers.1.attn"),
        StateSpace.__new__(StateSpace),
    )
    assert scorable_layers(config(others[0], whole[0], *others[1:], whole[1])) == list(whole)
    [message] = caplog.messages
    assert message == (
        "speculator m scores prompts by its layers 1, 5 (counted from 0); the others have chunked attention (64"
        " tokens), linear attention or a state space, sliding-window attention (128 tokens), the keys of another layer"
    )


def test_a_model_whose_layers_are_all_scored_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    scorable_layers(config(layer(), layer()))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([layer(sliding_window=128)], "only sliding-window attention (128 tokens)"),
        ([StateSpace.__new__(StateSpace)], "only linear attention or a state space"),
        ([layer(), layer(kind=StaticSinkAttention)], "layers of type StaticSinkAttention"),
        ([layer(), layer(128, 128)], "layers of different shapes"),
        ([], "no attention"),
    ],
)
def test_models_without_layers_to_score_are_refused(layers: list[AttentionLayerBase], reason: str) -> None:
    with pytest.raises(ModelError, match=f"it has {re.escape(reason)}; choose one with full attention"):
        scorable_layers(config(*layers))


def test_the_formula_of_a_layer() -> None:
    """Backends store "no soft cap" as 0 or None, and those without sinks have no such attribute."""
    sinks = torch.zeros(2)
    capped = layer(impl=SimpleNamespace(scale=0.5, logits_soft_cap=30.0, sinks=sinks))
    assert attention_formula(capped) == (0.5, 30.0, sinks)
    for none in (0, None):
        assert attention_formula(layer(impl=SimpleNamespace(scale=0.5, logits_soft_cap=none))) == (0.5, 0.0, None)


@pytest.mark.parametrize("cache", ["fp8_per_token_head", "fp8_ds_mla", "nvfp4", "turboquant_k8v4", "fp8_inc"])
def test_caches_with_other_scales_than_one_a_layer_are_refused(cache: str) -> None:
    quantised = layer(64, 64)
    quantised.kv_cache_dtype = cache
    with pytest.raises(ModelError, match=rf"a quantised KV cache \({cache}\)"):
        scorable_layers(config(quantised))


def test_one_fp8_scale_a_layer_is_accepted_and_one_a_head_is_refused() -> None:
    quantised = layer(64, 64)
    quantised.kv_cache_dtype = "fp8"
    assert scorable_layers(config(quantised)) == [quantised]
    quantised._k_scale = torch.ones(2)
    with pytest.raises(ModelError, match="an FP8 KV cache with a scale per head"):
        scorable_layers(config(quantised))


def test_sparse_latent_attention_is_refused() -> None:
    made = MLAAttention.__new__(MLAAttention)
    torch.nn.Module.__init__(made)
    vars(made).update(num_heads=2, head_size=576, sliding_window=None, kv_cache_dtype="auto", use_sparse=True)
    made._k_scale = torch.tensor(1.0)
    with pytest.raises(ModelError, match="it has sparse attention"):
        scorable_layers(config(made))
    made.use_sparse = False
    assert scorable_layers(config(made)) == [made]
