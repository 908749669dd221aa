"""A conversation of an agent: in each turn the user asks, a tool is called, and the answer follows from the results.

The first turns are given with their right answers. The last ASKED turns are asked one after the other; each has the
right answers of the earlier ones in its history, so every mode answers the same prompts.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evals.tasks.quiz import Count, Message, Quiz, mixed
from evals.tasks.registry import Sample
from router.options.request import PrefillOptions
from skim_common.errors import SkimError

ASKED = 4
"""Turns at the end of each conversation that are asked."""
LEAST_TURNS, MOST_TURNS = 6, 12


@dataclass(frozen=True, slots=True)
class Turn:
    """request: the user's message. call: of the tool whose result follows; its name and arguments. needles: parts that
    the result must hold. quiz: scores the answer. reply: the right answer, as the messages that follow the result.
    """

    request: str
    call: tuple[str, Mapping[str, Any]]
    needles: list[str]
    quiz: Quiz
    reply: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """system: the system prompt. filler: the other parts of the results, in this order. joint: between two parts.

    limit: most tokens of an answer.
    """

    system: str
    turns: list[Turn]
    filler: Iterator[str]
    joint: str
    limit: int


Make = Callable[[int, int, random.Random], Conversation]
"""Makes a conversation of some turns, whose results hold about so many tokens together."""


def called(name: str, arguments: Mapping[str, Any], call_id: str) -> Message:
    """The message of an assistant that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def said(text: str) -> tuple[Message, ...]:
    """The reply of an assistant that answers in words."""
    return ({"role": "assistant", "content": text},)


def make_conversations(
    families: Mapping[str, Make], turns: int, length: int, count: int, *, seed: int, tokens: Count
) -> Iterator[list[Sample]]:
    """`count` conversations of each family: the samples of their asked turns. The families take turns.

    families: by name, which is the samples' task. length: tokens of the messages that the first asked turn has; each
    later one has a further result. Raises SkimError for what no conversation can be made with.
    """
    if not LEAST_TURNS <= turns <= MOST_TURNS:
        raise SkimError(f"an agent's conversation has {LEAST_TURNS} to {MOST_TURNS} turns, not {turns}: give --turns 8")
    least = PrefillOptions().min_prompt_tokens
    if length < least:
        raise SkimError(f"prompts under {least} tokens run dense: ask for a larger --length than {length}")
    for index in range(count):
        for name, make in families.items():
            yield _samples(name, make, turns, length, f"{seed} {name} {length} {index}", tokens)


def _samples(name: str, make: Make, turns: int, length: int, seed: str, tokens: Count) -> list[Sample]:
    rng = random.Random(seed)
    # The later turns have results of the same size as the first ones.
    whole = length * turns // (turns - ASKED + 1)
    made = make(turns, whole, rng)
    history: list[Message] = [{"role": "system", "content": made.system}]
    samples = []
    for number, turn in enumerate(made.turns):
        history += [{"role": "user", "content": turn.request}, called(*turn.call, f"call-{number}")]
        missing = (number + 1) * whole // turns - sum(tokens(message["content"]) for message in history)
        result = _result(turn.needles, made, missing, tokens, rng)
        if number >= turns - ASKED:
            samples.append(Sample(name, length, turn.quiz, result, seed, tuple(history), "tool", made.limit))
        history += [{"role": "tool", "tool_call_id": f"call-{number}", "content": result}, *turn.reply]
    return samples


def _result(needles: list[str], made: Conversation, missing: int, tokens: Count, rng: random.Random) -> str:
    """The needles among filler: at least `missing` tokens, exceeded by at most one part."""
    parts: list[str] = []
    length = tokens(made.joint.join(needles))
    while length < missing:
        part = next(made.filler, None)
        if part is None:
            raise SkimError("there is not enough text for the results of tools: ask for a smaller --length")
        parts.append(part)
        length += tokens(f"{made.joint}{part}")
    return made.joint.join(mixed(needles, parts, rng))
