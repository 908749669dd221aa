"""Starts vLLM's AsyncLLM for both services. A failure is reported as one sentence."""

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs, get_type_hints
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.v1.engine.async_llm import AsyncLLM

from skim_common.errors import ModelError, SkimError
from skim_common.validation import sentence
from skim_common.versions import check_version
from vllm_hooks.start_up import cpu_processes, first_exception, start_up_environment

OWN_OPTIONS = ("model", "tokenizer", "tensor_parallel_size", "worker_cls", "scheduler_cls")
"""Fields of AsyncEngineArgs that both services set themselves, so that users cannot."""
INSTEAD = {"model": "model", "tokenizer": "model", "tensor_parallel_size": "tensor_parallel"}
"""The setting of the pool that decides such a field."""

KV_CONNECTORS = ("NixlConnector", "OffloadingConnector")
"""Connectors that find KV by block hashes, or that are told the blocks. One that finds KV by token ids would return KV
of other positions."""

CUDA_BATCHED_TOKENS = 8192
"""Default tokens of a step on CUDA, as in vLLM's server on an H100. Without a usage context vLLM takes 2048."""

SIGN_OF_LIFE = "check_health"
"""A method of vLLM's workers that does nothing. Each rank answers after the step that it computes."""


def check_options(service: str, options: Mapping[str, Any], own: Collection[str] = ()) -> None:
    """Raise SkimError for an option that is no field of AsyncEngineArgs, or that OWN_OPTIONS or `own` contains."""
    if owned := sorted(options.keys() & {*OWN_OPTIONS, *own}):
        instead = f"set {service}.{INSTEAD[owned[0]]} instead" if owned[0] in INSTEAD else "remove it"
        raise SkimError(f"the {service} engine option {owned[0]!r} is set by Skim: {instead}")
    if unknown := sorted(options.keys() - {field.name for field in fields(AsyncEngineArgs)}):
        raise SkimError(
            f"unknown {service} engine option {unknown[0]!r}: see vLLM's engine arguments for those there are"
        )


def engine_config(refusal: str, /, **arguments: Any) -> VllmConfig:
    """vLLM's configuration for these fields of AsyncEngineArgs. Raises SkimError that begins with `refusal`."""
    # The pools exchange token ids, so the part of a model that reads images would never run.
    defaults: dict[str, Any] = {"use_tqdm_on_load": False, "language_model_only": True}
    if current_platform.is_cuda() and arguments.get("max_num_batched_tokens") is None:
        defaults["max_num_batched_tokens"] = CUDA_BATCHED_TOKENS
    try:
        if plugin := arguments.get("reasoning_parser_plugin"):
            ReasoningParserManager.import_reasoning_parser(plugin)
        return AsyncEngineArgs(**_as_configs({**defaults, **arguments})).create_engine_config()
    except Exception as error:  # pydantic, transformers and vLLM raise many types here
        raise SkimError(f"{refusal}: {_cause(error)}") from error


def _as_configs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with each mapping as the config class of its field, as `vllm serve` reads the JSON of a flag."""
    read = dict(arguments)
    for field in fields(AsyncEngineArgs):
        if isinstance(value := read.get(field.name), dict):
            config = next(
                (hint for hint in get_type_hints(field.type) if isinstance(hint, type) and is_dataclass(hint)), None
            )
            read[field.name] = TypeAdapter(config).validate_python(value) if config else value
    return read


def start(config: VllmConfig, failure: str, **arguments: Any) -> AsyncLLM:
    """A running engine. arguments: for AsyncLLM.from_vllm_config. Raises SkimError for another version of vLLM and for
    options that cannot work, before any process starts; ModelError if a worker refuses the model; SkimError that begins
    with `failure` for every other cause.
    """
    check_version("vllm")
    connector = config.kv_transfer_config and config.kv_transfer_config.kv_connector
    if connector and connector not in KV_CONNECTORS:
        raise SkimError(
            f"kv_transfer_config names the KV connector {connector}, which may ignore restored positions; choose"
            f" {' or '.join(KV_CONNECTORS)}, or leave it out"
        )
    if current_platform.is_cpu() and config.model_config.use_mla:
        # vLLM's CPU operator is wrong for queries of shape [tokens, heads, size], as in MLA layers.
        config.compilation_config.custom_ops.append("-rotary_embedding")
    with start_up_environment(config.parallel_config.world_size if current_platform.is_cpu() else 0) as notes:
        try:
            with cpu_processes(config):
                return AsyncLLM.from_vllm_config(config, **arguments)
        except Exception as error:  # ValueError, RuntimeError, OSError, and types of pydantic and CUDA
            noted = first_exception(notes)
            if noted and noted[0] == ModelError.__name__:
                raise ModelError(noted[1]) from error
            raise SkimError(f"{failure}: {_cause(error, noted)}") from error


def cache_tokens(config: VllmConfig) -> int:
    """The tokens that the prefix cache of a running engine with this configuration can hold; 0 without one."""
    cache = config.cache_config
    return (cache.kv_cache_size_tokens or 0) if cache.enable_prefix_caching else 0


def _cause(error: Exception, noted: tuple[str, str] | None = None) -> str:
    """The cause in one line of at most 400 characters. noted: type and message of the first error in vLLM's log."""
    if noted:
        message = noted[1] or noted[0]
    elif isinstance(error, ValidationError):
        message = sentence(error)
    else:
        message = str(error) or type(error).__name__
    if "failed to be inspected" in message and find_spec("torchvision") is None:
        # vLLM logs the cause alone. Its modules of models that read images import torchvision.
        message = "vLLM's module of this model needs torchvision, in a build for the installed torch; install that"
    text = " ".join(message.split()).partition(" See root cause above")[0]
    return text if len(text) <= 400 else text[:397] + "..."
