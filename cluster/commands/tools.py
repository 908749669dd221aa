"""`skim select` and `skim generate`: one engine in this process, no Ray, for looking at one half of the system."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from kv_transfer.errors import InvalidRequestError, SkimError
from kv_transfer.messages import GenerateRequest, KeptPrompt, SelectionOptions, SelectRequest
from router.options import PREFILL, PrefillOptions

FINAL_ONLY = 2
"""vLLM's RequestOutputKind.FINAL_ONLY: one output, at the end."""


def read_prompt(model: Path, text_file: Path | None, ids_file: Path | None, *, chat: bool) -> list[int]:
    """The prompt's token ids from a text file or a JSON list of ids. Raises SkimError."""
    if (text_file is None) == (ids_file is None):
        raise SkimError("give the prompt by either --prompt-file or --prompt-ids")
    if ids_file is not None:
        ids = read_json(ids_file)
        if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise SkimError(f"{ids_file} must hold a JSON list of token ids, for example [1, 17, 4]")
        return ids
    assert text_file is not None
    text = _read_text(text_file)
    tokenizer = _tokenizer(model)
    if chat:
        messages = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    return list(tokenizer(text).input_ids)


def run_select(model: Path, ids: list[int], selection: dict[str, Any], kind: str, console: Console) -> dict[str, Any]:
    """Score `ids` on one speculator engine; prints the prompt with what is kept highlighted. Raises SkimError."""
    options = PREFILL.resolve(PrefillOptions(), None, selection).selection
    return asyncio.run(_select(model, ids, options, kind, console))


async def _select(
    model: Path, ids: list[int], options: SelectionOptions, kind: str, console: Console
) -> dict[str, Any]:
    from speculator_service.factory import create_engine
    from speculator_service.service import SpeculatorService

    engine = create_engine(kind, str(model), options=_engine_defaults(kind))
    try:
        request = SelectRequest("select", np.asarray(ids, np.int32), options, return_importance=True)
        reply = await SpeculatorService(engine).select(request)
    finally:
        engine.close()
    kept = reply.kept
    console.print(highlight_kept(_pieces(model, ids), kept.positions))
    console.print(
        f"\nkept {kept.token_ids.size} of {kept.context_length} tokens "
        f"({kept.token_ids.size / kept.context_length:.1%}), {reply.coverage:.1%} of the importance"
    )
    assert reply.importance is not None
    return {
        "token_ids": kept.token_ids.tolist(),
        "context_length": kept.context_length,
        "kept_positions": kept.positions.tolist(),
        "importance": reply.importance.tolist(),
        "look_ahead_tokens": kept.look_ahead_tokens.tolist(),
        "coverage": reply.coverage,
        "options": options.model_dump(),
        "timings_ms": dict(reply.timings),
    }


def run_generate(
    model: Path, selection_file: Path, sampling: dict[str, Any], tensor_parallel: int, kind: str, console: Console
) -> dict[str, Any]:
    """Decode from a selection on one target engine; prints the answer. Raises SkimError."""
    prompt = _read_selection(selection_file)
    return asyncio.run(_generate(model, prompt, sampling, tensor_parallel, kind, console))


async def _generate(
    model: Path, prompt: KeptPrompt, sampling: dict[str, Any], tensor_parallel: int, kind: str, console: Console
) -> dict[str, Any]:
    from target_service.factory import create_engine

    engine = create_engine(kind, str(model), tensor_parallel=tensor_parallel, options=_engine_defaults(kind))
    try:
        request = GenerateRequest("generate", prompt, {**sampling, "output_kind": FINAL_ONLY})
        outputs = [output async for output in engine.generate(request)]
    finally:
        engine.close()
    completion = outputs[-1].completions[0]
    console.print(completion.text, markup=False)
    return {
        "tokens": completion.token_ids.tolist(),
        "logprobs": None
        if completion.logprobs is None
        else [{str(c.token_id): c.logprob for c in position} for position in completion.logprobs],
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "timings_ms": dict(outputs[0].timings),
    }


def _read_selection(path: Path) -> KeptPrompt:
    data = read_json(path)
    try:
        return KeptPrompt(
            np.asarray(data["token_ids"], np.int32),
            np.asarray(data["kept_positions"], np.int32),
            int(data["context_length"]),
            np.asarray(data.get("look_ahead_tokens", []), np.int32),
        )
    except KeyError as missing:
        raise SkimError(f"{path} has no field {missing}: give a file that `skim select --json` wrote") from None
    except (TypeError, ValueError, OverflowError, ValidationError) as error:
        raise InvalidRequestError(f"{path} is not a selection: {error}") from None


def highlight_kept(pieces: list[str], positions: np.ndarray, first: int = 0, last: int | None = None) -> Text:
    """Token texts `pieces[first:last]` as one rich Text, kept ones bold on colour, dropped ones dim."""
    kept = np.zeros(len(pieces), bool)
    kept[positions] = True
    text = Text()
    for piece, is_kept in zip(pieces[first:last], kept[first:last], strict=True):
        text.append(piece, style="bold black on bright_green" if is_kept else "dim")
    return text


def _pieces(model: Path, ids: list[int]) -> list[str]:
    tokenizer = _tokenizer(model)
    return [tokenizer.decode([i]) for i in ids]


def _tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    from kv_transfer.model_info import inspect_model

    inspect_model(str(model), engine="tokenizer")
    return AutoTokenizer.from_pretrained(model)


def _engine_defaults(kind: str) -> dict[str, Any]:
    """For one request: a small cache and no compilation, so that the command starts soon."""
    if kind != "vllm":
        return {}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return {"enforce_eager": True}


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises SkimError naming the file."""
    try:
        return json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise SkimError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from None


def write_json(path: Path, value: Any) -> None:
    """Write `value` with a final newline. Raises SkimError if the file cannot be written."""
    try:
        path.write_text(json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise SkimError(f"cannot write {path}: {error.strerror}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SkimError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
