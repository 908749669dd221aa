"""Sessions of agents: read from traces in the format of kv-cache-tester, or drawn from the distribution of its traces.

A trace is a JSON file (https://github.com/callanjfox/kv-cache-tester, Apache-2.0) with `tool_tokens`, `system_tokens`,
`block_size` and `requests`. A request has `in` and `out` (tokens), `hash_ids` (one for each whole block of the prompt),
`think_time` (seconds between the earlier answer and it) and `input_types`. It has no text. Requests that begin with
equal ids share that beginning. The requests of sub-agents, which are sessions of their own, are left out.

`drawn` uses the quantiles of the 710 traces that were public in November 2026, with 47,948 later turns. All are drawn
independently of each other. So turns of one session are less alike than in a trace, and bursts are shorter.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skim_common.errors import SkimError


@dataclass(frozen=True, slots=True)
class Turn:
    """gap_s: seconds between the earlier answer and this prompt. shared: tokens of the earlier prompt with which this
    one begins: all of them, unless the history was edited. new: those behind them, with the earlier answer at first.
    answer: tokens. speech: the user wrote; else a tool's result is new."""

    gap_s: float
    shared: int
    new: int
    answer: int
    speech: bool

    @property
    def size(self) -> int:
        return self.shared + self.new


@dataclass(frozen=True, slots=True)
class Session:
    """opening: tokens of tools and system prompt, which sessions share."""

    opening: int
    turns: tuple[Turn, ...]


def read(folder: Path, longest: int) -> list[Session]:
    """The sessions of all traces in a folder, each up to its first prompt of more than `longest` tokens. Raises
    SkimError for a file in another format, and if nothing is left."""
    found = [_session(path, longest) for path in sorted(folder.glob("*.json"))]
    sessions = [session for session in found if len(session.turns) > 1]
    if not sessions:
        raise SkimError(f"{folder.name}: no *.json file has a session of two turns of at most {longest} tokens")
    return sessions


def _session(path: Path, longest: int) -> Session:
    try:
        trace = json.loads(path.read_text(encoding="utf-8"))
        asked = [request for request in trace["requests"] if request["type"] in ("s", "n")]
        turns = tuple(_turns(asked, int(trace["block_size"]), longest))
        return Session(int(trace["tool_tokens"]) + int(trace["system_tokens"]), turns)
    except OSError as error:
        raise SkimError(f"cannot read the trace {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise SkimError(
            f"{path.name}: a trace is a JSON object with tool_tokens, system_tokens, block_size and requests, which"
            " have type, in, out and hash_ids"
        ) from None


def _turns(asked: Sequence[Mapping[str, Any]], block: int, longest: int) -> Iterator[Turn]:
    earlier, before = 0, list[int]()
    for request in asked:
        size, ids = int(request["in"]), request["hash_ids"]
        if size > longest:
            return
        alike = next((i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before))
        # A block that is not full has no id.
        shared = earlier if alike == len(before) else alike * block
        shared = min(shared, size - 1, len(ids) * block)
        speech = "tool_result" not in request.get("input_types", ())
        gap = float(request.get("think_time") or 0.0)
        yield Turn(gap, shared, size - shared, max(1, int(request["out"])), speech)
        earlier, before = size, ids


Quantiles = Mapping[float, float]
SPEECH = 0.137
"""Share of the later turns in which the user writes."""
OPENING = 14_339
FIRST: Quantiles = {0: 9000, 0.05: 13_048, 0.25: 18_587, 0.5: 24_386, 0.75: 103_663, 1: 128_000}
"""Tokens of a session's first prompt. Half of the traces begin with a history."""
TURNS: Quantiles = {0: 3, 0.05: 4, 0.25: 18, 0.5: 45, 0.75: 94, 0.95: 231, 1: 439}
NEW: Quantiles = {
    0: 100, 0.05: 184, 0.25: 352, 0.5: 656, 0.75: 1526, 0.9: 3493, 0.95: 5847, 0.98: 10_682, 0.99: 15_642, 1: 80_000
}  # fmt: skip
"""New tokens of a later turn that edits nothing."""
ANSWER: Quantiles = {0: 40, 0.05: 88, 0.25: 137, 0.5: 215, 0.75: 430, 0.9: 902, 0.95: 1549, 0.99: 3673, 1: 8000}
TOOL_GAP: Quantiles = {0: 1, 0.05: 3, 0.25: 5, 0.5: 9, 0.75: 19, 0.9: 67, 0.95: 139, 0.99: 607, 1: 3000}
SPEECH_GAP: Quantiles = {0: 2, 0.05: 9, 0.25: 40, 0.5: 127, 0.75: 407, 0.9: 1540, 0.95: 3087, 1: 10_000}
"""Seconds between an answer and the next prompt: of a tool, and of a user."""
EDITED = 0.026
"""Share of the later turns whose history was edited or shortened, so that most of the prompt is new."""
EDITED_SIZE: Quantiles = {0: 0.03, 0.05: 0.17, 0.25: 0.5, 0.5: 1.0, 0.75: 1.02, 0.95: 1.32, 1: 2.0}
"""The size of such a prompt, as a share of the earlier one."""
EDITED_SHARED: Quantiles = {0: 0.001, 0.05: 0.01, 0.25: 0.145, 0.5: 0.278, 0.75: 0.482, 0.95: 0.99, 1: 0.99}
"""The beginning that it shares with the earlier one, as a share of it."""


def drawn(count: int, longest: int, seed: int = 0) -> list[Session]:
    """`count` sessions that follow from the seed. A session ends before its first prompt of more than `longest`
    tokens."""
    random = np.random.default_rng(seed)
    found: list[Session] = []
    while len(found) < count:
        session = Session(OPENING, tuple(_drawn_turns(random, longest)))
        if len(session.turns) > 1:
            found.append(session)
    return found


def _drawn_turns(random: np.random.Generator, longest: int) -> Iterator[Turn]:
    size = round(_one(random, FIRST))
    if size > longest:
        return
    yield Turn(0.0, 0, size, round(_one(random, ANSWER)), True)
    for _ in range(round(_one(random, TURNS)) - 1):
        speech = bool(random.random() < SPEECH)
        gap, answer = _one(random, SPEECH_GAP if speech else TOOL_GAP), round(_one(random, ANSWER))
        if random.random() < EDITED:
            whole = max(OPENING + 1, round(size * _one(random, EDITED_SIZE)))
            shared = min(size, round(whole * _one(random, EDITED_SHARED)))
            turn = Turn(gap, shared, whole - shared, answer, speech)
        else:
            turn = Turn(gap, size, round(_one(random, NEW)), answer, speech)
        if turn.size > longest:
            return
        yield turn
        size = turn.size


def _one(random: np.random.Generator, quantiles: Quantiles) -> float:
    """A number with these quantiles; between two of them, its logarithm is uniform."""
    return math.exp(np.interp(random.random(), list(quantiles), [math.log(value) for value in quantiles.values()]))
