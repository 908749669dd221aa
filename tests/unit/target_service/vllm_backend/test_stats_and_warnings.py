"""The counts of a target with pipeline parallelism, and the warnings about layers that see the compact text."""

import asyncio
from types import SimpleNamespace

import pytest
from vllm.config import ModelConfig

from kv_transfer.options import DecodeOptions
from skim_common.errors import ModelError
from target_service.vllm_backend.engine import VllmTarget
from target_service.vllm_backend.start import _check_compact_layers


@pytest.mark.parametrize("ranks", [[None, {"drafts": 3}], [{"drafts": 3}], [None, None, {"drafts": 3}, {"drafts": 3}]])
def test_the_counts_are_those_of_the_last_pipeline_stage(ranks):
    async def collective_rpc(name):
        assert name == "draft_stats"
        return ranks

    target = VllmTarget.__new__(VllmTarget)
    target.decode = DecodeOptions(method="remote")
    target._engine = SimpleNamespace(collective_rpc=collective_rpc)
    target._counts = SimpleNamespace(decode={"rounds": 2})
    assert asyncio.run(target.decode_stats()) == {"drafts": 3, "rounds": 2}


def model_config(*, hybrid=False, attention_free=False, window=None):
    assert all(hasattr(ModelConfig, name) for name in ("is_hybrid", "is_attention_free", "get_sliding_window"))
    return SimpleNamespace(is_hybrid=hybrid, is_attention_free=attention_free, get_sliding_window=lambda: window)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (model_config(), []),
        (model_config(hybrid=True), ["one compact text"]),
        (model_config(attention_free=True), ["one compact text"]),
        (model_config(window=128), ["a window counts kept tokens"]),
    ],
)
def test_layers_that_see_the_compact_text_are_logged(caplog, config, said):
    _check_compact_layers("m", config, True)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(said)
    assert all(part in message for part, message in zip(said, messages, strict=True))


def test_layers_without_positions_need_the_users_consent():
    for config in (model_config(hybrid=True), model_config(attention_free=True)):
        with pytest.raises(ModelError, match=r"set target\.engine_options\.approximate_positions to true"):
            _check_compact_layers("m", config, False)
    _check_compact_layers("m", model_config(window=128), False)
