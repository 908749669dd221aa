"""The demo pair with the tokens of a model that thinks and calls tools; the weights are the demo pair's."""

import json
import shutil
from pathlib import Path

TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

DEMO_MODELS = Path(__file__).parents[2] / "demo_models"


def thinking_model(name: str, folder: Path) -> Path:
    """The demo `target` or `speculator` with TOKENS, in a sub-folder. Its embedding has free rows for them."""
    copy = folder / name
    shutil.copytree(DEMO_MODELS / name, copy)
    file = copy / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    first = 1 + max(tokenizer["model"]["vocab"].values())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"] += [{"id": first + i, "content": token, **plain} for i, token in enumerate(TOKENS)]
    file.write_text(json.dumps(tokenizer))
    return copy
