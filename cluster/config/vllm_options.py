"""The options of `vllm serve` 0.29: which part of the deployment reads each one, which are settings of Skim, and which
are paths, on this machine or on those of the pools.

A name is that of vLLM's flag, with underscores. What no table of readers names is an option of the engine alone.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from skim_common.engine_options import from_json, read_adapter
from skim_common.errors import SkimError
from skim_common.models.source import is_hub_name, located

Kind = Literal["file", "model"]

FRONT = frozenset({
    "allow_credentials", "allowed_headers", "allowed_methods", "allowed_origins", "api_key", "chat_template",
    "chat_template_content_format", "cohere_format", "cohere_is_reasoning_model", "default_chat_template_kwargs",
    "disable_access_log_for_endpoints", "disable_fastapi_docs", "disable_log_stats", "disable_uvicorn_access_log",
    "enable_auto_tool_choice", "enable_force_include_usage", "enable_log_deltas", "enable_log_outputs",
    "enable_log_requests", "enable_offline_docs", "enable_prompt_tokens_details", "enable_request_id_headers",
    "enable_server_load_tracking", "enable_tokenizer_info_endpoint", "exclude_tools_when_tool_choice_none",
    "fingerprint_mode", "fingerprint_value", "log_error_stack", "lora_modules", "max_log_len", "middleware",
    "renderer_num_workers", "response_role", "return_tokens_as_token_ids", "root_path", "tool_call_parser",
    "tool_parser_plugin", "tool_server", "trust_request_chat_template",
})  # fmt: skip
"""Options of vLLM's HTTP front, in the router. Skim's target reads `lora_modules`, too."""

BOTH = frozenset({
    "allowed_local_media_path", "allowed_media_domains", "config_format", "dtype", "fail_on_environ_validation",
    "generation_config", "hf_config_path", "hf_overrides", "interleave_mm_strings", "language_model_only",
    "limit_mm_per_prompt", "logits_processors", "max_logprobs", "media_io_kwargs",
    "mm_processor_cache_gb", "mm_processor_kwargs", "model_class_overrides", "model_impl", "override_generation_config",
    "reasoning_config", "reasoning_parser", "reasoning_parser_plugin", "structured_outputs_config", "tokenizer_mode",
    "trust_remote_code",
})  # fmt: skip
"""Options of the engine that the front reads, too. It learns max_model_len from the target itself."""

OWN = frozenset({"approximate_positions", "draft_model", "head_profile", "stat_loggers"})
"""Options of Skim's engines over vLLM."""

SETTINGS = {
    "model": ".model",
    "revision": ".model",
    "tensor_parallel_size": ".tensor_parallel",
    "pipeline_parallel_size": ".pipeline_parallel",
    "shutdown_timeout": ".drain_timeout_s",
    "served_model_name": "served_model_name",
    "host": "router.host",
    "port": "router.port",
    "ssl_certfile": "router.tls_cert",
    "ssl_keyfile": "router.tls_key",
    "api_server_count": "router.replicas",
    "sse_keep_alive_interval": "router.keep_alive_s",
    "spec_method": "decode.method",
    "spec_tokens": "decode.max_draft_tokens",
    "spec_model": "target.engine_options.draft_model",
}
"""Options with the setting of Skim that stands for each. One that begins with a dot is of the pool."""

_SPECULATIVE = {"method": "spec_method", "num_speculative_tokens": "spec_tokens", "model": "spec_model"}
"""Fields of `speculative_config` that are options of their own."""

