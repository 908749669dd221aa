"""The options whose values are paths, on this machine or on those of the pools. All else takes its list from here."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from skim_common.engine_options import from_json, read_adapter
from skim_common.models.source import is_hub_name, located

Kind = Literal["file", "model"]

PATHS: Mapping[str, Kind] = {
    "allowed_local_media_path": "file",
    "chat_template": "file",
    "draft_model": "model",
    "generation_config": "model",
    "head_profile": "file",
    "hf_config_path": "model",
    "lora_modules.path": "model",
    "mm_encoder_fp8_scale_path": "file",
    "reasoning_parser_plugin": "file",
    "spec_model": "model",
    "speculative_config.model": "model",
    "ssl_certfile": "file",
    "ssl_keyfile": "file",
    "structured_outputs_config.reasoning_parser_plugin": "file",
    "tool_parser_plugin": "file",
}
"""By option, and field of an option. file: a file or a folder that is read. model: a folder, or a hub name. What an
engine writes is not here: such a path starts at the engine's working directory."""

_STRUCTURED = {name.partition(".")[0] for name in PATHS if "." in name}


def with_located_paths(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options with absolute paths. A relative one starts at `folder`.

    Adapters, and options with fields, may be JSON text, as on a command line. They become what it says.
    """
    read = {name: _read(name, value) if name in _STRUCTURED else value for name, value in options.items()}
    return with_paths(read, lambda name, path: _located(name, path, folder))


def with_paths(options: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """The options with `change(name, value)` in the place of each path or hub name. name: a key of PATHS."""
    changed = dict(options)
    for name in PATHS:
        option, *fields = name.split(".")
        if option in changed:
            changed[option] = _with_path(changed[option], fields, name, change)
    return changed


def hub_names(options: Mapping[str, Any]) -> list[str]:
    """The repositories of a hub that the options name: adapters, a drafter, and configurations."""
    found: list[str] = []

    def look(name: str, value: str) -> str:
        if PATHS[name] == "model" and is_hub_name(value):
            found.append(value)
        return value

    with_paths(options, look)
    return found


def _with_path(value: Any, fields: list[str], name: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, list | tuple):
        return [_with_path(one, fields, name, change) for one in value]
    if fields and isinstance(value, Mapping):
        first, *rest = fields
        return {**value, first: _with_path(value[first], rest, name, change)} if first in value else value
    return change(name, value) if not fields and isinstance(value, str) and _is_path(name, value) else value


def _is_path(name: str, value: str) -> bool:
    if name == "chat_template":  # a text that is no path has one of these, as vLLM tells them apart
        return bool(value) and not set("{}\n") & set(value)
    return value not in (("", "auto", "vllm") if name == "generation_config" else ("",))


def _located(name: str, path: str, folder: Path) -> str:
    if PATHS[name] == "model":
        return located(path, folder)
    file = os.path.join(folder, os.path.expanduser(path))
    # vLLM has templates of its own: template_chatml.jinja and others.
    own = name == "chat_template" and path.startswith("template_") and not os.path.exists(file)
    return path if own else os.path.abspath(file)


def _read(name: str, value: Any) -> Any:
    """A value of _STRUCTURED as data. What cannot be read stays as it is, and its reader refuses it."""
    value = from_json(value)
    if name != "lora_modules" or not value:
        return value
    return [read_adapter(one) for one in (value if isinstance(value, list | tuple) else [value])]
