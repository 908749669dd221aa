"""A split target: the KV blocks of a prompt move from the prefilling engine to the decoding engine.

vLLM's NixlConnector moves them. Its data about a request (`kv_transfer_params`) goes through the router as `kv_blocks`.
Both engines get the kept positions of the request. The decoding engine computes blocks that do not arrive, also if the
prefilling engine dies during the transfer.

Run on CPU (UCX over loopback and shared memory), V1 runner. Not run: a GPU, several nodes.
"""

import importlib.util
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm.platforms import current_platform

from kv_transfer.limits import KvRole, check_leg
from kv_transfer.messages import GenerateRequest
from skim_common.environment import with_environment
from skim_common.errors import SkimError

_CONNECTOR = "NixlConnector"
_NIXL_WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}

PROGRESS_THREAD = "skim_progress_thread"
"""Key in `kv_connector_extra_config`: whether the agent of a decoding half has NIXL's progress thread."""
_HOST, _PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"


def connector_options(role: KvRole | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The engine options of a half of a split target, with the `kv_transfer_config` of `options`; {} for a whole one.

    Raises SkimError if NIXL is missing.
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
    """Make the worker of a decoding half survive the death of the prefilling half. Call it before NIXL is initialised.

    The progress thread of NIXL's UCX backend closes the connection to a dead peer while another thread may be posting
    reads on it (nixlUcxEngine::sendXferRangeBatch), which ends in a segmentation fault. Without it, the worker advances
    the transfers in each step. The prefilling half keeps its thread: readers wait for it also while it runs no steps.
    The default on CPU alone; on a GPU, TCP would move only a few MB per step. A user's other connector, or
    `num_threads`, stays.
    """
    if transfer is None or transfer.kv_connector != _CONNECTOR or transfer.kv_role != _ROLES["decode"]:
        return
    chosen = transfer.kv_connector_extra_config
    if "num_threads" in chosen or chosen.get(PROGRESS_THREAD, not current_platform.is_cpu()):
        return
    worker: Any = importlib.import_module(_NIXL_WORKER)
    worker.nixl_agent_config = one_thread_agent_config


def one_thread_agent_config(*, num_threads: int = 0, **options: Any) -> Any:
    """A `nixl_agent_config` without a progress thread. A lock separates reads from vLLM's handshake thread."""
    from nixl._api import nixl_agent_config, nixl_thread_sync_t

    turns = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    return nixl_agent_config(enable_prog_thread=False, sync_mode=turns, **options)


@contextmanager
def side_channel(role: KvRole | None, host: str) -> Iterator[None]:
    """Engines that start in this context publish the addresses of their blocks at `host`, on a free port. It is held
    until ZeroMQ listens on it: both sides reuse addresses (socket(7), SO_REUSEADDR)."""
    if role is None:
        yield
        return
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        with with_environment({_HOST: host, _PORT: str(held.getsockname()[1])}):
            yield


def transfer_params(role: KvRole | None, request: GenerateRequest) -> dict[str, Any] | None:
    """vLLM's `kv_transfer_params` for this request; None if no blocks move. Raises as `limits.check_leg`."""
    leg = check_leg(request, role)
    if leg is None:
        return None
    return {"do_remote_decode": True} if leg == "prefill" else dict(request.kv_blocks or {})
