"""The speculator's limit for the prompt's length; `test_service` tests the other checks of a request."""

from dataclasses import replace

import pytest

from kv_transfer.limits.speculator import check_length
from skim_common.errors import InvalidRequestError
from skim_common.models.info import ModelInfo

INFO = ModelInfo("m", "LlamaForCausalLM", 1000, "f", max_model_len=500, max_position=800, engine="mock")


@pytest.mark.parametrize("info", [INFO, replace(INFO, max_model_len=900, max_position=500)])
def test_prompt_and_look_ahead_must_fit(info):
    check_length(492, 8, info)
    check_length(500, 0, info)
    with pytest.raises(InvalidRequestError, match=r"has 493 tokens and look_ahead is 8, .* at most 500; "):
        check_length(493, 8, info)
