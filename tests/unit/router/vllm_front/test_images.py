"""The pools take token ids alone, so a prompt with an image must not run as the text around it."""

import pytest

from router.vllm_front.engine_client import _read_prompt
from skim_common.errors import InvalidRequestError


def test_a_prompt_with_an_image_is_refused():
    rendered = {"type": "multimodal", "prompt_token_ids": [7, 8], "mm_kwargs": {}, "mm_placeholders": {}}
    with pytest.raises(InvalidRequestError, match=r"^images, audio and video are not served here"):
        _read_prompt(rendered, None, None, {})
