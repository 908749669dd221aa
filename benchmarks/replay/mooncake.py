"""Traces of requests in Mooncake's open format (kvcache-ai/Mooncake, FAST25-release/traces).

A trace is JSON lines: `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids` (one id for each block
of 512 prompt tokens). Equal ids mean equal blocks after equal blocks, so requests share the longest common beginning of
their ids. A trace has no text.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skim_common.errors import SkimError

TRACE_BLOCK = 512
"""Prompt tokens for each id of a trace."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """at_s: seconds from the start of the trace. blocks: ids. prompt_tokens, answer_tokens: in tokens of the trace."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]


def read_trace(path: Path) -> list[TracedRequest]:
    """The requests of a trace file, in order of time. Raises SkimError for a file in another format."""
    requests = []
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            ids = tuple(int(block) for block in row["hash_ids"])
            prompt, answer = int(row["input_length"]), int(row["output_length"])
            requests.append(TracedRequest(row["timestamp"] / 1e3, prompt, answer, ids))
    except OSError as error:
        raise SkimError(f"cannot read the trace {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise SkimError(
            f"{path.name}, line {len(requests) + 1}: a trace has JSON lines with timestamp, input_length,"
            " output_length and hash_ids"
        ) from None
    if wrong := next(
        (r for r in requests if not 0 <= len(r.blocks) * TRACE_BLOCK - r.prompt_tokens < TRACE_BLOCK), None
    ):
        number = requests.index(wrong) + 1
        raise SkimError(f"{path.name}, line {number}: hash_ids must have one id for each {TRACE_BLOCK} prompt tokens")
    return sorted(requests, key=lambda request: request.at_s)


def conversations(requests: Sequence[TracedRequest]) -> list[list[TracedRequest]]:
    """The requests that share more than their first block, which may be a system prompt that all have. In order."""
    members: dict[tuple[int, ...], list[TracedRequest]] = defaultdict(list)
    for request in requests:
        members[request.blocks[:2]].append(request)
    return list(members.values())