_REASONS = {
    "each replica is one engine: set replicas of the pool, and Skim spreads the requests over them":
        "data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local "
        "data_parallel_address data_parallel_rpc_port data_parallel_backend data_parallel_hybrid_lb "
        "data_parallel_external_lb data_parallel_multi_port_external_lb data_parallel_supervisor_port "
        "dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_supervisor_probe_failure_threshold "
        "aggregate_engine_logging enable_elastic_ep",
    "Ray starts the processes of a replica: set nodes_per_replica and pipeline_parallel of the pool":
        "distributed_executor_backend master_addr master_port nnodes node_rank headless device_ids",
    "Skim has its own, which restores the positions of kept prompts; leave it out": "worker_cls scheduler_cls",
    "Skim reads all files of a model from one place: name the model as owner/name@revision, or as a folder":
        "tokenizer tokenizer_revision code_revision skip_tokenizer_init",
    "models are downloaded to the cache of Hugging Face: set the environment variable HF_HOME": "download_dir",
    "the token of the hub is a secret: set the environment variable HF_TOKEN": "hf_token",
    "Skim serves generation alone; leave it out":
        "runner convert pooler_config io_processor_plugin enable_flash_late_interaction",
    "a diffusion model does not decode token by token; leave it out": "diffusion_config",
    "a client names the adapter as its model: set lora_modules": "default_mm_loras",
    "a prompt is text or token ids, which the speculator reads; leave it out":
        "enable_prompt_embeds enable_mm_embeds tokens_only ec_transfer_config",
    "the endpoint speaks HTTP; leave it out": "grpc",
    "the endpoint listens on router.host and router.port; leave it out": "uds",
    "Ray Serve's proxy receives the connections: see docs/architecture/deployment.md; leave it out":
        "ssl_ca_certs ssl_cert_reqs ssl_ciphers enable_ssl_refresh h11_max_incomplete_event_size h11_max_header_count",
    "logs are set by observability.log_level and observability.log_format": "log_config_file uvicorn_log_level",
    "the router bounds what waits: set router.max_ongoing_requests and router.max_wait_s":
        "max_num_queued_reqs max_num_queued_tokens",
    "the headers Server-Timing and x-skim-* of each response tell this (docs/observability.md); leave it out":
        "enable_per_request_metrics per_request_spec_decode_metrics",
    "an answer between the pools does not hold this; leave it out":
        "enable_return_routed_experts return_sampling_mask enable_trace_replay",
    "its ranks are not placed: set tensor_parallel of the pool": "prefill_context_parallel_size",
    "an idle pool stops with autoscaling.min_replicas 0; leave it out": "enable_sleep_mode",
    "the endpoint starts no profiler: profile one engine with `vllm serve`; leave it out": "profiler_config",
    "weights are not changed while they serve: use `skim deploy`; leave it out": "weight_transfer_config",
}  # fmt: skip
"""Why Skim does not take an option, and what to do; then the options."""

REFUSED = {option: reason for reason, options in _REASONS.items() for option in options.split()}
"""Options that Skim does not take, with the reason."""


PATHS: Mapping[str, Kind] = {
    **dict.fromkeys((
        "allowed_local_media_path", "chat_template", "head_profile", "mm_encoder_fp8_scale_path",
        "reasoning_parser_plugin", "ssl_certfile", "ssl_keyfile", "structured_outputs_config.reasoning_parser_plugin",
        "tool_parser_plugin",
    ), "file"),
    **dict.fromkeys((
        "draft_model", "generation_config", "hf_config_path", "lora_modules.path", "spec_model",
        "speculative_config.model",
    ), "model"),
}  # fmt: skip
"""By option, and field of an option. file: a file or a folder that is read. model: a folder, or a hub name. What an
engine writes is not here: such a path starts at the engine's working directory."""


def check_engine_options(options: Mapping[str, Any], *, has_front: bool) -> None:
    """Raise ValueError for an entry of a pool's `engine_options` that is a setting of Skim, or that it does not take.

    has_front: whether the pool's list is the front's, too, as the target's is. False and null ask for nothing.
    """
    for name, value in options.items():
        if value is None or value is False:
            continue
        if setting := SETTINGS.get(name):
            raise ValueError(f"engine_options.{name} is set by {setting.removeprefix('.')}: set that instead")
        if reason := REFUSED.get(name):
            raise ValueError(f"engine_options.{name} is not taken: {reason}")
        if name in FRONT and not has_front:
            raise ValueError(f"engine_options.{name} is for the HTTP front: set it in target.engine_options")
    speculative = options.get("speculative_config")
    for field, option in _SPECULATIVE.items():
        if isinstance(speculative, Mapping) and field in speculative:
            setting = SETTINGS[option]
            raise ValueError(f"engine_options.speculative_config.{field} is set by {setting}: set that instead")


