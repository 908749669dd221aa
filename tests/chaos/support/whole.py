"""Whether a `skim serve` is whole: every part has its size, its processes run, and the endpoint answers.

Serve notices a dead replica only after seconds, and says until then that all is well. So the processes are looked at.
"""

import time
from typing import Any

import httpx
import psutil
from ray.serve.context import _get_global_client

from cluster.serve.app import APP_NAME
from cluster.serve.ray_cluster import call_with_timeout
from demo_models.documents import make_document
from tests.chaos.support.killed import Killed

BODY = {"model": "skim-demo", "messages": make_document(1500, 1).messages, "max_tokens": 2}

LIMIT_S = 10.0
ASKED = 4
"""Requests on new connections for each router replica, so that the proxy asks each of them."""


def await_whole(killed: Killed, limit_s: float) -> None:
    """Until the deployment is whole, and still is one second later. Raises AssertionError with what is missing."""
    deadline, looks = time.monotonic() + limit_s, 0
    while looks < 2:
        found = missing(killed)
        looks = 0 if found else looks + 1
        assert time.monotonic() < deadline, found
        time.sleep(1.0 if looks == 1 else 0.2)


def missing(killed: Killed) -> list[str]:
    """What is not as it should be; empty for a whole deployment."""
    found = [part for part in ("ServeController", "ProxyActor") if not _run(killed.find(part))]
    if found:
        return found
    try:
        details = call_with_timeout(_get_global_client().get_serve_details, LIMIT_S)
    except Exception as error:  # whatever Ray raises: it does not answer
        return [f"Serve: {type(error).__name__}"]
    found = [f"proxy {proxy['status']}" for proxy in details["proxies"].values() if proxy["status"] != "HEALTHY"]
    for name, part in details["applications"].get(APP_NAME, {"deployments": {}})["deployments"].items():
        running = [replica for replica in part["replicas"] if replica["state"] == "RUNNING" and _runs(replica["pid"])]
        if not len(running) == len(part["replicas"]) == part["target_num_replicas"]:
            found.append(f"{name}: {[replica['state'] for replica in part['replicas']]}")
    return found or _unanswered(killed.served.url, _routers(details))


def _routers(details: dict[str, Any]) -> int:
    return int(details["applications"][APP_NAME]["deployments"]["router"]["target_num_replicas"])


def _unanswered(url: str, routers: int) -> list[str]:
    try:
        for _ in range(ASKED * routers):
            if (status := httpx.get(f"{url}/v1/models", timeout=LIMIT_S).status_code) != 200:
                return [f"a router answers {status}"]
        answer = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=LIMIT_S)
    except httpx.HTTPError as error:
        return [f"the endpoint: {type(error).__name__}"]
    mode = answer.headers.get("x-skim-mode")
    return [] if mode == "speculative" else [f"the endpoint answers {answer.status_code}, {mode}"]


def _run(processes: list[psutil.Process]) -> bool:
    return bool(processes) and all(_runs(process.pid) for process in processes)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
