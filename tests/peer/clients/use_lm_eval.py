"""A task of its own about gates: answers by chat, and the log probability of each colour after a prompt of text."""

import json
from pathlib import Path
from typing import Any

import requests
from checks import COLOURS, MODEL, NOBODY, QUESTION, URL, refusal, run
from lm_eval import simple_evaluate

ROWS = [{"question": QUESTION.replace("gate 7?", f"gate {n}?"), "colour": COLOURS[n % 3]} for n in (7, 8, 9)]
TASK = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(Path("gates.json").resolve())}},
    "test_split": "test",
    "doc_to_text": "{{question}}",
}


def results(kind: str, endpoint: str, task: dict[str, Any], name: str = MODEL, **options: Any) -> dict[str, Any]:
    """What it measured for the rows."""
    Path("gates.json").write_text("\n".join(map(json.dumps, ROWS)))
    model = {"model": name, "base_url": f"{URL}{endpoint}", "max_retries": 1, "max_length": 8192}
    found = simple_evaluate(kind, model, tasks=[{"task": kind, **TASK, **task}], bootstrap_iters=0, **options)
    assert len(found["samples"][kind]) == len(ROWS)
    return found["results"][kind]


def answers(name: str = MODEL) -> dict[str, Any]:
    task = {
        "output_type": "generate_until",
        "doc_to_target": "{{colour}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    }
    return results("local-chat-completions", "/v1/chat/completions", task, name, apply_chat_template=True)


def chat() -> None:
    assert 0 <= answers()["exact_match,none"] <= 1


def scores() -> None:
    task = {"output_type": "multiple_choice", "doc_to_choice": COLOURS, "doc_to_target": "{{colour}}"}
    assert 0 <= results("local-completions", "/v1/completions", task)["acc,none"] <= 1


def error() -> None:
    found = refusal(lambda: answers(NOBODY), requests.HTTPError)
    assert found.response.status_code == 404
    assert NOBODY in found.response.text


run(chat, scores, error)
