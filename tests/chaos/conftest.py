"""One `skim serve` with mock engines for all modules here.

They run in alphabetical order, `test_killed_ray` last: each takes the deployment as the one before it left it.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import ray
import yaml

from cluster.serve.app import APP_NAME
from demo_models.documents import make_document
from tests.e2e.conftest import ROOT, Served, skim_serve

# Slow enough that a request is surely under way when something ends; long prompts are slow on the speculator only. An
# answer of 200 tokens takes longer than a test waits for the end of a request whose client hung up.
SETTINGS: dict[str, Any] = {
    "served_model_name": "skim-demo",
    "speculator": {
        "model": str(ROOT / "demo_models" / "speculator"),
        "engine": "mock",
        "engine_options": {"ms_per_token": 0.25},
    },
    "target": {
        "model": str(ROOT / "demo_models" / "target"),
        "engine": "mock",
        "engine_options": {"prefill_ms": 1500.0, "decode_ms": 200.0},
        "replicas": 2,
    },
    "selection": {"selector": "speculator"},
    "router": {
        "speculative_prefill": "always",
        "min_prompt_tokens": 1024,
        "admission_timeout_s": 2.0,
        "select_timeout_s": 2.5,
        "pool_down_after_s": 5.0,
    },
}


BODY = {"model": "skim-demo", "messages": make_document(1500, 1).messages, "max_tokens": 2}


def target_folder(folder: Path) -> Path:
    """Where the target's model of a `skim serve` lies that was started in `folder`."""
    return folder / "target"


def settings_in(folder: Path) -> dict[str, Any]:
    """The deployment of a `skim serve` that was started in `folder`."""
    return {**SETTINGS, "target": {**SETTINGS["target"], "model": str(target_folder(folder))}}


@contextmanager
def serving(folder: Path, **variables: str) -> Iterator[Served]:
    """`skim serve` with mock engines, its files in `folder`, and these environment variables; all its processes end."""
    config = folder / "mock.yaml"
    shutil.copytree(ROOT / "demo_models" / "target", target_folder(folder))
    config.write_text(yaml.safe_dump(settings_in(folder)))
    served = skim_serve(config, folder, **variables)
    processes = [psutil.Process(served.process.pid)]
    try:
        served.await_ready()
        processes += processes[0].children(recursive=True)
        yield served
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        served.process.wait()


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("serve")) as served:
        yield served


@pytest.fixture(scope="module")
def on_its_ray(served: Served) -> Iterator[None]:
    """Connects this process to the Ray of `served`, to read the replicas' counters and to kill replicas."""
    served.join_ray()
    yield
    ray.shutdown()


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=120) as http:
        yield http


def replicas(pool: str) -> list[str]:
    """Names of the pool's live Serve replica actors."""
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    return [name for name in names if name.startswith(f"SERVE_REPLICA::{APP_NAME}#{pool}#")]


def await_replicas(pool: str, count: int) -> None:
    """Wait until the pool has `count` replicas, ready or not: Serve starts new replicas for dead ones."""
    deadline = time.monotonic() + 120
    while len(found := replicas(pool)) != count:
        assert time.monotonic() < deadline, f"{pool} has {found}, expected {count}"
        time.sleep(0.2)


def kill(name: str) -> None:
    ray.kill(ray.get_actor(name, namespace="serve"), no_restart=True)


def await_answers(pool: str, count: int, client: httpx.Client) -> None:
    """Until the pool has `count` replicas and the endpoint answers."""
    await_replicas(pool, count)
    deadline = time.monotonic() + 120
    while client.post("/v1/chat/completions", json=BODY).status_code != 200:
        assert time.monotonic() < deadline, f"no answer from {replicas(pool)}"
        time.sleep(1)
