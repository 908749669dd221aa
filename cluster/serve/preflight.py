"""Checks of a deployment before it starts. Each error is one sentence."""

import os
import socket
import ssl
from collections.abc import Callable

import psutil

from cluster.config.pools import kv_cache_gib
from cluster.config.schema import DeploymentConfig
from cluster.serve.front_process import check_front
from cluster.serve.placement import on_own_cores
from router.options.settings import RouterConfig
from skim_common.errors import ModelError, SkimError
from skim_common.models.info import inspect_model, same_tokens
from skim_common.models.source import is_hub_name, is_within_reach, local_folder, pinned, weight_bytes
from speculator_service.model import check_speculator

PrintLine = Callable[[str], None]

GIB = 2**30
# Memory of one engine's processes without weights and KV cache, measured with the demo pair on CPU.
ENGINE_BASE_BYTES = int(1.2 * GIB)


def checked(config: DeploymentConfig, *, is_local: bool, print_line: PrintLine) -> DeploymentConfig:
    """The deployment with its models pinned and, if it starts on this machine, placed and with its weights at hand.

    is_local: whether Ray starts on this machine, for this deployment alone. print_line: called with what a user should
    know. Raises SkimError.
    """
    if is_local:
        for name, pool in config.pools.items():
            if pool.nodes_per_replica > 1:
                raise SkimError(
                    f"{name}.nodes_per_replica is {pool.nodes_per_replica}, and this machine is one node: start Ray on"
                    " all nodes, and give its address with --address"
                )
        check_port(config.router.host, config.router.port)
    check_certificate(config.router, may_be_elsewhere=config.spans_machines)
    config = with_pinned_models(config)
    check_front(config)
    if notice := check_models(config):
        print_line(notice)
    if is_local:
        import torch  # takes a second, which the other checks do not need

        fetch_weights(config, print_line)
        config = on_own_cores(config.placed(on_gpus=torch.cuda.is_available()))
        check_memory(config)
    return config


def check_certificate(router: RouterConfig, *, may_be_elsewhere: bool = False) -> None:
    """Raise SkimError if certificate and key of the endpoint are not a pair of readable files on this machine.

    may_be_elsewhere: they may be on other machines alone; then they are checked only if this one has them.
    """
    if router.tls_cert is None or (may_be_elsewhere and not os.path.exists(router.tls_cert)):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(router.tls_cert, router.tls_key)
    except ssl.SSLError as error:
        raise SkimError(
            f"router.tls_cert and router.tls_key are not a certificate and its key: {error.reason}"
        ) from None
    except OSError as error:
        raise SkimError(f"router.tls_cert or router.tls_key cannot be read: {error.strerror}") from None


def check_models(config: DeploymentConfig) -> str | None:
    """Raise ModelError unless both models are usable and fit together. Returns a notice if they have two tokenizers.

    Of hub names, only small files are downloaded. With `spans_machines`, a folder may be missing on this machine. The
    pools then check the models on their machines.
    """
    if config.spans_machines and absent_folders(config):
        return None
    infos = {
        name: inspect_model(
            pool.model,
            engine=pool.engine,
            max_model_len=pool.engine_options.get("max_model_len"),
            overrides=pool.engine_options.get("hf_overrides"),
        )
        for name, pool in config.pools.items()
    }
    check_speculator(config.speculator.model, infos["speculator"].max_model_len)
    if config.router.select_only or same_tokens(infos["speculator"], infos["target"]):
        return None
    from speculator_service.translation import translation_for  # it imports torch

    translation_for(config.speculator.model, config.target.model)
    return "the models have two tokenizers: the speculator reads the text in its own tokens (docs/models.md)"


def absent_folders(config: DeploymentConfig) -> list[str]:
    """The model folders that are not on this machine."""
    models = dict.fromkeys(pool.model for pool in config.pools.values())
    return [model for model in models if not is_within_reach(model)]


def with_pinned_models(config: DeploymentConfig, on_unknown: PrintLine | None = None) -> DeploymentConfig:
    """The same deployment with the commit of each hub name: all replicas then read what was checked.

    on_unknown: called with a line per model whose commit cannot be looked up here, and whose name stays; None raises
    ModelError.
    """
    names: dict[str, str] = {}
    for model in dict.fromkeys(pool.model for pool in config.pools.values()):
        try:
            names[model] = pinned(model)
        except ModelError as error:
            if on_unknown is None:
                raise
            names[model] = model
            on_unknown(f"Not pinned to a commit, so each replica takes the newest files when it starts: {error}")
    pools = {name: pool.model_copy(update={"model": names[pool.model]}) for name, pool in config.pools.items()}
    return config.with_pools(pools)


def fetch_weights(config: DeploymentConfig, print_line: PrintLine) -> None:
    """Download the weights of hub names to this machine."""
    for model in dict.fromkeys(pool.model for pool in config.pools.values() if pool.engine != "mock"):
        if is_hub_name(model):
            print_line(f"fetching {model}")
            local_folder(model, weights=True)


def check_port(host: str, port: int) -> None:
    """Raise SkimError if nothing can listen on host:port."""
    if ":" in host:
        raise SkimError(f"cannot listen on {host}: a Ray that Skim starts has IPv4 alone; choose an IPv4 --host")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SkimError(
                f"cannot listen on {host}:{port} ({error.strerror}): "
                "stop the program that uses it, or choose another --port"
            ) from None


def check_memory(config: DeploymentConfig) -> None:
    """Raise SkimError if the CPU pools do not fit into this machine's free memory."""
    needed, free = 0, psutil.virtual_memory().available
    for pool in config.pools.values():
        if pool.engine == "mock" or pool.gpus_per_replica:
            continue
        try:
            kv_cache = kv_cache_gib(pool.environment) * GIB
        except ValueError as error:
            raise SkimError(f"the environment variable {error}") from None
        weights = 2 * weight_bytes(local_folder(pool.model, weights=True))
        needed += pool.replicas * (weights + kv_cache + ENGINE_BASE_BYTES * pool.ranks)
    if needed > free:
        raise SkimError(
            f"this deployment needs about {needed / GIB:.1f} GiB of memory, but {free / GIB:.1f} GiB are free: "
            "lower VLLM_CPU_KVCACHE_SPACE or the replicas in the config, or use a larger machine"
        )
