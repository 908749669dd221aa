"""The messages in `version_1.json`: bytes that the release with version 1 of the codec wrote, in hex, by name."""

from typing import Any

import numpy as np

from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow, SessionState
from kv_transfer.messages import (
    Completion,
    GenerateOutput,
    GenerateRequest,
    Int32Array,
    KeptPrompt,
    Selection,
    SelectRequest,
    SessionHandle,
    TokenLogprob,
)
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim_common.errors import InvalidRequestError
from skim_common.models.info import ModelInfo


def _ids(*values: int) -> Int32Array:
    return np.array(values, np.int32)


_HANDLE = SessionHandle("10.0.0.7:50051", "r1")
_KEPT = KeptPrompt(_ids(5, 6, 7, 8, 9), _ids(0, 1, 3, 6, 7), 10, _ids(11, 12), _HANDLE)
_SCATTERED = KeptPrompt(np.arange(100, 200, 2, dtype=np.int32), np.arange(0, 100, 2, dtype=np.int32), 400)
_DECODE = DecodeOptions(max_draft_tokens=6, draft_context="kept", q_top=16)

VERSION_1: dict[str, Any] = {
    "kept_prompt": _KEPT,
    "dense_prompt": KeptPrompt.dense(range(40, 80)),
    "scattered_prompt": _SCATTERED,
    "session_handle": _HANDLE,
    "select_request": SelectRequest(
        "r1",
        np.arange(3, 60, dtype=np.int32),
        SelectionOptions(keep_rate=0.3, look_ahead=2, layers="all", granularity="chunk"),
        np.array([[0, 4], [50, 57]], np.int32),
        return_importance=True,
        cache_salt="salt",
        decode=_DECODE,
        trace={"traceparent": "00-1"},
    ),
    "selection": Selection(_KEPT, 0.75, np.arange(10, dtype=np.float32) / np.float32(10), {"queue": 1.5}),
    "generate_request": GenerateRequest(
        "r1",
        _KEPT,
        {"temperature": 0.5, "max_tokens": 8},
        2,
        "salt",
        {"reasoning_ended": True},
        _DECODE,
        prefill_only=True,
        kv_blocks={"host": "a"},
        trace={"traceparent": "00-1"},
    ),
    "generate_output": GenerateOutput(
        [Completion(0, "hi", _ids(4, 5), [[TokenLogprob(4, -0.5, 1, "h")]], -1.0, "stop", "\n")],
        finished=True,
        cached_tokens=16,
        prompt_logprobs=[None, [TokenLogprob(5, -0.25)]],
        timings={"prefill": 3.5},
        kv_blocks={"host": "a"},
    ),
    "model_info": ModelInfo("/models/m", "LlamaForCausalLM", 32000, "ab12", 4096, 8192, "vllm"),
    "selection_options": SelectionOptions(keep_rate=0.2, coverage=0.9, granularity="token", layers="all"),
    "draft_request": DraftRequest(
        7,
        [DraftRow("r1", 2, _ids(4, 5), 4, 0.5, 2)],
        [SessionState("r2", _SCATTERED, _ids(4), "chain", "salt")],
        ["r0"],
    ),
    "draft_reply": DraftReply(
        7, [Draft("r1", 4, _ids(6, 7), _ids(6, 1, 7, 2), np.array([0.5, 0.5, 0.75, 0.25], np.float32), True)], ["r3"]
    ),
    "error": InvalidRequestError("the prompt is too long"),
}
