"""A split target: the KV blocks of a prompt move from the engine that prefilled it to the engine that decodes.

vLLM's NixlConnector moves them; what it tells of a request (`kv_transfer_params`) travels through the router as
`GenerateOutput.kv_blocks` and `GenerateRequest.kv_blocks`. Block hashes and positions need nothing more: both engines
know the kept positions of the request. Blocks that do not arrive are computed again by the decoding engine.

Run on CPU (UCX over loopback and shared memory), V1 runner. Not run: a GPU, several nodes.
"""

import importlib.util
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from kv_transfer.errors import SkimError
from kv_transfer.messages import GenerateRequest
from target_service.limits import KvRole, check_leg

_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_HOST, _PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"


def connector_options(role: KvRole | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The engine options of a half of a split target; none for a whole one. Raises SkimError if NIXL is missing.

    options: the engine's other options, whose `kv_transfer_config` adds to ours.
    """
    if role is None:
        return {}
    if role not in _ROLES:
        raise SkimError(f"kv_role must be prefill or decode, not {role!r}")
    if importlib.util.find_spec("nixl") is None:
        raise SkimError("a split target needs NIXL to move KV blocks: pip install 'skim-serve[split]'")
    ours = {"kv_connector": "NixlConnector", "kv_role": _ROLES[role], "kv_load_failure_policy": "recompute"}
    return {"kv_transfer_config": {**ours, **(options.get("kv_transfer_config") or {})}}


@contextmanager
def side_channel(role: KvRole | None, host: str) -> Iterator[None]:
    """Engines that start inside tell others at `host` where their blocks lie, on a free port of their own."""
    if role is None:
        yield
        return
    before = {name: os.environ.get(name) for name in (_HOST, _PORT)}
    with socket.create_server((host, 0)) as probe:
        port = probe.getsockname()[1]
    os.environ |= {_HOST: host, _PORT: str(port)}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def transfer_params(role: KvRole | None, request: GenerateRequest) -> dict[str, Any] | None:
    """vLLM's `kv_transfer_params` of this request; None where nothing is to move. Raises as `limits.check_leg`."""
    leg = check_leg(request, role)
    if leg is None:
        return None
    return {"do_remote_decode": True} if leg == "prefill" else dict(request.kv_blocks or {})


class TransferCounts(StatLoggerBase):
    """transfers of KV blocks that arrived here, their bytes, and how many failed."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.transfers = self.transferred_bytes = self.failed_transfers = 0

    def record(self, scheduler_stats: Any, *args: Any, **kwargs: Any) -> None:
        stats = getattr(scheduler_stats, "kv_connector_stats", None)
        if stats is None:
            return
        data = stats.data if hasattr(stats, "data") else stats
        self.transfers += len(data.get("bytes_transferred", []))
        self.transferred_bytes += int(sum(data.get("bytes_transferred", [])))
        self.failed_transfers += len(data.get("num_failed_transfers", []))

    def counts(self) -> dict[str, int]:
        """The counts by name, as they are now."""
        return dict(vars(self))

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
