"""The turns of BFCL's multi-turn conversations with long results, from the package `bfcl-eval` in a folder.

BFCL (Berkeley Function Calling Leaderboard, v4, category multi_turn_long_context) lets a model work step by step in
simulated systems. Here each turn is asked once, after the right calls of the earlier turns and their results, and the
answer is the list of calls. BFCL's own systems give the results, and its own checker compares the systems' states and
the results after the answer's calls with those after the right ones. So a score is the share of the turns, and no
figure of the leaderboard. The package's code and the answer's calls run in a process of their own.
"""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from evals.agents.execute import run
from evals.tasks.quiz import Count, Message
from evals.tasks.registry import Sample
from skim_common.errors import SkimError

BFCL = "bfcl"
"""The task of the samples."""
ANSWER = 200
"""Tokens of an answer, at most."""
LONG = 1000
"""A turn is asked if the results before it have so many tokens."""
NOTHING = "[nothing()]"
"""A call that does nothing."""

_DATA = Path("bfcl_eval", "data")
_FILE = "BFCL_v4_multi_turn_long_context.json"

_SYSTEM = """You are an agent that calls functions. In each turn, answer with all calls that the user's message asks \
for, in their order, as one list such as [first(a=1), second(name='x')], and with nothing else. The results follow. \
The functions are:
"""

_OPEN = """
import json, sys
asked = json.loads({asked!r})
sys.path.insert(0, asked["folder"])
from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING as FILES
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call
entry, right = asked["entry"], asked["right"]
"""
_RESULTS = """
systems = entry["initial_config"], entry["involved_classes"], "right", entry["id"]
value = {
    "files": [FILES[name] for name in entry["involved_classes"]],
    "results": [execute_multi_turn_func_call(calls, *systems, long_context=True)[0] for calls in right],
}
"""
_CHECK = """
given = [[calls] for calls in right[:-1]] + [[asked["calls"]]]
value = multi_turn_checker(given, right, entry, "multi_turn_long_context", "answer")["valid"]
"""


@dataclass(frozen=True, slots=True)
class BfclTurn:
    """The question of one turn. entry: the conversation, as the package has it. right: the calls of the turns up to
    this one. folder: that of the package.
    """

    folder: Path
    entry: Mapping[str, Any]
    right: tuple[tuple[str, ...], ...]
    question: str
    evidence: tuple[str, ...] = ()

    @property
    def expected(self) -> tuple[str, ...]:
        """The right calls."""
        return (_listed(self.right[-1]),)

    def score(self, answer: str) -> float:
        """1 if BFCL's checker accepts the answer's calls, else 0."""
        calls = calls_of(answer)
        return float(bool(calls and _ran(self.folder, self.entry, self.right, _CHECK, calls=calls)))


def bfcl_conversations(folder: Path, count: int, longest: int, tokens: Count) -> Iterator[list[Sample]]:
    """The turns of BFCL's multi-turn conversations with long results: those with long results before them. Metric:
    BFCL's checker accepts the answer's calls.

    A turn is left out if its right answer is long or calls nothing, and if the checker accepts a call that does nothing
    (it takes what an earlier turn has done for the answer). The first `count` conversations that have such turns, and
    whose last prompt has at most `longest` tokens. folder: where `bfcl_eval` stands, such as `pip install --target`
    makes it. Raises SkimError for a folder without the package, and if there is no such conversation.
    """
    file = folder / _DATA / _FILE
    answers = {line["id"]: line["ground_truth"] for line in _lines(folder / _DATA / "possible_answer" / _FILE)}
    found = (_samples(folder, entry, answers[entry["id"]], longest, tokens) for entry in _lines(file))
    chosen = list(islice(filter(None, found), count))
    if not chosen:
        raise SkimError(f"no conversation of {file} has at most {longest} tokens: ask for a larger --length")
    yield from chosen


def bfcl_requests(folder: Path) -> list[str]:
    """All that users say in these conversations. folder: as in `bfcl_conversations`. Raises SkimError without it."""
    turns = (turn for entry in _lines(folder / _DATA / _FILE) for turn in entry["question"])
    return [message["content"] for turn in turns for message in turn if message["role"] == "user"]


def calls_of(answer: str) -> list[str]:
    """The calls of the first list of calls in an answer, each as Python; empty without one."""
    start = answer.find("[")
    ends = [at for at, letter in enumerate(answer) if letter == "]"]
    for end in ends if start >= 0 else []:
        try:
            found = ast.parse(answer[start : end + 1].strip(), mode="eval").body
        except (SyntaxError, ValueError):
            continue
        calls = found.elts if isinstance(found, ast.List) else []
        return [ast.unparse(call) for call in calls] if all(isinstance(call, ast.Call) for call in calls) else []
    return []


def _samples(
    folder: Path, entry: Mapping[str, Any], right: list[list[str]], longest: int, tokens: Count
) -> list[Sample]:
    """The samples of a conversation; empty if one of its prompts is too long."""
    calls = tuple(map(tuple, right))
    opened = _ran(folder, entry, calls, _RESULTS)
    if opened is None:
        raise SkimError(f"{folder} has no bfcl_eval that runs here: unpack bfcl-eval 2026.3.23 there, with mpmath")
    history: list[Message] = [{"role": "system", "content": _SYSTEM + _functions(folder, entry, opened["files"])}]
    samples, size, read = [], tokens(history[0]["content"]), 0
    for number, (asked, results) in enumerate(zip(entry["question"], opened["results"], strict=True)):
        text = "\n".join(message["content"] for message in asked)
        size += tokens(text)
        turn = BfclTurn(folder, entry, calls[: number + 1], text)
        if read >= LONG and calls[number] and tokens(turn.expected[0]) <= ANSWER and not turn.score(NOTHING):
            if size > longest:
                return []
            samples.append(Sample(BFCL, longest, turn, text, entry["id"], tuple(history), "user", ANSWER))
        result = "\n".join(results)
        history += [{"role": "user", "content": text}, {"role": "assistant", "content": _listed(calls[number])}]
        history.append({"role": "tool", "tool_call_id": f"call-{number}", "content": result})
        history.append({"role": "assistant", "content": "Done."})
        read += tokens(result)
        size += tokens(result) + tokens(_listed(calls[number]))
    return samples


def _functions(folder: Path, entry: Mapping[str, Any], files: list[str]) -> str:
    """The descriptions of the functions, a line each, without those of what they return."""
    told = [line for file in files for line in _lines(folder / _DATA / "multi_turn_func_doc" / file)]
    shown = [line for line in told if line["name"] not in entry.get("excluded_function", ())]
    return "\n".join(json.dumps({name: line[name] for name in ("name", "description", "parameters")}) for line in shown)


def _ran(folder: Path, entry: Mapping[str, Any], right: Any, program: str, **more: Any) -> Any:
    """What a program of this module finds; None if it came to no end."""
    asked = json.dumps({"folder": str(folder.resolve()), "entry": dict(entry), "right": right, **more})
    ended = run("", _OPEN.format(asked=asked) + program)
    return None if ended is None else ended["value"]


def _listed(calls: tuple[str, ...]) -> str:
    return f"[{', '.join(calls)}]"


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open(encoding="utf-8") as opened:
            yield from map(json.loads, opened)
    except (OSError, ValueError) as error:
        raise SkimError(f"{file} cannot be read as BFCL's lines of JSON: {error}") from None
