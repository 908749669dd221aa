"""Skim with Ray, both pools on fractions of one GPU, and stock vLLM servers beside it on the same GPU.

All engines have the same options. They start at the same time, and each has the GPU alone while it answers.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.servers import MODEL, TELL_CACHED, dense_server
from cluster.config.schema import DeploymentConfig
from demo_models.ports import free_port

GPU_SHARES = {"target": 0.5, "speculator": 0.3}
"""Of the GPU, for Ray. Memory is set by `kv_gib`, so that engines can start at the same time."""
SKIM = "skim"


@dataclass(frozen=True)
class Systems:
    """target, speculator: folders. longest: tokens of the longest prompt with its answer. kv_gib: memory of the KV
    cache of each target; the speculator has a third. chunks: `max_num_batched_tokens` of the stock servers, a server
    for each; 0: vLLM's default. random: the folders have no weights. heads: a file with the speculator's head profile.
    decode: the method of Skim's target.
    """

    device: str
    target: str
    speculator: str
    longest: int
    kv_gib: float
    chunks: tuple[int, ...] = (0,)
    random: bool = False
    heads: str = ""
    decode: str = "remote"

    def engine_options(self, pool: str, chunk: int = 0) -> dict[str, Any]:
        """vLLM's options of a pool or a stock server. All others have vLLM's defaults."""
        options: dict[str, Any] = {"dtype": "bfloat16", "max_model_len": self.longest}
        if self.random:
            options["load_format"] = "dummy"
        if chunk:
            options["max_num_batched_tokens"] = chunk
        if self.device == "cpu":
            return {**options, "dtype": "float32", "enforce_eager": True}
        share = 1.0 if pool == "target" else 1 / 3
        return {**options, "kv_cache_memory_bytes": int(share * self.kv_gib * 2**30), "gpu_memory_utilization": 0.05}

    def config(self) -> DeploymentConfig:
        """Skim's deployment."""
        pools: dict[str, dict[str, Any]] = {}
        for pool, share in GPU_SHARES.items():
            place = {"gpus_per_replica": share} if self.device == "cuda" else {"cpus_per_replica": 0.5}
            # No probe runs beside the first measurements, and random weights would fail it.
            pools[pool] = {"model": getattr(self, pool), "start_probe": "off", **place}
            pools[pool]["engine_options"] = self.engine_options(pool)
        pools["target"]["engine_options"] |= TELL_CACHED
        if self.heads:
            pools["speculator"]["engine_options"]["head_profile"] = self.heads
        # A slow stream without comments between its events has all headers.
        router = {"port": free_port(), "keep_alive_s": 0}
        return DeploymentConfig.model_validate(
            {"served_model_name": MODEL, "router": router, "decode": {"method": self.decode}, **pools}
        )

    @contextmanager
    def started(self) -> Iterator[dict[str, str]]:
        """All systems; gives their base URLs: `skim`, and `stock` or `stock 2048` for each chunk.

        Raises SkimError if one does not start.
        """
        from cluster.serve.deployment import deployed

        with ExitStack() as stack, ThreadPoolExecutor() as starting:
            servers = {
                f"stock {chunk}" if chunk else "stock": starting.submit(
                    stack.enter_context,
                    dense_server(
                        Path(self.target),
                        MODEL,
                        {**self.engine_options("target", chunk), **TELL_CACHED, "disable_uvicorn_access_log": True},
                        {"VLLM_PLUGINS": ""},
                    ),
                )
                for chunk in self.chunks
            }
            skim = stack.enter_context(deployed(self.config(), progress=print))
            yield {name: server.result() for name, server in servers.items()} | {SKIM: skim}
