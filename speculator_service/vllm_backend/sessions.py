"""Drafting sessions on vLLM. The token ids are kept here, the KV is in the engine's prefix cache.

Each drafting round is a request: the prompt, the answer so far, and a few tokens to decode. The prefix cache supplies
the whole blocks that were computed by the scoring of the prompt or by an earlier round. Rejected tokens are not part of
the next request, so nothing has to be removed.

An idle session holds no request and references no block. When memory is short, vLLM's LRU evicts its blocks, those of
the longest unused session first. The next round computes them again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from kv_transfer.arrays import Int32Array, common_prefix, no_numbers
from kv_transfer.messages import KeptPrompt
from kv_transfer.position_map import position_args
from skim_common.errors import SessionLostError
from speculator_service.engine import Drafted
from speculator_service.vllm_backend.scheduler import DRAFT_ARG


@dataclass(slots=True, eq=False)
class EngineSession:
    """A prompt whose KV was computed.

    cache_salt, extra_args: for every request of the session; extra_args holds the positions of a kept prompt.
    read: int32, the prompt and answer tokens of the last request.
    """

    prompt: Int32Array
    context_length: int
    cache_salt: str | None = None
    extra_args: Mapping[str, Any] | None = None
    read: Int32Array = field(default_factory=no_numbers)

    def __post_init__(self) -> None:
        self.read = self.prompt

    @classmethod
    def over(cls, prompt: KeptPrompt, cache_salt: str | None = None) -> "EngineSession":
        """A session of a kept prompt. The engine computes its tokens at their original positions (`vllm_hooks`)."""
        return cls(prompt.token_ids, prompt.context_length, cache_salt, position_args(prompt))


@dataclass(slots=True)
class SessionCounts:
    """Counts since the start.

    rounds: requests that drafted. rollbacks: rounds after a rejected draft. rebuilt: rounds that computed evicted
    blocks again. lost: calls for an unknown session.
    """

    opened: int = 0
    closed: int = 0
    rounds: int = 0
    rollbacks: int = 0
    rebuilt: int = 0
    lost: int = 0


class EngineSessionTable:
    """The sessions of one engine by id, and their counts."""

    def __init__(self, block_size: int) -> None:
        """block_size: tokens per KV block. vLLM's prefix cache holds whole blocks only."""
        self.counts = SessionCounts()
        self._sessions: dict[str, EngineSession] = {}
        self._block_size = block_size

    def add(self, name: str, session: EngineSession) -> None:
        self._sessions[name] = session
        self.counts.opened += 1

    def get(self, name: str) -> EngineSession:
        """Raises SessionLostError for an unknown session."""
        session = self._sessions.get(name)
        if session is None:
            self.counts.lost += 1
            raise SessionLostError(f"session {name} is not on this speculator: it was closed or never opened")
        return session

    def remove(self, name: str) -> None:
        self.counts.closed += self._sessions.pop(name, None) is not None

    def note_round(self, session: EngineSession, before: Int32Array, asked: Int32Array, output: RequestOutput) -> None:
        """Count a round. It computed `asked` (prompt and answer), and its own drafts except the last one.

        before: `session.read` when the round began.
        """
        common = common_prefix(before, asked)
        # The last token is computed again for its logits, and only whole blocks are sure to come from the cache.
        expected = min(common, asked.size - 1) // self._block_size * self._block_size
        self.counts.rounds += 1
        self.counts.rollbacks += common < before.size
        self.counts.rebuilt += (output.num_cached_tokens or 0) < expected
        session.read = np.concatenate([asked, np.array(output.outputs[0].token_ids[:-1], np.int32)])

    def stats(self) -> dict[str, int]:
        """The counts, and `sessions`, the present number of sessions."""
        return {"sessions": len(self._sessions), **asdict(self.counts)}


def sampling(
    count: int, temperature: float, top_m: int, extra_args: Mapping[str, Any] | None, gang: tuple[int, int]
) -> SamplingParams:
    """vLLM's parameters of a round, see `SpeculatorEngine.draft`. top_m = 0 drafts greedily.

    The logprobs are those of the sampled distribution (logprobs_mode, set in `start`). gang: see `scheduler.Gang`.
    """
    return SamplingParams(
        temperature=temperature,
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
