"""The settings of the HTTP endpoint: what an operator may choose."""

import os
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from kv_transfer.options import AUTO
from router.options.request import CatchUpWish, Wish


def _beside_the_config(file: str, info: ValidationInfo) -> str:
    return file and os.path.join((info.context or {}).get("folder", ""), os.path.expanduser(file))


File = Annotated[str, AfterValidator(_beside_the_config)]
"""An absolute path. A relative one starts at the config file's folder."""


def _counted_by_ray(resources: dict[str, float]) -> dict[str, float]:
    if own := [name for name in resources if name in ("CPU", "GPU", "memory", "object_store_memory")]:
        raise ValueError(
            f"{own[0]} is no custom resource, because Ray counts it itself: use the settings of CPUs and GPUs"
        )
    return resources


Resources = Annotated[dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], AfterValidator(_counted_by_ray)]
"""Custom Ray resources, by name."""


class RouterConfig(BaseModel):
    """The HTTP endpoint, and when it uses the speculator."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    replicas: int = Field(1, ge=1)
    cpus: float = Field(1.0, ge=0, description="CPU cores that Ray reserves per replica")
    resources: Resources = Field(default_factory=dict, description="custom Ray resources that a replica takes")
    max_ongoing_requests: int = Field(
        256, ge=1, description="requests that one replica has at a time, running or waiting; more are refused (429)"
    )
    max_wait_s: float | None = Field(
        60.0,
        gt=0,
        description="a request that would wait longer for its pools, by the measured rate, is refused (429); "
        "null: none is for this reason",
    )
    drain_timeout_s: float = Field(
        60.0, ge=0, description="how long a stopping replica may take to finish its requests"
    )
    speculative_prefill: Wish = Field(
        AUTO, description="default of the request option `enabled`: auto (or true), always or false"
    )
    min_prompt_tokens: int = Field(2000, ge=1, description="shorter prompts run dense")
    catch_up: CatchUpWish = Field(AUTO, description="default of the request option `catch_up`: auto, off or always")
    select_timeout_s: float = Field(
        60.0, gt=0, description="a longer selection is cancelled, and the prompt runs dense"
    )
    admission_timeout_s: float = Field(
        30.0, gt=0, description="a request that waits longer for a target replica gets a 503"
    )
    deadline_s: float | None = Field(
        None,
        gt=0,
        description="time for a whole answer, after which the request is stopped everywhere (504); a request's header "
        "x-request-timeout-ms replaces it; null: no limit",
    )
    pool_down_after_s: float = Field(
        30.0,
        ge=0,
        description="how long requests wait for a pool without a replica; after it they get at once what still works: "
        "without the speculator dense, without the target a 503",
    )
    affinity: bool = Field(
        True, description="requests with the same prefix prefer the same replicas, whose caches hold it"
    )
    migration: bool = Field(
        True, description="continue the answers of a lost target replica on another one; false: they end with an error"
    )
    guard: bool = Field(True, description="under `auto`, run a prompt dense if its task needs the whole text")
    audit_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the greedy compressed answers under `auto` that are caught up, and so compared with the"
        " dense model, where no later turn is likely",
    )
    tls_cert: File | None = Field(
        None, description="certificate chain of the endpoint, a PEM file on the machines with a Serve proxy; null: HTTP"
    )
    tls_key: File | None = Field(None, description="private key of the certificate, a PEM file")
    api_keys_file: File | None = Field(
        None,
        description="names and hashes of the API keys that the endpoint takes (SECURITY.md), a file on the routers' "
        "machines; read again when it changes; null: only the keys of target.engine_options.api_key and VLLM_API_KEY",
    )
    control_tokens: Literal["text", "refuse", "allow"] = Field(
        "text",
        description="what becomes of control tokens of the target in the text of a chat's messages: plain text, an "
        "error, or control tokens",
    )
    max_body_bytes: int = Field(
        16 * 2**20, ge=1, description="a request with a longer body gets a 413 before it is parsed"
    )
    keep_alive_s: float = Field(
        10.0,
        ge=0,
        description="longest silence of an admitted stream, after which an SSE comment is sent: less than the read "
        "time-out of every proxy before the router; 0: no comments",
    )
    select_only: bool = Field(
        False,
        description="no target runs: the endpoint serves /v1/select with the speculator's tokenizer, and no answers; "
        "target.engine_options are the HTTP front's, and the section `target` has nothing else",
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together")
        return self
