"""The counts of a target with pipeline parallelism, and the warnings about layers that see the compact text."""

import asyncio
from types import SimpleNamespace

import pytest
from vllm.config import ModelConfig

from kv_transfer.messages import DecodeOptions
from target_service.vllm_backend.engine import VllmTarget
from target_service.vllm_backend.start import _warn_of_compact_layers


@pytest.mark.parametrize("ranks", [[None, {"drafts": 3}], [{"drafts": 3}], [None, None, {"drafts": 3}, {"drafts": 3}]])
def test_the_counts_are_those_of_the_last_pipeline_stage(ranks):
    async def collective_rpc(name):
        assert name == "draft_stats"
        return ranks

    target = VllmTarget.__new__(VllmTarget)
    target.decode = DecodeOptions(method="remote")
    target._engine = SimpleNamespace(collective_rpc=collective_rpc)
    target._decode_counts = SimpleNamespace(counts=lambda: {"rounds": 2})
    assert asyncio.run(target.decode_stats()) == {"drafts": 3, "rounds": 2}


@pytest.mark.parametrize(
    ("hybrid", "window", "said"),
    [(False, None, []), (True, None, ["one compact text"]), (False, 128, ["a window counts kept tokens"])],
)
def test_layers_that_see_the_compact_text_are_logged(caplog, hybrid, window, said):
    assert all(hasattr(ModelConfig, name) for name in ("is_hybrid", "get_sliding_window"))
    _warn_of_compact_layers("m", SimpleNamespace(is_hybrid=hybrid, get_sliding_window=lambda: window))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(said)
    assert all(part in message for part, message in zip(said, messages, strict=True))
