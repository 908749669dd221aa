"""Where partial blocks are used: a choice of the user, the device, and what rules them out."""

from types import SimpleNamespace

import pytest

from skim_common.errors import SkimError
from vllm_hooks.partial_blocks import PARTIAL_BLOCKS, remembers_partial_blocks, why_impossible


def config(
    device="cpu",
    chosen=None,
    *,
    method=None,
    transfer=None,
    async_scheduling=False,
    parallel=1,
    state_space=False,
    window=None,
    one_group=False,
):
    """The fields of vLLM's VllmConfig that decide."""
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        additional_config=chosen,
        speculative_config=method and SimpleNamespace(method=method),
        kv_transfer_config=transfer,
        scheduler_config=SimpleNamespace(async_scheduling=async_scheduling, disable_hybrid_kv_cache_manager=one_group),
        model_config=SimpleNamespace(is_hybrid=state_space, get_sliding_window=lambda: window),
        parallel_config=SimpleNamespace(decode_context_parallel_size=parallel, prefill_context_parallel_size=1),
    )


@pytest.mark.parametrize(("device", "chosen", "expected"), [
    ("cpu", {}, True), ("cpu", None, True), ("cuda", {}, False),
    ("cpu", {PARTIAL_BLOCKS: False}, False), ("cuda", {PARTIAL_BLOCKS: True}, True),
])  # fmt: skip
def test_they_are_for_cpu_by_default(device, chosen, expected):
    assert remembers_partial_blocks(config(device, chosen)) == expected


def test_windows_in_one_group_with_full_attention_go_with_them():
    """As in a speculator."""
    assert why_impossible(config(window=512, one_group=True)) is None


@pytest.mark.parametrize("method", [None, "custom_class", "ngram", "suffix"])
def test_drafters_without_kv_of_their_own_go_with_them(method):
    assert why_impossible(config(method=method)) is None


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"transfer": object()}, "a KV connector"),
        ({"async_scheduling": True}, "async scheduling"),
        ({"parallel": 2}, "context parallel"),
        ({"window": 512}, "layers with windows"),
        ({"state_space": True, "one_group": True}, "layers of a state space"),
        ({"method": "eagle3"}, "decode method eagle3"),
        ({"method": "draft_model"}, "decode method draft_model"),
    ],
)
def test_what_rules_them_out(setting, reason):
    assert why_impossible(config(**setting)) == reason
    assert not remembers_partial_blocks(config(**setting))
    with pytest.raises(SkimError, match=rf"{PARTIAL_BLOCKS} does not work with {reason}"):
        remembers_partial_blocks(config(chosen={PARTIAL_BLOCKS: True}, **setting))
