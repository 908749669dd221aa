"""The prompts of `skim bench forecast`: one function for each shape, in the demo pair's language."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.harness.conversations import conversation
from demo_models.documents import count_tokens, filler_sentence, make_document

Message = Mapping[str, Any]
Mode = Literal["dense", "speculative"]

ADAPTER = "adapter"
"""The name of the LoRA adapter."""
DOCUMENT = 8000
"""Tokens of a new document, times one of SCALES."""
SCALES = (1.0, 0.75, 1.25)
"""By round: how long a document is, or a list of messages."""
TOOL = 500
"""Tokens of the definition of a tool."""

TEMPLATE = """{{ bos_token }}{% if tools %}<|system|> {% for t in tools %}{{ t['function']['name'] }}: \
{{ t['function']['description'] }}
{% endfor %}{% endif %}{% for m in messages %}<|{{ 'user' if m['role'] == 'tool' else m['role'] }}|> \
{% if m['tool_calls'] %}{{ m['tool_calls'][0]['function']['name'] }}{% else %}{{ m['content']|trim }}{% endif %}\
<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""The demo pair's chat template, with tools."""


@dataclass(frozen=True)
class Prompt:
    """One chat. fields: of the request's body."""

    messages: list[Message]
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What is measured in a round. before: prompts that run before it, each in this mode."""

    asked: Prompt
    before: list[tuple[Prompt, Mode]] = field(default_factory=list)


def plain(number: int) -> Case:
    return Case(Prompt(_document(number)))


def system(number: int) -> Case:
    """All rounds have the same system prompt."""
    head = [{"role": "system", "content": _text(5000, 1)}]
    return _with_head(number, lambda messages: Prompt([*head, *messages]))


def tools(count: int) -> Callable[[int], Case]:
    """All rounds have the same tools."""

    def case(number: int) -> Case:
        functions = [{"name": f"read{i}", "description": _text(TOOL, i), "parameters": {}} for i in range(count)]
        given = {"tools": [{"type": "function", "function": f} for f in functions], "tool_choice": "none"}
        return _with_head(number, lambda messages: Prompt(messages, given))

    return case


def messages(number: int) -> Case:
    """A long conversation that is new to the router."""
    made = conversation(1000, 1, _seed(number))
    texts = [_text(round(80 * _scale(number)), 1000 * _seed(number) + i) for i in range(99)]
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return Case(Prompt([*turns[:-1], {"role": "user", "content": made.questions[0].text}]))


def tool_result(number: int) -> Case:
    """An agent's step: a task, a call of a tool, and its long result."""
    made = make_document(round(2.5 * DOCUMENT * _scale(number) ** 0.5), _seed(number))
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return Case(
        Prompt(
            [
                {"role": "user", "content": made.question},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": made.document},
            ]
        )
    )


def later_turns(number: int) -> Case:
    """The third turn of a conversation, which began in one mode or the other. In every second one, it has a text."""
    made = conversation(DOCUMENT, 3, _seed(number))
    answers = [f"{question.expected}." for question in made.questions]
    turns = [list(made.messages(turn, answers[:turn])) for turn in range(3)]
    if number // 2 % 2:
        turns[2][-1] = {"role": "user", "content": f"{_text(2000, _seed(number))}\n{made.questions[2].text}"}
    mode: Mode = ("speculative", "dense")[number % 2]
    return Case(Prompt(turns[2]), [(Prompt(turn), mode) for turn in turns[:2]])


def adapter(number: int) -> Case:
    return _with_head(number, lambda messages: Prompt(messages, {"model": ADAPTER}))


SHAPES: dict[str, Callable[[int], Case]] = {
    "plain": plain,
    "system 5k": system,
    "tools 2k": tools(4),
    "tools 8k": tools(16),
    "100 messages": messages,
    "tool result 20k": tool_result,
    "later turns": later_turns,
    "adapter": adapter,
}
ROUNDS_APART = ("later turns",)
"""Shapes of which no round shares a prefix with another."""


def learned(number: int) -> list[Message]:
    """A prompt of the first requests of a deployment, of mixed lengths."""
    return list(make_document((2500, 9000, 4500, 15000, 3000, 6000)[number % 6], 900 + number).messages)


def _with_head(number: int, prompt: Callable[[list[Message]], Prompt]) -> Case:
    """What the rounds share was read in both modes before the first one."""
    before: list[Message] = list(make_document(2500, _seed(number) + 50).messages)
    modes: list[Mode] = ["dense", "speculative"] if number == 0 else []
    return Case(prompt(_document(number)), [(prompt(before), mode) for mode in modes])


def _document(number: int) -> list[Message]:
    return list(make_document(round(DOCUMENT * _scale(number)), _seed(number)).messages)


def _scale(number: int) -> float:
    return SCALES[number % len(SCALES)]


def _seed(number: int) -> int:
    return 100 + number


def _text(tokens: int, seed: int) -> str:
    """Sentences without a record, of about so many tokens."""
    choose, sentences, used = random.Random(seed), list[str](), 0
    while used < tokens:
        sentences.append(filler_sentence(choose))
        used += count_tokens(" " + sentences[-1])
    return " ".join(sentences)
