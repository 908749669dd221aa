"""The prompts of the decoding benchmarks: demo documents, or Python code and a request to explain it.

The demo pair can only answer a question about a record (`demo_models/documents.py`). A real pair gets a part
of a module of Python's standard library, so that its answers are long and are real text.
"""

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from demo_models.documents import make_document, words
from skim_common.errors import SkimError

Kind = Literal["demo", "code"]

MODULES = words(
    """argparse ast bdb datetime difflib doctest inspect ipaddress locale optparse pdb pickle pickletools statistics
    subprocess tarfile threading turtle typing zipfile"""
)
QUESTION = "Explain step by step what this code does."


def messages(kind: Kind, tokens: int, seed: int, tokenizer: Any) -> list[dict[str, str]]:
    """A chat of one user turn; its prompt has `tokens` tokens or a few less. The same seed gives the same chat."""
    if kind == "demo":
        return make_document(tokens, seed).messages

    def chat(code: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{code}\n\n{QUESTION}"}]

    rng = random.Random(seed)
    text = _source(rng.choice(MODULES))
    # A token seldom has more than eight characters, so the rest of the module is long enough.
    start = rng.randint(0, max(0, len(text) - 8 * tokens))
    code = text[text.find("\n", start) + 1 :]
    around = len(tokenizer.apply_chat_template(chat(""), add_generation_prompt=True, return_dict=False))
    ends = tokenizer(code, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    room = max(0, min(tokens - around, len(ends)) - 1)
    return chat(code[: ends[room][0]].rstrip())


def _source(module: str) -> str:
    """The source of a module of the standard library, without importing it."""
    found = find_spec(module)
    if found is None or found.origin is None:
        raise SkimError(f"this Python has no source of the module {module}: install its standard library")
    return Path(found.origin).read_text(encoding="utf-8")
