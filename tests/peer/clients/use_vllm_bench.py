import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from checks import MODEL, NOBODY, TOKENIZER, URL, run

REPORT = Path("vllm_bench.json")
PROMPTS = 3
COMMAND = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` without the command `vllm`, which asks for the metadata of a package of this name."""


def measured(backend: str, path: str, name: str = MODEL) -> dict[str, Any]:
    """What `vllm bench serve --save-detailed` saves of a run."""
    REPORT.unlink(missing_ok=True)
    options = {
        "backend": backend,
        "base-url": URL,
        "endpoint": path,
        "model": name,
        "tokenizer": TOKENIZER,
        "dataset-name": "random",
        "random-input-len": 1500,
        "random-output-len": 12,
        "num-prompts": PROMPTS,
        "max-concurrency": 1,
        "result-filename": REPORT,
    }
    words = [sys.executable, "-c", COMMAND, "--save-result", "--save-detailed", "--ignore-eos", "--disable-tqdm"]
    words += [word for option, value in options.items() for word in (f"--{option}", str(value))]
    done = subprocess.run(words, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert REPORT.exists(), done.stdout + done.stderr
    return json.loads(REPORT.read_text())


def check_answers(backend: str, path: str) -> None:
    result = measured(backend, path)
    assert result["completed"] == PROMPTS, result
    assert result["output_lens"] == [12] * PROMPTS, result
    assert all(result["generated_texts"]), result
    assert all(first > 0 for first in result["ttfts"]), result


def chat() -> None:
    check_answers("openai-chat", "/v1/chat/completions")


def stream() -> None:
    check_answers("openai", "/v1/completions")


def error() -> None:
    result = measured("openai-chat", "/v1/chat/completions", NOBODY)
    assert result["completed"] == 0, result
    assert all("Not Found" in one or NOBODY in one for one in result["errors"]), result


run(chat, stream, error)
