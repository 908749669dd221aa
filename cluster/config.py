"""A deployment as data: which models, on how many replicas of what size, behind which endpoint.

Read from a YAML file, from command-line flags, or from a file with flags over it. Whatever is wrong is one sentence
that names the setting, such as `target.tensor_parallel`.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from kv_transfer.errors import SkimError
from kv_transfer.messages import DecodeOptions, SelectionOptions

CPU_KV_CACHE_GIB = "4"


def _absolute(model: str, info: ValidationInfo) -> str:
    folder: Path = (info.context or {}).get("folder", Path())
    return str((folder / Path(model).expanduser()).resolve())


class PoolConfig(BaseModel):
    """One pool: replicas of one model on one engine. A replica is one Ray actor with its engine's processes."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    model: Annotated[str, Field(min_length=1), AfterValidator(_absolute)] = Field(
        description="model folder; relative ones are taken from the config file's folder"
    )
    engine: Literal["vllm", "transformers", "mock"] = "vllm"
    replicas: int = Field(1, ge=1)
    tensor_parallel: int = Field(1, ge=1, description="ranks that one replica is split over")
    cpus_per_replica: float = Field(1.0, ge=0, allow_inf_nan=False, description="CPU cores that Ray sets aside")
    gpus_per_replica: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GPUs of a replica; null: tensor_parallel of them where Ray has any",
    )
    max_ongoing_requests: int = Field(64, ge=1, description="requests that one replica works on at a time")
    engine_options: dict[str, Any] = Field(default_factory=dict, description="passed on to the engine as they are")
    env: dict[str, str] = Field(default_factory=dict, description="environment variables of the replicas")

    @property
    def environment(self) -> dict[str, str]:
        """`env`, with what a replica on CPU needs: vLLM alone would take nearly all memory, and there are two pools."""
        return self.env if self.gpus_per_replica else {"VLLM_CPU_KVCACHE_SPACE": CPU_KV_CACHE_GIB, **self.env}


class RouterConfig(BaseModel):
    """The HTTP endpoint, and when it asks the speculator at all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    replicas: int = Field(1, ge=1)
    cpus: float = Field(1.0, ge=0, allow_inf_nan=False, description="CPU cores that Ray sets aside per replica")
    max_ongoing_requests: int = Field(256, ge=1, description="requests that one replica works on at a time")
    min_prompt_tokens: int = Field(1024, ge=1, description="shorter prompts run dense")
    select_timeout_s: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="a selection that takes longer is given up: the prompt runs dense"
    )
    admission_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="a request that no target replica takes for so long gets a 503"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    vllm_args: dict[str, Any] = Field(
        default_factory=dict, description="options of vLLM's HTTP front: api_key, tool_call_parser, chat_template, ..."
    )


def placed(pool: PoolConfig, *, on_gpus: bool) -> PoolConfig:
    """`pool` with its GPUs decided: as it says, else one per rank if `on_gpus`."""
    if pool.gpus_per_replica is not None:
        return pool
    gpus = pool.tensor_parallel if on_gpus and pool.engine != "mock" else 0
    return pool.model_copy(update={"gpus_per_replica": float(gpus)})


class ChannelConfig(BaseModel):
    """The draft channel between target workers and speculators (gRPC). Without token and TLS it trusts the network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="where a speculator replica listens; 0 takes a free port. A fixed one, with one "
        "replica per machine, lets running answers find a replica that was started anew",
    )
    deadline_ms: float = Field(250.0, gt=0, le=10_000, description="a draft that takes longer is done without")
    token: str | None = Field(None, min_length=16, description="shared secret that every target worker must show")
    tls_cert: str | None = Field(None, description="server certificate, PEM file on the pools' machines")
    tls_key: str | None = Field(None, description="its private key, PEM file")
    tls_ca: str | None = Field(None, description="certificate authority that clients trust, PEM file")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        given = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(self, name)]
        if given and len(given) < 3:
            raise ValueError("tls_cert, tls_key and tls_ca go together")
        return self


class DeploymentConfig(BaseModel):
    """Everything that `skim serve` needs to know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    served_model_name: str = Field("", description="model name that clients send; the target folder's name if empty")
    speculator: PoolConfig
    target: PoolConfig
    selection: SelectionOptions = Field(default_factory=lambda: SelectionOptions())
    decode: DecodeOptions = Field(default_factory=lambda: DecodeOptions())
    channel: ChannelConfig = Field(default_factory=lambda: ChannelConfig())
    router: RouterConfig = Field(default_factory=lambda: RouterConfig())
    spans_machines: bool = Field(False, description="the model folders lie on the pools' machines, perhaps not on this")

    def placed(self, *, on_gpus: bool) -> "DeploymentConfig":
        """With the GPUs of both pools decided."""
        pools = {name: placed(getattr(self, name), on_gpus=on_gpus) for name in ("speculator", "target")}
        return self.model_copy(update=pools)


def load_config(path: str | Path) -> DeploymentConfig:
    """The deployment that the YAML file at `path` describes. Raises SkimError."""
    return config_from_flags(path, {})


def config_from_flags(path: str | Path | None, overrides: Mapping[str, Any]) -> DeploymentConfig:
    """The deployment of a file, if one is given, with `overrides` over it.

    overrides: values by dotted name, such as {"target.model": Path("big")}; None leaves the file's value. Model folders
    among them are relative to the working directory. Raises SkimError.
    """
    settings = _read(Path(path)) if path is not None else {}
    for name, value in overrides.items():
        if value is not None:
            _set(settings, name.split("."), str(value.absolute()) if isinstance(value, Path) else value)
    folder = Path(path).parent if path is not None else Path()
    try:
        config = DeploymentConfig.model_validate(settings, context={"folder": folder.absolute()})
    except ValidationError as error:
        raise SkimError(f"{path or 'command line'}: {_sentence(error)}") from None
    if config.served_model_name:
        return config
    return config.model_copy(update={"served_model_name": Path(config.target.model).name})


def _read(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SkimError(f"config file {path} does not exist") from None
    except OSError as error:
        raise SkimError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SkimError(f"config file {path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SkimError(f"config file {path}{where} is not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(settings, dict):
        raise SkimError(f"config file {path} must hold settings such as `target:` and `speculator:`")
    return settings


def _set(settings: dict[str, Any], names: list[str], value: Any) -> None:
    """Set settings[a][b] = value, making absent sections; a section of a wrong type is left to validation."""
    *sections, last = names
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            return
    settings[last] = value


def _sentence(error: ValidationError) -> str:
    """All that is wrong, each with the setting's dotted name: `router.port: should be less than or equal to 65535`."""
    return "; ".join(_problem(dict(e)) for e in error.errors(include_url=False))


def _problem(error: dict[str, Any]) -> str:
    *sections, last = error["loc"]
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{name}: is missing"
    if error["type"] == "extra_forbidden":
        known = _settings_of(sections)
        close = get_close_matches(str(last), known, 1)
        hint = f"did you mean {close[0]}?" if close else f"the settings here are {', '.join(known)}"
        return f"{name}: is not a setting; {hint}"
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{name}: {message}, not {error['input']!r:.60}"


def _settings_of(sections: list[Any]) -> list[str]:
    """The settings of a section given by its path."""
    model: Any = DeploymentConfig
    for section in sections:
        model = model.model_fields[section].annotation
    return list(model.model_fields)
