"""The table of path-like options is complete: it is compared with vLLM's options, Skim's engines and the settings."""

import dataclasses
import inspect
import re
import typing
from pathlib import Path

from pydantic import BaseModel
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs

from cluster.config.schema import DeploymentConfig
from cluster.config.vllm_options import PATHS, REFUSED, SETTINGS
from speculator_service.vllm_backend.engine import VllmSpeculator
from target_service.vllm_backend.engine import VllmTarget

LIKE_A_PATH = re.compile(
    r"path|file|dir(_|$)|folder|plugin|template|tokenizer|model|weights|modules|cert|key|tls|^generation_config"
)

NO_PATHS = {
    "api_key", "compilation_config.cache_dir", "compilation_config.debug_dump_path",
    "default_chat_template_kwargs", "kv_transfer_config.kv_connector_module_path",
    "lora_modules.base_model_name", "lora_modules.name", "lora_target_modules", "mm_encoder_fp8_scale_save_path",
    "model_class_overrides", "model_impl", "model_weights", "root_path",
    "speculative_config.draft_load_config.download_dir",
    "speculative_config.draft_load_config.model_loader_extra_config", "tokenizer_mode",
}  # fmt: skip
"""Names of other things: of Python modules, models for clients, layers; places in an object store or a URL; places that
an engine writes to."""

SETTINGS_WITH_PATHS = {
    "speculator.model", "target.model", "target.prefill.model", "router.api_keys_file", "router.tls_cert",
    "router.tls_key", "channel.tls_cert", "channel.tls_key", "channel.tls_ca",
}  # fmt: skip
"""`tests/unit/cluster/kuberay/test_paths.py` gives each of them a path."""


def kinds(hint):
    """The plain types in a type hint, and its dataclasses. Words of a fixed list are none of them."""
    if dataclasses.is_dataclass(hint):
        return {hint}
    if typing.get_origin(hint) is typing.Literal or isinstance(hint, list):  # a list: the arguments of a function
        return set()
    return set().union(*map(kinds, typing.get_args(hint))) if typing.get_args(hint) else {hint}


def like_paths(options, begin="", above=()):
    """The fields of a dataclass of options that are like a path by name or type, also those of dataclasses in it."""
    try:
        hints = typing.get_type_hints(options)
    except NameError:  # a name that vLLM imports for type checkers alone
        hints = {field.name: field.type for field in dataclasses.fields(options)}
    for field in dataclasses.fields(options):
        name, found = begin + field.name, kinds(hints[field.name])
        if not field.init or name in REFUSED or name in NO_PATHS:
            continue
        if Path in found or (found & {str, typing.Any} and LIKE_A_PATH.search(field.name)):
            yield name
        for inner in found:
            if dataclasses.is_dataclass(inner) and inner not in above:
                yield from like_paths(inner, f"{name}.", (*above, inner))


def of_vllm():
    settings = {name for name, setting in SETTINGS.items() if not setting.endswith("draft_model")}
    return {*like_paths(AsyncEngineArgs), *like_paths(FrontendArgs)} - settings


def of_speculation():
    """Without the fields that vLLM fills in."""
    filled = ("target_", "draft_model_config", "draft_parallel")
    names = like_paths(SpeculativeConfig, "speculative_config.")
    return {name for name in names if not name.partition(".")[2].startswith(filled)}


def of_engines():
    names = {name for engine in (VllmTarget, VllmSpeculator) for name in inspect.signature(engine).parameters}
    return {name for name in names if LIKE_A_PATH.search(name)} - {"model", "lora_modules"}


def of_settings(model=DeploymentConfig, begin=""):
    for name, field in model.model_fields.items():
        found = kinds(field.annotation)
        for inner in found:
            if isinstance(inner, type) and issubclass(inner, BaseModel) and name != "kubernetes":
                yield from of_settings(inner, f"{begin}{name}.")
        if found & {str, Path}:
            yield begin + name


def test_the_table_has_every_option_that_is_like_a_path():
    flags_alone = {"spec_model", "ssl_certfile", "ssl_keyfile"}
    assert of_vllm() | of_speculation() | of_engines() | flags_alone == PATHS.keys()


def test_every_setting_that_is_like_a_path_is_known():
    names = {name for name in of_settings() if LIKE_A_PATH.search(name.rpartition(".")[2])}
    assert names - {"served_model_name", "model_aliases"} == SETTINGS_WITH_PATHS


def test_a_new_option_would_be_found():
    """Control: by its name or its type, also inside of another option."""
    inner = dataclasses.make_dataclass("inner", [("cache_dir", str | None, None), ("place", Path | None, None)])
    new = dataclasses.make_dataclass(
        "new", [("new_template", str, ""), ("inner", inner | None, None), ("size", str, 0)]
    )
    assert set(like_paths(new)) == {"new_template", "inner.cache_dir", "inner.place"}
