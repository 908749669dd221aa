"""Starts vLLM's AsyncLLM with Skim's worker and scheduler, or says in one sentence why it does not start."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from kv_transfer.errors import ModelError, SkimError
from target_service.vllm_backend import draft_probs
from vllm_hooks import block_hash, positions_v1, positions_v2
from vllm_hooks.start_up import cpu_processes, first_exception, start_up_environment

OWN_OPTIONS = ("model", "tokenizer", "tensor_parallel_size", "worker_cls", "scheduler_cls")

StatLogger = Callable[[VllmConfig, int], StatLoggerBase]


def start_engine(
    model: str,
    tensor_parallel: int,
    options: Mapping[str, Any],
    *,
    worker_cls: str,
    scheduler_cls: str,
    async_scheduler_cls: str,
    stat_loggers: Sequence[StatLogger] = (),
) -> AsyncLLM:
    """An engine for the model in folder `model`; options are fields of AsyncEngineArgs. Classes are dotted names.

    stat_loggers: make what the engine tells its numbers to, besides vLLM's own.

    Raises ModelError for a model whose positions cannot be restored, SkimError for all else that stops the start.
    """
    _check_options(options)
    try:
        settings = {"use_tqdm_on_load": False, **options}
        args = AsyncEngineArgs(model=model, tensor_parallel_size=tensor_parallel, worker_cls=worker_cls, **settings)
        config = args.create_engine_config()
    except Exception as e:  # pydantic, transformers and vLLM raise many kinds here, none after a process was started
        raise SkimError(f"the target engine cannot run {model} with these options: {_first_line(e)}") from e
    _check_model(model, config.model_config)
    _check_hooks(config)
    scheduler = config.scheduler_config
    scheduler.scheduler_cls = async_scheduler_cls if scheduler.async_scheduling else scheduler_cls
    with start_up_environment(config.parallel_config.world_size if current_platform.is_cpu() else 0) as notes:
        try:
            with cpu_processes(config, OMPProcessManager):
                return AsyncLLM.from_vllm_config(config, stat_loggers=list(stat_loggers) or None)
        except Exception as e:
            cause = first_exception(notes)
            reason = " ".join(cause[1].split()) or cause[0] if cause else _first_line(e)
            raise SkimError(f"the target engine did not start with {model}: {reason:.400}") from e


def find_stat_logger(name: str) -> StatLogger:
    """The class of this dotted name, such as vllm.v1.metrics.ray_wrappers.RayPrometheusStatLogger. Raises SkimError."""
    try:
        found = resolve_obj_by_qualname(name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if not (isinstance(found, type) and issubclass(found, StatLoggerBase)):
        raise SkimError(f"the target engine's option stat_loggers names {name!r}, which is no StatLoggerBase of vLLM's")
    return found


def _check_options(options: Mapping[str, Any]) -> None:
    known = {f.name for f in fields(AsyncEngineArgs)} - set(OWN_OPTIONS)
    unknown = sorted(options.keys() - known)
    if unknown:
        raise SkimError(f"unknown target engine option {unknown[0]!r}: see vLLM's engine arguments for those there are")


def _check_model(model: str, config: ModelConfig) -> None:
    """Refuse what restored positions would get wrong without a sign."""
    reasons = {
        "several positions per token (M-RoPE or XD-RoPE)": config.uses_mrope or config.uses_xdrope_dim > 0,
        "position biases made from cache slots (ALiBi)": config.uses_alibi,
        "an encoder": config.is_encoder_decoder,
    }
    for reason, found in reasons.items():
        if found:
            raise ModelError(f"model {model} is not supported as a target: it has {reason}")
    original = _longrope_original(config)
    if original is not None and config.max_model_len <= original:
        raise ModelError(
            f"model {model} chooses its longrope factors by max_model_len, and {config.max_model_len} would choose the"
            f" short ones even for long contexts; set max_model_len above {original}"
        )


def _longrope_original(config: ModelConfig) -> int | None:
    """The context length that a longrope model was first trained on, or None for all other models."""
    text = config.hf_text_config
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    return original if isinstance(original, int) else None


def _check_hooks(config: VllmConfig) -> None:
    """Here as well as in the processes that install them: this process can still tell the user."""
    block_hash.check()
    (positions_v2 if config.use_v2_model_runner else positions_v1).check()
    if config.speculative_config and config.speculative_config.method == "custom_class":
        draft_probs.check()


def _first_line(error: Exception) -> str:
    """The first line that says something: pydantic begins with the count of errors, and vLLM's own text follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines[1:] if len(lines) > 1 and "validation error" in lines[0] else lines
    text = lines[0] if lines else type(error).__name__
    return text.partition(" See root cause above")[0].rstrip(".")
