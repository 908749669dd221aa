"""The defaults of an engine on CUDA, on an emulated platform and without a configuration; causes of failures."""

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


INSPECTED = "Model architectures ['Qwen3VLForConditionalGeneration'] failed to be inspected. Please check the logs."


@pytest.mark.parametrize("installed", [False, True])
def test_a_model_whose_module_needs_torchvision_says_so(monkeypatch, installed):
    """vLLM's own error names no cause."""
    monkeypatch.setattr(engine, "find_spec", lambda name: object() if installed else None)
    told = engine._cause(ValueError(INSPECTED))
    assert told.endswith("needs torchvision, in a build for the installed torch; install that") is not installed
    assert ("failed to be inspected" in told) is installed
