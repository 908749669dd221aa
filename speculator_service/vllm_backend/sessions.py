"""Drafting sessions on vLLM. The token ids are kept here, the KV is in the engine's prefix cache.

Each drafting round is a request: the prompt, the answer so far, and a few tokens to decode. The prefix cache supplies
the whole blocks that were computed before; rejected tokens are not part of the next request. An idle session references
no block. When memory is short, vLLM evicts its blocks, and the next round computes them again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import GREEDY_BELOW, Drafted
from speculator_service.engine import MAX_TOP
from speculator_service.vllm_backend.scheduler import DRAFT_ARG


@dataclass(slots=True, eq=False)
class EngineSession:
    """A prompt whose KV was computed. prompt: int32, its tokens. context_length: M. extra_args: of every request of the
    session; the positions of a kept prompt. read: int32, the prompt and answer tokens of the last request.
    """

    prompt: Int32Array
    context_length: int
    cache_salt: str | None = None
    extra_args: Mapping[str, Any] | None = None
    read: Int32Array = field(init=False)

    def __post_init__(self) -> None:
        self.read = self.prompt


def sampling(
    count: int,
    temperature: float,
    top_m: int,
    vocab_size: int,
    extra_args: Mapping[str, Any] | None,
    gang: tuple[int, int],
) -> SamplingParams:
    """vLLM's parameters of a round, see `SpeculatorEngine.draft`. If it treats the temperature as greedy, q is one-hot.

    The logprobs are those of the sampled distribution (logprobs_mode, set in `start`). gang: see `scheduler.Gang`.
    """
    top_m = min(top_m, MAX_TOP, vocab_size) if temperature >= GREEDY_BELOW else 0
    return SamplingParams(
        temperature=temperature if top_m else 0.0,
        top_k=top_m,
        max_tokens=count,
        logprobs=top_m or None,
        flat_logprobs=True,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={**(extra_args or {}), DRAFT_ARG: gang},
    )


def drafted(output: RequestOutput, top_m: int) -> Drafted:
    """The drafts of a finished request, with q of `top_m` pairs each."""
    tokens = np.array(output.outputs[0].token_ids, np.int32)
    flat = output.outputs[0].logprobs
    if flat is None:
        return Drafted(tokens)
    # Each row holds the sampled token, then the likeliest tokens.
    ids = np.array(flat.token_ids, np.int32).reshape(tokens.size, -1)[:, 1 : top_m + 1]
    q = np.exp(np.array(flat.logprobs, np.float64).reshape(tokens.size, -1)[:, 1 : top_m + 1])
    q /= q.sum(axis=1, keepdims=True)
    return Drafted(tokens, ids.flatten(), q.astype(np.float32).flatten())