def for_front(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the HTTP front reads."""
    return {name: value for name, value in options.items() if name in FRONT | BOTH}


def for_engine(options: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """The options that the engine reads. Other engines than vLLM have options of their own."""
    of_others = FRONT - {"lora_modules"} if engine == "vllm" else FRONT | BOTH
    return {name: value for name, value in options.items() if name not in of_others}


def settings_of_flags(flags: Mapping[str, Any], pool: str, at_default: Collection[str] = ()) -> dict[str, Any]:
    """The deployment's settings, by dotted name, of flags of `vllm serve` for this pool, `target` or `speculator`.

    flags: plain values by option name. at_default: names whose value is vLLM's default, so that they ask for nothing.
    The model is not among the settings. Raises SkimError for a flag that Skim does not take.
    """
    flags = {name: value for name, value in flags.items() if name not in ("model_tag", "model", "revision", "config")}
    rest = dict(flags.get("speculative_config") or {})
    flags |= {option: rest.pop(field) for field, option in _SPECULATIVE.items() if field in rest}
    flags.pop("speculative_config", None)
    flags |= {"speculative_config": rest} if rest else {}
    prefix = "--" if pool == "target" else f"--{pool}."
    settings: dict[str, Any] = {}
    for name, value in flags.items():
        flag = prefix + name.replace("_", "-")
        if reason := REFUSED.get(name):
            if not value or name in at_default:
                continue
            raise SkimError(f"{flag} is not taken: {reason}")
        setting = SETTINGS.get(name, f".engine_options.{name}")
        if pool != "target" and (name in FRONT or not setting.startswith(".")):
            raise SkimError(f"{flag} is for the endpoint, not for a pool: write --{name.replace('_', '-')}")
        if name == "served_model_name":
            settings |= {"served_model_name": value[0], "model_aliases": value[1:]}
        else:
            settings[f"{pool}{setting}" if setting.startswith(".") else setting] = value
    if "spec_model" in flags and "spec_method" not in flags:
        raise SkimError(f"{prefix}speculative-config names a model without its method: add the method")
    return settings


def with_located_paths(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options with absolute paths. A relative one starts at `folder`.

    JSON text, as on a command line, becomes what it says. What cannot be read stays as it is: its reader refuses it.
    """
    read = {name: from_json(value) for name, value in options.items()}
    if modules := read.get("lora_modules"):
        modules = modules if isinstance(modules, list | tuple) else [modules]
        read["lora_modules"] = [read_adapter(module) for module in modules]
    return with_paths(read, lambda name, path: _located(name, path, folder))


def with_paths(options: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """The options with `change(name, value)` in the place of each path or hub name. name: a key of PATHS."""
    changed = dict(options)
    for name in PATHS:
        option, _, field = name.partition(".")
        if option in changed:
            changed[option] = _with_path(changed[option], field, name, change)
    return changed


def hub_names(options: Mapping[str, Any]) -> list[str]:
    """The repositories of a hub that the options name: adapters, a drafter, and configurations."""
    names: list[str] = []

    def look(name: str, value: str) -> str:
        if PATHS[name] == "model" and is_hub_name(value):
            names.append(value)
        return value

    with_paths(options, look)
    return names


def _with_path(value: Any, field: str, name: str, change: Callable[[str, str], str]) -> Any:
    """field: of a value that is a mapping, or of a list of them; empty: the value itself."""
    if isinstance(value, list | tuple):
        return [_with_path(one, field, name, change) for one in value]
    if field and isinstance(value, Mapping):
        return {**value, field: _with_path(value[field], "", name, change)} if field in value else value
    if field or not isinstance(value, str):
        return value
    is_text = name == "chat_template" and set("{}\n") & set(value)  # as vLLM tells a template from a path
    is_word = value == "" or (name == "generation_config" and value in ("auto", "vllm"))
    return value if is_text or is_word else change(name, value)


def _located(name: str, path: str, folder: Path) -> str:
    if PATHS[name] == "model":
        return located(path, folder)
    file = os.path.join(folder, os.path.expanduser(path))
    if name == "chat_template" and path.startswith("template_") and not os.path.exists(file):
        return path  # vLLM has templates of its own: template_chatml.jinja and others
    return os.path.abspath(file)
