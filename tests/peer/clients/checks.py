"""What each client is asked to do. It runs beside the client, in its environment: the standard library alone.

A script makes one function for each of NAMES, or of those that its client has, and hands them to `run`. The prompt is
long enough to be skimmed.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

URL, MODEL = os.environ.get("PEER_URL", ""), os.environ.get("PEER_MODEL", "")
TOKENIZER = os.environ.get("PEER_TOKENIZER", "")
"""The folder of the model's, for clients that count tokens."""
NOBODY = "nobody/no-model"
NAMES = ("chat", "stream", "tools", "structured", "error")

COLOURS = ["blue", "green", "red"]
DOCUMENT = " ".join(f"The code of gate {n} is {COLOURS[n % 3]} {n * 7 % 100}." for n in range(150))
QUESTION = f"{DOCUMENT}\n\nWhat is the code of gate 7?"
MESSAGES = [{"role": "user", "content": QUESTION}]

GATES = ["7", "8"]
GATE = {"type": "object", "properties": {"gate": {"type": "string", "enum": GATES}}, "required": ["gate"]}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "The code of a gate.", "parameters": GATE}}
RESULT = "The code is blue 49."


def is_call(name: str, arguments: object) -> bool:
    """Whether a tool call is one that TOOL allows. arguments: an object or its JSON."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    return name == "look_up" and isinstance(found, dict) and found.get("gate") in GATES


def refusal(ask: Callable[[], object], kind: type[Exception]) -> Any:
    """The error that the call raises."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError("an unknown model had an answer")


def run(*checks: Callable[[], None]) -> None:
    """Call each and print what became of it as one line of JSON: "passed", or the exception."""
    outcomes = {}
    for check in checks:
        try:
            check()
            outcomes[check.__name__] = "passed"
        except Exception as error:
            traceback.print_exc()
            outcomes[check.__name__] = f"{type(error).__name__}: {error}"
    sys.stdout.flush()
    print(json.dumps(outcomes))
