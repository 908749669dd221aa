"""The LoRA adapters of a target: the list of `vllm serve --lora-modules`, as requests of vLLM.

vLLM makes the name of an adapter a part of its block hashes (vllm.v1.core.kv_cache_utils), so that no adapter has the
KV of another, or of the model itself.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform

from skim_common.errors import ModelError, SkimError

CONFIG = "adapter_config.json"


def adapters_of(modules: Sequence[str | Mapping[str, Any]]) -> dict[str, LoRARequest]:
    """By name. modules: `name=path`, or a mapping or JSON text with name and path (vLLM's `LoRAModulePath`).

    All replicas number the adapters alike. Raises SkimError for an entry that cannot be read, or a name that occurs
    twice, and ModelError for a folder without an adapter.
    """
    found: dict[str, LoRARequest] = {}
    for number, module in enumerate(modules, 1):
        name, path = _read(module)
        if name in found:
            raise SkimError(f"lora_modules has two adapters with the name {name!r}; rename one")
        if Path(path).is_absolute() and not (Path(path) / CONFIG).exists():
            raise ModelError(f"the LoRA adapter {name!r} has no {CONFIG} in {path}; correct its path in lora_modules")
        found[name] = LoRARequest(name, number, path)
    return found


def lora_options(adapters: Mapping[str, LoRARequest], options: Mapping[str, Any]) -> dict[str, Any]:
    """What an engine with these adapters needs beside `options`: fields of vLLM's AsyncEngineArgs.

    On CPU there is a slot more than adapters, and it stays empty. vLLM gives a token without an adapter the slot -1
    (vllm.lora.punica_wrapper.utils), which its kernels leave out, but its CPU build takes for the last one.
    """
    if not adapters:
        return {}
    if not current_platform.is_cpu():
        return {"enable_lora": True}
    return {"enable_lora": True, "max_loras": max(options.get("max_loras") or 0, len(adapters) + 1)}


def _read(module: str | Mapping[str, Any]) -> tuple[str, str]:
    if isinstance(module, str) and not module.startswith("{"):
        name, _, path = module.partition("=")
    else:
        try:
            read = json.loads(module) if isinstance(module, str) else module
            name, path = read["name"], read["path"]
        except (ValueError, LookupError):
            name = path = ""
    if not name or not path:
        raise SkimError(f"lora_modules: {module!r} is no adapter; write name=path")
    return name, path
