"""`skim select`: a speculator in this process, to look at what it keeps."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from cluster.in_process.pair import Pair
from cluster.in_process.prompts import as_token_ids, load_tokenizer, render
from cluster.json_file import read_json, read_text
from router.options.request import PREFILL, PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import SkimError


def read_prompt(model: Path, text_file: Path | None, ids_file: Path | None, *, chat: bool) -> RenderedPrompt:
    """The prompt from a text file or a JSON list of token ids, as `skim.Pair` reads it. Raises SkimError."""
    if (text_file is None) == (ids_file is None):
        raise SkimError("give the prompt by either --prompt-file or --prompt-ids")
    if ids_file is not None:
        return RenderedPrompt(as_token_ids(_read_ids(ids_file)))
    assert text_file is not None
    text = read_text(text_file)
    return render([{"role": "user", "content": text}] if chat else text, load_tokenizer(str(model)))


def read_ranges(text: str, prompt: RenderedPrompt) -> Any:
    """The option `keep_ranges` in a flag's JSON; only for text that is no chat. Raises SkimError."""
    try:
        ranges = json.loads(text)
    except ValueError:
        ranges = text
    if ranges and (prompt.text is None or prompt.chat is not None):
        raise SkimError("--keep-ranges counts characters of --prompt-file: leave out --prompt-ids and --chat")
    return ranges


def _read_ids(file: Path) -> list[int]:
    """A prompt's token ids. Raises SkimError."""
    ids = read_json(file)
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise SkimError(f"{file} must hold a JSON list of token ids, for example [1, 17, 4]")
    return ids


def read_options(text: str, name: str) -> dict[str, Any]:
    """The engine options in a flag's JSON object. name: the flag. Raises SkimError."""
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise SkimError(f'{name} takes a JSON object, for example \'{{"dtype": "float32"}}\', not {text!r}')
    return options


def run_select(
    model: Path,
    target: Path,
    prompt: RenderedPrompt,
    selection: dict[str, Any],
    kind: str,
    options: Mapping[str, Any],
    console: Console,
) -> dict[str, Any]:
    """Score a prompt on one speculator engine; prints it with its kept tokens highlighted.

    target: the model whose tokens the prompt has. selection: fields of PrefillOptions. kind, options: the engine and
    its options. Raises SkimError.
    """
    prefill = PREFILL.resolve(PrefillOptions(), None, selection)
    options = {**quick_start(kind), **options}
    with Pair(speculator=model, reads_for=target, engine=kind, speculator_options=options, prefill=prefill) as pair:
        selected = pair.select(prompt)
    kept = selected.kept
    tokenizer = load_tokenizer(str(target))
    console.print(highlight_kept([tokenizer.decode([i]) for i in prompt.token_ids.tolist()], kept.positions))
    assert selected.coverage is not None
    console.print(
        f"\nkept {kept.token_ids.size} of {kept.context_length} tokens "
        f"({kept.token_ids.size / kept.context_length:.1%}), {selected.coverage:.1%} of the importance"
    )
    return selected.to_json()


def highlight_kept(pieces: list[str], positions: np.ndarray, first: int = 0, last: int | None = None) -> Text:
    """Token texts `pieces[first:last]` as one rich Text, kept ones bold on colour, dropped ones dim."""
    kept = np.zeros(len(pieces), bool)
    kept[positions] = True
    text = Text()
    for piece, is_kept in zip(pieces[first:last], kept[first:last], strict=True):
        text.append(piece, style="bold black on bright_green" if is_kept else "dim")
    return text


def quick_start(kind: str) -> dict[str, Any]:
    """Options for one request: a small KV cache and no compilation, so that the command starts soon."""
    if kind != "vllm":
        return {}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return {"enforce_eager": True}
