"""Starts vLLM's AsyncLLM for either service, or says in one sentence why it does not start."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from kv_transfer.errors import ModelError, SkimError
from vllm_hooks import block_hash, positions_v1, positions_v2
from vllm_hooks.start_up import cpu_processes, first_exception, start_up_environment
from vllm_hooks.symbols import Symbol, check_symbols

OWN_OPTIONS = ("model", "tokenizer", "tensor_parallel_size", "worker_cls", "scheduler_cls")
"""Fields of AsyncEngineArgs that both services set themselves."""

HOOKED = (
    ("vllm.v1.worker.gpu_worker", "Worker.init_device", "self"),
    ("vllm.v1.worker.gpu_worker", "Worker.load_model", "self load_dummy_weights"),
)
"""What `worker.RestoringWorker` overrides."""


def check_options(service: str, options: Mapping[str, Any], own: Collection[str] = ()) -> None:
    """Raise SkimError unless all `options` are fields of AsyncEngineArgs that neither OWN_OPTIONS nor `own` names."""
    known = {field.name for field in fields(AsyncEngineArgs)}.difference(OWN_OPTIONS, own)
    if unknown := sorted(options.keys() - known):
        raise SkimError(
            f"unknown {service} engine option {unknown[0]!r}: see vLLM's engine arguments for those there are"
        )


def engine_config(refusal: str, /, **arguments: Any) -> VllmConfig:
    """vLLM's configuration of these fields of AsyncEngineArgs. Raises SkimError, which begins with `refusal`."""
    try:
        return AsyncEngineArgs(**{"use_tqdm_on_load": False, **arguments}).create_engine_config()
    except Exception as error:  # pydantic, transformers and vLLM raise many kinds, none after a process has started
        raise SkimError(f"{refusal}: {_cause(error)}") from error


def start(config: VllmConfig, failure: str, hooked: Iterable[Symbol], **arguments: Any) -> AsyncLLM:
    """A running engine of this configuration. arguments: of AsyncLLM.from_vllm_config.

    hooked: the vLLM symbols that the service's own hooks rely on.

    Raises ModelError if a worker refuses the model, SkimError for every other cause; that one begins with `failure`.
    """
    positions = positions_v2 if config.use_v2_model_runner else positions_v1
    check_symbols((*HOOKED, *block_hash.HOOKED, *positions.HOOKED, *hooked))
    with start_up_environment(config.parallel_config.world_size if current_platform.is_cpu() else 0) as notes:
        try:
            with cpu_processes(config):
                return AsyncLLM.from_vllm_config(config, **arguments)
        except Exception as error:  # vLLM raises ValueError, RuntimeError, OSError, and pydantic's and CUDA's own
            noted = first_exception(notes)
            if noted and noted[0] == ModelError.__name__:
                raise ModelError(noted[1]) from error
            raise SkimError(f"{failure}: {_cause(error, noted)}") from error


def _cause(error: Exception, noted: tuple[str, str] | None = None) -> str:
    """One line of at most 400 characters. noted: type and message of what went wrong in the engine's processes."""
    if noted:
        message = noted[1] or noted[0]
    elif isinstance(error, ValidationError):
        message = "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors())
    else:
        message = str(error) or type(error).__name__
    text = " ".join(message.split()).partition(" See root cause above")[0]
    return text if len(text) <= 400 else text[:397] + "..."
