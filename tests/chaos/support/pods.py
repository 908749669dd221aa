"""The pods of a RayService as processes of this machine: Ray's head, one worker node, and Redis.

They start as KubeRay starts them, with the environment and the hook of the manifests. Each proxy has a port of its own,
as each pod has an address of its own.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from cluster.serve.app import SERVE_SWITCHES
from cluster.serve.pod_draining import CALLBACK, DRAINING_FILE, DRAINING_SWITCHES
from demo_models.ports import free_port
from tests.chaos.support.own_port import PROXY_PORT, on_own_port

RAY, SKIM = (Path(sys.executable).with_name(name) for name in ("ray", "skim"))
HOST = "127.0.0.1"
LIMIT_S = 240


class Pods:
    """folder: for files of Ray and Redis; its path must be short. redis: whether the head keeps its state there."""

    def __init__(self, folder: Path, *, redis: bool) -> None:
        self.folder = folder
        self.gcs, self.port, self._head_proxy = free_port(), free_port(), free_port()
        self.address = f"{HOST}:{self.gcs}"
        self.url = f"http://{HOST}:{self.port}"
        self._redis_port = free_port() if redis else None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
        self.environment = {**token, "RAY_ADDRESS": self.address}
        if redis:
            self.start_redis()

    def start_redis(self) -> None:
        options = ["--appendonly", "yes", "--requirepass", "secret", "--dir", self.folder, "--bind", HOST]
        self._start("redis", [shutil.which("redis-server"), "--port", str(self._redis_port), *options], {})

    def start_head(self) -> None:
        """It has no CPU, as in the manifests. With Redis it takes up what the head before it has left."""
        options = ["--head", f"--port={self.gcs}", f"--temp-dir={self.folder}", "--num-cpus=0"]
        kept = {PROXY_PORT: str(self._head_proxy)}
        if self._redis_port:
            kept |= {"RAY_REDIS_ADDRESS": f"{HOST}:{self._redis_port}", "RAY_external_storage_namespace": "a-cluster"}
            options.append("--redis-password=secret")
        # `ray start` looks for processes of a cluster of this address: in a pod of its own it finds none.
        (self.folder / "ray_current_cluster").unlink(missing_ok=True)
        self._start_ray("head", [*options, "--include-dashboard=false"], kept)

    def start_worker(self, resources: str) -> None:
        """One node for all pools. resources: of the node, as JSON."""
        variables = {PROXY_PORT: str(self.port), "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
        options = [f"--address={self.address}", "--num-cpus=4", f"--resources={resources}"]
        self._start_ray("worker", options, variables)

    def deploy(self, config: Path) -> None:
        """`skim deploy`, and until the worker's proxy answers. AssertionError unless it succeeds."""
        found = subprocess.run(
            [SKIM, "deploy", config, "--address", self.address], env=self._variables({}), capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout + found.stderr
        self._until(self._answers, "worker")

    def kill(self, pod: str) -> None:
        """All processes of a pod at once."""
        with suppress(psutil.NoSuchProcess):
            for process in self.processes(pod):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._processes.pop(pod).wait(LIMIT_S)

    def processes(self, pod: str) -> list[psutil.Process]:
        first = psutil.Process(self._processes[pod].pid)
        return [*first.children(recursive=True), first]

    def run_hook(self, command: list[str]) -> None:
        """The preStop command of the worker."""
        variables = self._variables({"PATH": f"{RAY.parent}:{os.environ['PATH']}"})
        subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        for pod in list(self._processes):
            self.kill(pod)

    def log(self, pod: str) -> str:
        return (self.folder / f"{pod}.log").read_text()

    def _start_ray(self, pod: str, options: list[str], variables: Mapping[str, str]) -> None:
        # The nodes share this machine's ports.
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
        self._start(pod, [RAY, "start", "--block", f"--node-ip-address={HOST}", *ports, *options], variables)
        self._until(lambda: "Ray runtime started" in self.log(pod), pod)

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/-/healthz").status_code == 200
        return False

    def _until(self, condition: Callable[[], bool], pod: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert self._processes[pod].poll() is None, self.log(pod)
            assert time.monotonic() < deadline, self.log(pod)
            time.sleep(0.1)

    def _start(self, pod: str, command: list[Any], variables: Mapping[str, str]) -> None:
        with (self.folder / f"{pod}.log").open("w") as out:
            self._processes[pod] = subprocess.Popen(
                command, env=self._variables(variables), stdout=out, stderr=out, start_new_session=True
            )

    def _variables(self, more: Mapping[str, str]) -> dict[str, str]:
        pod = {**SERVE_SWITCHES, **DRAINING_SWITCHES, DRAINING_FILE: str(self.folder / "leaving")}
        own = {CALLBACK: f"{on_own_port.__module__}.{on_own_port.__name__}", "RAY_USAGE_STATS_ENABLED": "0"}
        own["RAY_raylet_start_wait_time_s"] = str(LIMIT_S)
        return {**os.environ, **self.environment, **pod, **own, **more}
