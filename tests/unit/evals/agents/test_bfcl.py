"""The turns of BFCL, over a small double of the package: the layout of its data, and the functions that are called."""

import json
from pathlib import Path

import pytest

from evals.agents.bfcl import LONG, bfcl_conversations, bfcl_requests, calls_of
from skim_common.errors import SkimError

FILE = "BFCL_v4_multi_turn_long_context.json"

MODULES = {
    "constants/executable_backend_config.py": 'MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Counter": "counter.json"}',
    "eval_checker/multi_turn_eval/multi_turn_utils.py": """
class Counter:
    def __init__(self, start):
        self.total = start
    def add(self, number):
        self.total += number
        return " ".join(f"step {self.total}" for _ in range(1500))

COUNTERS = {}

def execute_multi_turn_func_call(calls, config, classes, name, entry_id, long_context):
    assert long_context and classes == ["Counter"]
    counter = COUNTERS.setdefault(name, Counter(**config["Counter"]))
    def result(call):
        try:
            return str(eval(call, {"add": counter.add}))
        except Exception as error:
            return f"Error during execution: {error}"
    return [result(call) for call in calls], {"Counter": counter}
""",
    "eval_checker/multi_turn_eval/multi_turn_checker.py": """
from .multi_turn_utils import execute_multi_turn_func_call as execute

def multi_turn_checker(given, right, entry, category, name):
    for steps, calls in zip(given, right, strict=True):
        systems = entry["initial_config"], entry["involved_classes"]
        for step in steps:
            _, mine = execute(step, *systems, name, entry["id"], long_context=True)
        _, theirs = execute(calls, *systems, "right", entry["id"], long_context=True)
        if mine["Counter"].total != theirs["Counter"].total:
            return {"valid": False}
    return {"valid": True}
""",
}


def lines(*found):
    return "".join(json.dumps(line) + "\n" for line in found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("bfcl")
    for name, text in MODULES.items():
        file = root / "bfcl_eval" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    data = root / "bfcl_eval" / "data"
    for part in ("possible_answer", "multi_turn_func_doc"):
        (data / part).mkdir(parents=True)
    asked = ["Add 2.", "Add 3 and 4.", "Say hello.", "Add nothing.", "Add much.", "Add 5."]
    entries = [
        {
            "id": f"multi_turn_long_context_{number}",
            "question": [[{"role": "user", "content": text}] for text in asked[: 6 - 5 * number]],
            "initial_config": {"Counter": {"start": 10}},
            "involved_classes": ["Counter"],
            "excluded_function": ["reset"],
        }
        for number in range(2)
    ]
    right = [["add(2)"], ["add(3)", "add(number=4)"], [], ["add(0)"], [f"add({'1 + ' * 200}1)"], ["add(5)"]]
    truths = [{"id": entry["id"], "ground_truth": right[: len(entry["question"])]} for entry in entries]
    told = [{"name": name, "description": "", "parameters": {}, "response": "unused"} for name in ("add", "reset")]
    (data / FILE).write_text(lines(*entries))
    (data / "possible_answer" / FILE).write_text(lines(*truths))
    (data / "multi_turn_func_doc" / "counter.json").write_text(lines(*told))
    return root


def test_turns_with_long_results_before_them_are_asked(folder, tokens):
    """Not those that a call of nothing would answer, or that take a long answer."""
    [samples] = bfcl_conversations(folder, 5, 100_000, tokens)
    second, last = samples
    assert [sample.text for sample in samples] == ["Add 3 and 4.", "Add 5."]
    assert [m["role"] for m in second.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert last.messages[: len(second.messages)] == second.messages
    assert tokens(second.messages[3]["content"]) >= LONG
    assert second.messages[2]["content"] == "[add(2)]"
    system = second.messages[0]["content"]
    assert '"name": "add"' in system
    assert '"reset"' not in system
    assert "unused" not in system


def test_the_checker_decides(folder, tokens):
    """After the right calls of the earlier turns."""
    [[second, last]] = bfcl_conversations(folder, 1, 100_000, tokens)
    for right in (second.quiz.expected[0], "[add(7)]", "Calls:\n[add(number=4),\n add(3)]"):
        assert second.quiz.score(right) == 1
    for wrong in ("[add(3)]", "[]", "add(3), add(4)", "[add(3), add(4)", "[add(3), subtract(4)]", "I cannot."):
        assert second.quiz.score(wrong) == 0
    assert last.quiz.score("[add(5)]") == 1
    assert last.quiz.score(second.quiz.expected[0]) == 0
    assert last.quiz.score("[__import__('os')._exit(0)]") == 0


def test_calls_of_an_answer():
    assert calls_of("Sure: [a(x='[1]'), b(2)] done [c()]") == ["a(x='[1]')", "b(2)"]
    assert calls_of("[1, 2]") == calls_of("a(1)") == calls_of("[a(") == []


def test_a_folder_without_the_package_is_one_sentence(folder, tmp_path, tokens):
    with pytest.raises(SkimError, match="cannot be read as BFCL's lines of JSON"):
        list(bfcl_conversations(tmp_path, 1, 100_000, tokens))
    with pytest.raises(SkimError, match="has at most 500 tokens: ask for a larger --length"):
        list(bfcl_conversations(folder, 1, 500, tokens))


def test_all_that_users_say_is_read(folder):
    first, second = ["Add 2.", "Add 3 and 4.", "Say hello.", "Add nothing.", "Add much.", "Add 5."], ["Add 2."]
    assert bfcl_requests(folder) == [*first, *second]
