"""The defaults of an engine on CUDA. The platform is emulated; no configuration is made."""

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from vllm_hooks import engine


@pytest.mark.parametrize(
    ("cuda", "options", "tokens"),
    [
        (True, {}, 8192),
        (True, {"max_num_batched_tokens": 4096}, 4096),
        (False, {}, None),
    ],
)
def test_a_step_on_cuda_has_8192_tokens_unless_the_user_says_otherwise(monkeypatch, cuda, options, tokens):
    monkeypatch.setattr(type(engine.current_platform), "is_cuda", lambda platform: cuda)
    monkeypatch.setattr(AsyncEngineArgs, "create_engine_config", lambda arguments: arguments)
    monkeypatch.setattr(AsyncEngineArgs, "__post_init__", lambda arguments: None)
    assert engine.engine_config("refused", model="m", **options).max_num_batched_tokens == tokens
