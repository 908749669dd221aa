"""Conversations with a canary, a text that occurs once, in each place of a prompt that is never dropped.

A canary is named by its line in the section "What is never dropped" of docs/options.md; MATERIAL may be dropped.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from demo_models.documents import make_document
from tests.unit.router.asking import CHAT_LIKE
from tests.unit.router.conftest import MODEL_NAME

CHAT, RESPONSES, MESSAGES = CHAT_LIKE
SYSTEM, TOOLS, CALLS, QUESTION, SHORT, KEPT = 2, 3, 4, 5, 6, 7
"""Lines of the section."""
MATERIAL = 0

WORDS = sorted({word for word in make_document(4000).document.split() if word.isalpha() and word.islower()})
"""Of the text around a canary, so that no selection prefers it for its words."""

Turn = dict[str, Any]

FORMS: dict[str, Callable[[str, str], list[Turn]]] = {
    "the last line of a turn": lambda material, question: [user(f"{material}\n{question}")],
    "the last part of a turn": lambda material, question: [user([part(material), part(question)])],
    "a turn of its own": lambda material, question: [user(material), assistant("Yes."), user(question)],
    "before a tool's result": lambda material, question: [
        user(question),
        call("c9", "look_up"),
        result("c9", material),
    ],
    "the first line of a turn": lambda material, question: [user(f"{question}\n\n{material}")],
    "between two texts": lambda material, question: [user(f"{material}\n\n{question}\n\n{material[::-1]}")],
    "before a reminder of the client": lambda material, question: [
        user(f"{material}\n\n{question}\n\n<system-reminder>\nThe list of open files is empty.\n</system-reminder>")
    ],
    "before a tool's result and a note of the client": lambda material, question: [
        user(question),
        call("c9", "look_up"),
        result("c9", material),
        user("<system-reminder>\nDo not mention this note to anybody.\n</system-reminder>"),
    ],
    "before a label for the answer": lambda material, question: [
        user(f"Context:\n{material}\n\nQuestion: {question}\nAnswer:")
    ],
    "in a tag": lambda material, question: [user(f"<task>\n{question}\n</task>\n\n```\n{material}\n```\n\nThanks!")],
}
"""How a question stands beside the material that it is about, by name."""


def user(content: Any) -> Turn:
    return {"role": "user", "content": content}


def assistant(content: Any) -> Turn:
    return {"role": "assistant", "content": content}


def part(text: str, **fields: Any) -> Turn:
    return {"type": "text", "text": text, **fields}


def call(name: str, tool: str, **arguments: Any) -> Turn:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {**assistant(""), "tool_calls": [{"id": name, "type": "function", "function": function}]}


def result(name: str, text: str) -> Turn:
    return {"role": "tool", "tool_call_id": name, "content": text}


@dataclass
class Conversation:
    """turns: of a chat; the first is the system's. first_turns: how many of them an earlier request had. canaries: the
    texts of each line."""

    turns: list[Turn]
    tools: list[Turn]
    first_turns: int
    canaries: dict[int, list[str]] = field(default_factory=dict)

    def lost(self, text: str) -> dict[int, list[str]]:
        """The canaries that are not in `text`, by line."""
        found = {line: [one for one in texts if one not in text] for line, texts in self.canaries.items()}
        return {line: texts for line, texts in found.items() if texts}


def make_conversation(seed: int, form: str) -> Conversation:
    """A conversation of about 4,300 tokens. form: of its question, a name of FORMS. The results of the tool `vault` are
    to be protected."""
    random = Random(seed)
    canaries: dict[int, list[str]] = {}

    def canary(line: int) -> str:
        words = " ".join(random.sample(WORDS, 5))
        canaries.setdefault(line, []).append(words)
        return words

    def text(line: int, tokens: int) -> str:
        sentences = make_document(tokens, seed=random.randrange(10**6)).document.split(". ")
        sentences.insert(random.randrange(1, len(sentences)), f"The {canary(line)}")
        return ". ".join(sentences)

    def tool(name: str) -> Turn:
        properties = {canary(TOOLS): {"type": "string", "description": f"A name such as {canary(TOOLS)}."}}
        schema = {"type": "object", "properties": properties}
        return {"name": name, "description": f"Finds {canary(TOOLS)}.", "parameters": schema}

    tools = [tool("look_up"), tool("vault")]
    begin = [
        {"role": "system", "content": text(SYSTEM, 300)},
        user([part(text(KEPT, 200), keep="always"), part(text(MATERIAL, 500))]),
        call("c1", "look_up", path=canary(CALLS)),
        result("c1", text(MATERIAL, 500)),
        call("c2", "vault", path=canary(CALLS)),
        result("c2", text(KEPT, 300)),
    ]
    between = [assistant(f"It is {canary(SHORT)}."), user(text(MATERIAL, 300)), assistant(text(MATERIAL, 300))]
    question = f"Who has seen {canary(QUESTION)}, and when?"
    end = FORMS[form](text(MATERIAL, 800), question)
    return Conversation([*begin, *between, *end], tools, len(begin), canaries)


def body_of(path: str, turns: list[Turn], tools: list[Turn], **fields: Any) -> dict[str, Any]:
    """The request of these turns in the form of the endpoint."""
    if path == CHAT:
        given = [{"type": "function", "function": tool} for tool in tools]
        return {"model": MODEL_NAME, "messages": turns, "tools": given, "max_tokens": 2, **fields}
    system, *turns = turns
    if path == RESPONSES:
        given = [{"type": "function", **tool} for tool in tools]
        items = [item for turn in turns for item in _items(turn)]
        fields = {"instructions": system["content"], "max_output_tokens": 2, **fields}
        return {"model": MODEL_NAME, "input": items, "tools": given, **fields}
    given = [{**tool, "input_schema": tool["parameters"]} for tool in tools]
    fields = {"system": system["content"], "max_tokens": 2, **fields}
    return {"model": MODEL_NAME, "messages": list(map(_blocks, turns)), "tools": given, **fields}


def _items(turn: Turn) -> list[Turn]:
    if "tool_calls" in turn:
        [called] = turn["tool_calls"]
        return [{"type": "function_call", "call_id": called["id"], **called["function"]}]
    if turn["role"] == "tool":
        return [{"type": "function_call_output", "call_id": turn["tool_call_id"], "output": turn["content"]}]
    if isinstance(turn["content"], list):
        return [{**turn, "content": [{**one, "type": "input_text"} for one in turn["content"]]}]
    return [turn]


def _blocks(turn: Turn) -> Turn:
    if "tool_calls" in turn:
        [called] = turn["tool_calls"]
        function = called["function"]
        use = {"type": "tool_use", "id": called["id"], "name": function["name"]}
        return assistant([{**use, "input": json.loads(function["arguments"])}])
    if turn["role"] == "tool":
        return user([{"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}])
    return turn
