"""A NIXL agent that reads blocks survives the death of the agent that holds them. vLLM's own setup may crash."""

import multiprocessing
import os
import random
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

from target_service.vllm_backend import kv_connector, worker
from target_service.vllm_backend.kv_connector import connector_options, one_thread_agent_config, side_channel

pytest.importorskip("nixl", reason="KV blocks cross by NIXL, of the extra `split`")

BLOCKS, BLOCK_BYTES = 1024, 16384
DEATHS = 6
ENOUGH = 30
"""Reads before the death, and failures after it."""
OPTIONS = {"num_threads": 4, "capture_telemetry": True}
"""What vLLM's NixlConnector gives to nixl_agent_config (vllm.distributed.kv_transfer.kv_connector.v1.nixl)."""
FORKED = multiprocessing.get_context("forkserver")


def hold(pipe: Connection) -> None:
    """Registers blocks, sends their address, and waits to be killed."""
    import torch
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("holder", nixl_agent_config(**OPTIONS))
    blocks = torch.ones(BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
    agent.register_memory(blocks)
    pipe.send((agent.get_agent_metadata(), blocks.data_ptr()))
    time.sleep(600)


def descriptors(start: int) -> list[tuple[int, int, int]]:
    return [(start + i * BLOCK_BYTES, BLOCK_BYTES, 0) for i in range(BLOCKS)]


def read(pipe: Connection, agent_config: Callable[..., Any]) -> None:
    """Reads the blocks at the given address until reads fail. Reports the first success and the final counts."""
    import torch
    from nixl._api import nixl_agent

    agent = nixl_agent("reader", agent_config(**OPTIONS))
    blocks = torch.zeros(BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
    agent.register_memory(blocks)
    metadata, start = pipe.recv()
    here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", descriptors(blocks.data_ptr()), "DRAM")
    there = agent.prep_xfer_dlist(agent.add_remote_agent(metadata), descriptors(start), "DRAM")
    counts = {"read": 0, "failed": 0}
    while counts["failed"] < ENOUGH:
        some = random.sample(range(BLOCKS), 256)
        try:
            handle = agent.make_prepped_xfer("READ", here, some, there, some)
            agent.transfer(handle)
            while (state := agent.check_xfer_state(handle)) == "PROC":
                time.sleep(0)
            agent.release_xfer_handle(handle)
            counts["read" if state == "DONE" else "failed"] += 1
        except Exception:
            counts["failed"] += 1
        if counts["read"] == ENOUGH and not counts["failed"]:
            pipe.send("reading")
    pipe.send(counts | {"right": bool(blocks.any())})


def after_a_death(agent_config: Callable[..., Any]) -> dict[str, int] | int | None:
    """Kill the holder during the reads. Returns the reader's counts, or its exit code if it died too."""
    to_holder, holder_end = FORKED.Pipe()
    to_reader, reader_end = FORKED.Pipe()
    holder = FORKED.Process(target=hold, args=(holder_end,), daemon=True)
    reader = FORKED.Process(target=read, args=(reader_end, agent_config), daemon=True)
    holder.start()
    reader.start()
    reader_end.close()
    try:
        to_reader.send(to_holder.recv())
        assert to_reader.recv() == "reading"
        time.sleep(0.01 * random.random())
        holder.kill()
        try:
            return to_reader.recv()
        except EOFError:
            reader.join()
            return reader.exitcode
    finally:
        for process in (holder, reader):
            process.kill()
            process.join()


@pytest.mark.nightly
def test_a_reader_outlives_the_holders_of_its_blocks() -> None:
    """With NIXL's own `nixl_agent_config` about every third reader dies by SIGSEGV."""
    counts = [after_a_death(one_thread_agent_config) for _ in range(DEATHS)]
    assert all(isinstance(c, dict) and c["right"] for c in counts), counts


@pytest.mark.parametrize(
    ("role", "changes", "on_cpu", "ours"),
    [
        ("decode", {}, True, True),
        ("decode", {}, False, False),
        ("decode", {"kv_connector_extra_config": {"skim_progress_thread": False}}, False, True),
        ("decode", {"kv_connector_extra_config": {"skim_progress_thread": True}}, True, False),
        ("prefill", {}, True, False),
        (None, {}, True, False),
        ("decode", {"kv_connector": "OffloadingConnector"}, True, False),
        ("decode", {"kv_connector_extra_config": {"num_threads": 8}}, True, False),
    ],
)
def test_a_decoding_worker_and_no_other_has_such_an_agent(
    monkeypatch: pytest.MonkeyPatch, role: Any, changes: dict[str, Any], on_cpu: bool, ours: bool
) -> None:
    found = []
    monkeypatch.setattr(kv_connector, "current_platform", SimpleNamespace(is_cpu=lambda: on_cpu))
    monkeypatch.setattr(base_worker, "nixl_agent_config", before := base_worker.nixl_agent_config)
    monkeypatch.setattr(worker.RestoringWorker, "init_device", lambda _: found.append(base_worker.nixl_agent_config))
    options = connector_options(role, {}).get("kv_transfer_config")
    transfer = SimpleNamespace(**{"kv_connector_extra_config": {}} | options | changes) if options else None
    ours_or_not = object.__new__(worker.TargetWorker)
    ours_or_not.vllm_config, ours_or_not.use_v2_model_runner = SimpleNamespace(kv_transfer_config=transfer), True
    ours_or_not.model_runner = SimpleNamespace()
    ours_or_not.init_device()
    assert found == [one_thread_agent_config if ours else before]


def test_the_port_of_a_half_is_held_until_its_engine_listens() -> None:
    """Two halves that start at once on one machine get two ports, and each engine can bind its own."""
    with side_channel("prefill", "127.0.0.1"):
        port = os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]
        with side_channel("decode", "127.0.0.1"):
            assert os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] != port
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", int(port)))
        with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
            listener.bind(f"tcp://127.0.0.1:{port}")
