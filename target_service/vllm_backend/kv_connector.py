"""A split target: the KV blocks of a prompt move from the engine that prefilled it to the engine that decodes.

vLLM's NixlConnector moves them; what it tells of a request (`kv_transfer_params`) travels through the router as
`GenerateOutput.kv_blocks` and `GenerateRequest.kv_blocks`. Block hashes and positions need nothing more: both engines
know the kept positions of the request. Blocks that do not arrive are computed again by the decoding engine, also when
the engine that held them dies while they are read: see `read_from_one_thread`.

Run on CPU (UCX over loopback and shared memory), V1 runner. Not run: a GPU, several nodes.
"""

import importlib.util
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from kv_transfer.environment import with_environment
from kv_transfer.errors import SkimError
from kv_transfer.messages import GenerateRequest
from target_service.limits import KvRole, check_leg
from vllm_hooks.symbols import check_symbols

_CONNECTOR = "NixlConnector"
_NIXL_WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"
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
    ours = {"kv_connector": _CONNECTOR, "kv_role": _ROLES[role], "kv_load_failure_policy": "recompute"}
    return {"kv_transfer_config": {**ours, **(options.get("kv_transfer_config") or {})}}


def read_from_one_thread(transfer: Any) -> None:
    """Have a decoding half's worker, which builds its NIXL agent afterwards, survive the death of who holds its blocks.

    By default NIXL's UCX backend has a thread that closes the connection to a peer that died, while another thread may
    be posting reads on it (nixlUcxEngine::sendXferRangeBatch): that segfaults. Without that thread the worker itself
    moves the transfers on, in each step that asks whether they are done. The prefilling half keeps its thread: a reader
    waits for it also where it has no step to do.

    transfer: the vLLM config's `kv_transfer_config`. With a connector, or `num_threads`, of the user's choice nothing
    changes. Raises SkimError if this vLLM builds its agent otherwise.
    """
    if transfer is None or transfer.kv_connector != _CONNECTOR or transfer.kv_role != _ROLES["decode"]:
        return
    if "num_threads" in transfer.kv_connector_extra_config:
        return
    check_symbols([(_NIXL_WORKER, "nixl_agent_config", "enable_prog_thread")])
    worker: Any = importlib.import_module(_NIXL_WORKER)
    worker.nixl_agent_config = one_thread_agent_config


def one_thread_agent_config(*, num_threads: int = 0, **options: Any) -> Any:
    """A `nixl_agent_config` without threads of its own; vLLM's handshakes, in another thread, take turns with reads."""
    from nixl._api import nixl_agent_config, nixl_thread_sync_t

    turns = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    return nixl_agent_config(enable_prog_thread=False, sync_mode=turns, **options)


@contextmanager
def side_channel(role: KvRole | None, host: str) -> Iterator[None]:
    """Engines that start inside tell others at `host` where their blocks lie, on a free port of their own."""
    if role is None:
        yield
        return
    with socket.create_server((host, 0)) as probe:
        port = probe.getsockname()[1]
    with with_environment({_HOST: host, _PORT: str(port)}):
        yield


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
