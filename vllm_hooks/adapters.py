"""The LoRA adapters of a target: the list of `vllm serve --lora-modules`, as requests of vLLM.

vLLM makes the name of an adapter a part of its block hashes (vllm.v1.core.kv_cache_utils), so that no adapter has the
KV of another, or of the model itself. It reads an adapter's files inside `execute_model` of the first request for it,
where an error ends the engine, unless the adapter was added before.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from vllm.config.lora import MaxLoRARanks
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from skim_common.engine_options import adapter_paths
from skim_common.errors import ModelError, SkimError, one_line
from skim_common.models.source import local_folder

CONFIG = "adapter_config.json"

CHANGES_A_LAYER = "changes_a_layer"

RANKS: tuple[int, ...] = get_args(MaxLoRARanks)


def adapters_of(
    modules: Sequence[str | Mapping[str, Any]], taken: Iterable[str] = (), *, weights: bool = True
) -> dict[str, LoRARequest]:
    """By name, with a local folder; all replicas number them alike.

    modules: as of `adapter_paths`. taken: names of the model. weights: whether to download the weights of hub names,
    too. Raises SkimError as `adapter_paths` and for a name that is taken, ModelError for files that cannot be had.
    """
    paths = adapter_paths(modules)
    if shared := sorted(paths.keys() & set(taken)):
        raise SkimError(f"lora_modules has an adapter with the name of the model, {shared[0]!r}; rename one")
    return {
        name: LoRARequest(name, number, _folder(name, path, weights))
        for number, (name, path) in enumerate(paths.items(), 1)
    }


def _folder(name: str, path: str, weights: bool) -> str:
    try:
        folder = local_folder(str(Path(path).expanduser()), weights=weights)
    except ModelError as error:
        raise ModelError(f"the LoRA adapter {name!r}: {error}") from None
    if not Path(folder, CONFIG).is_file():
        raise ModelError(f"the LoRA adapter {name!r} has no {CONFIG} in {path}; correct its path in lora_modules")
    return folder


def lora_options(adapters: Mapping[str, LoRARequest], options: Mapping[str, Any]) -> dict[str, Any]:
    """What an engine with these adapters needs beside `options`: fields of vLLM's AsyncEngineArgs.

    The engine's memory holds all adapters, so that none is read again while requests run. Without `max_lora_rank` in
    the options, the adapters' own ranks decide. On CPU a slot more than adapters stays empty: vLLM's CPU build takes
    the slot -1 of a token without an adapter for the last one. Raises ModelError for a config that cannot be read.
    """
    if not adapters:
        return {}
    largest = max(_rank(name, adapter.lora_path) for name, adapter in adapters.items())
    rank = options.get("max_lora_rank") or next((rank for rank in RANKS if rank >= largest), RANKS[-1])
    slots = options.get("max_loras") or 1
    if current_platform.is_cpu():
        slots = max(slots, len(adapters) + 1)
    held = max(options.get("max_cpu_loras") or 0, len(adapters), slots)
    return {"enable_lora": True, "max_lora_rank": rank, "max_loras": slots, "max_cpu_loras": held}


def _rank(name: str, folder: str) -> int:
    try:
        return int(PEFTHelper.from_local_dir(folder, None).r)
    except Exception as error:  # of any type, by what the file holds in place of numbers
        raise ModelError(f"the LoRA adapter {name!r}: its {CONFIG} cannot be used: {one_line(error)}") from None


async def load_adapters(engine: AsyncLLM, adapters: Mapping[str, LoRARequest]) -> None:
    """Load them on all ranks of an engine whose worker has the method CHANGES_A_LAYER.

    Raises ModelError for one that vLLM refuses, or that changes nothing; the engine survives.
    """
    for name, adapter in adapters.items():
        try:
            await engine.add_lora(adapter)
        except EngineDeadError:
            raise
        except Exception as error:  # EngineCore reports what a worker raised, of any type, as text
            cause = " ".join(str(error).split()).removeprefix("Call to add_lora method failed: ")
            raise ModelError(f"the LoRA adapter {name!r} cannot be loaded: {cause[:400]}") from error
        if not any(await engine.collective_rpc(CHANGES_A_LAYER, args=(adapter.lora_int_id,))):
            raise ModelError(f"the LoRA adapter {name!r} changes no layer of the model: it was made for another one")
