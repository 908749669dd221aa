"""A cache of a model hub in which each model that vLLM's tests ask for is SmolLM2-135M-Instruct.

The copy differs from the model in three things. Its chat template knows tools, and the end of a thought as Qwen3's
does. Four unused tokens have the names that the parsers of tool calls and thoughts look for. Its default answers are
greedy and short.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

COMMIT = "0" * 40
ANSWERS = {"temperature": 0.0, "max_new_tokens": 256}
"""Without a temperature an answer is the same each time; on a CPU, long ones take minutes."""
TOKENS = {
    "<jupyter_code>": "<tool_call>",
    "<jupyter_output>": "</tool_call>",
    "<issue_start>": "<think>",
    "<issue_closed>": "</think>",
}
"""Special tokens of SmolLM2 that no chat contains, and their new names."""


def build_hub(weights: Path, home: Path, models: Iterable[str]) -> None:
    """Fill `home`, the value of HF_HOME, anew. weights: SmolLM2's folder. The changed copy is `home / "model"`."""
    shutil.rmtree(home, ignore_errors=True)
    model = home / "model"
    _copy(weights, model)
    for name in models:
        repository = home / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for file in model.iterdir():
            (snapshot / file.name).symlink_to(file)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)


def _copy(weights: Path, model: Path) -> None:
    shutil.copytree(weights, model)
    shutil.copy(Path(__file__).with_name("chat_template.jinja"), model)
    config = model / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **ANSWERS}))
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    ids = tokenizer["model"]["vocab"]
    for token in tokenizer["added_tokens"]:
        if name := TOKENS.get(token["content"]):
            ids[name] = ids.pop(token["content"])
            token |= {"content": name, "special": False}
    assert all(name in ids for name in TOKENS.values())
    file.write_text(json.dumps(tokenizer))
