"""A batch job by a real `ray job submit`, with its own pools, killed halfway and submitted again."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from demo_models.ports import free_port

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
TOKEN = "0123456789abcdef" * 4
ROWS = 200
UNUSABLE = {
    3: '{"custom_id": "row-3"',
    77: '{"custom_id": "row-77", "method": "GET", "url": "/v1/chat/completions", "body": {}}',
}
REFUSED = 120
TIMEOUT_S = 180


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for `ray job submit` to a Ray cluster of one node that requires a token."""
    ports = [free_port() for _ in range(5)]
    names = (
        "port",
        "dashboard-port",
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "ray-client-server-port",
    )
    env = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{ports[1]}",
        # Jobs run `python`: the cluster's own.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    env.pop("RAY_ADDRESS", None)
    log = tmp_path_factory.mktemp("ray") / "log"
    # A separate folder, so that other clusters on this machine do not interfere; a short name, for Ray's sockets.
    with log.open("w") as out, tempfile.TemporaryDirectory(prefix="skim-", ignore_cleanup_errors=True) as folder:
        env["RAY_TMPDIR"] = folder
        head = subprocess.Popen(
            [RAY, "start", "--head", "--block", "--num-cpus", "4", "--disable-usage-stats",
             "--resources", '{"speculator_pool": 1, "target_pool": 1}',
             *(f"--{name}={port}" for name, port in zip(names, ports, strict=True))],
            env=env, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
        try:
            await_true(lambda: answers(f"{env['RAY_API_SERVER_ADDRESS']}/api/jobs/"), log)
            yield env
        finally:
            for process in [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            head.wait(timeout=30)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    except httpx.TransportError:
        return False


def await_true(condition: Any, log: Path | None = None) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text() if log else "not in time"
        time.sleep(0.1)


@pytest.fixture
def batch(tmp_path: Path) -> list[str]:
    """The job's command line. Input, deployment file and (by SKIM_BATCH_DIR) output are in tmp_path."""
    rows = [json.dumps(row(i)) for i in range(ROWS)]
    for i, line in UNUSABLE.items():
        rows[i] = line
    (tmp_path / "in.jsonl").write_text("\n".join(rows) + "\n")
    deployment = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())
    deployment["router"].update(port=free_port(), min_prompt_tokens=8)
    for pool in ("speculator", "target"):
        deployment[pool].update(engine="mock", model=str(ROOT / "demo_models" / pool), engine_options={})
    deployment["target"]["engine_options"] = {"prefill_ms": 500.0}
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump(deployment))
    files = ["--input", str(tmp_path / "in.jsonl"), "--output", "out.jsonl"]
    return [*files, "--config", str(tmp_path / "deployment.yaml"), "--concurrency", "16"]


def row(i: int) -> dict[str, Any]:
    """Chat, completions and responses alternate; some rows have Skim's option, one row has a wrong option."""
    body: dict[str, Any] = {"model": "skim-demo", "speculative_prefill": "always" if i % 2 else False}
    if i == REFUSED:
        body["speculative_prefill"] = {"keep_rate": 7}
    text = f"This is row {i} of a batch. What is its number?"
    url, rest = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 2}),
        ("/v1/completions", {"prompt": text, "max_tokens": 2}),
        ("/v1/responses", {"input": text, "max_output_tokens": 2}),
    ][i % 3]
    return {"custom_id": f"row-{i}", "method": "POST", "url": url, "body": {**body, **rest}}


def submit(name: str, words: list[str], env: dict[str, str], folder: Path) -> None:
    runtime_env = json.dumps({"env_vars": {"SKIM_BATCH_DIR": str(folder)}})
    subprocess.run(
        [RAY, "job", "submit", "--no-wait", "--submission-id", name, "--working-dir", ".",
         "--runtime-env-json", runtime_env, "--", "python", "-m", "cluster.batch", *words],
        cwd=ROOT, env=env, check=True, capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip


def job(name: str, env: dict[str, str], what: str = "") -> dict[str, Any]:
    """The details of a job from Ray's job server; with `what` "/logs", its log."""
    url = f"{env['RAY_API_SERVER_ADDRESS']}/api/jobs/{name}{what}"
    return httpx.get(url, headers={"authorization": f"Bearer {TOKEN}"}).raise_for_status().json()


def kill_driver(folder: Path) -> None:
    """Send SIGKILL to the job's process, so that it cannot clean up."""
    found = [p for p in psutil.process_iter(["cmdline"]) if is_driver(p.info["cmdline"] or [], folder)]
    assert len(found) == 1
    found[0].kill()


def is_driver(words: list[str], folder: Path) -> bool:
    return words[1:3] == ["-m", "cluster.batch"] and str(folder / "in.jsonl") in words


def test_a_killed_job_goes_on(jobs: dict[str, str], batch: list[str], tmp_path: Path) -> None:
    output, parts = tmp_path / "out.jsonl", tmp_path / "out.jsonl.batch" / "parts"
    submit("first", batch, jobs, tmp_path)
    await_true(lambda: len(list(parts.glob("*.jsonl"))) >= 10 or ended("first", jobs))
    kill_driver(tmp_path)
    await_true(lambda: ended("first", jobs))
    assert job("first", jobs)["status"] == "FAILED"
    assert not output.exists()
    committed = {file: file.stat().st_mtime_ns for file in parts.glob("*.jsonl")}
    assert 10 <= len(committed) < 25

    submit("again", batch, jobs, tmp_path)
    rewritten = set()
    while not ended("again", jobs):
        rewritten |= {file for file, then in committed.items() if file.exists() and file.stat().st_mtime_ns != then}
        time.sleep(0.1)
    log = job("again", jobs, "/logs")["logs"]
    assert job("again", jobs)["status"] == "SUCCEEDED", log
    assert not rewritten
    before = re.search(r"(\d+) rows are already done", log)
    assert before is not None, log
    assert int(before[1]) >= 8 * len(committed) - 8
    assert f"{ROWS} rows, 3 of them errors" in log
    check_output(output)
    assert [file.name for file in (tmp_path / "out.jsonl.batch").iterdir()] == ["plan.json"]


def ended(name: str, env: dict[str, str]) -> bool:
    return job(name, env)["status"] in ("SUCCEEDED", "FAILED", "STOPPED")


def check_output(output: Path) -> None:
    """Each row once, in input order, answered or with its error."""
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [None if i == 3 else f"row-{i}" for i in range(ROWS)]
    assert len({row["id"] for row in rows}) == ROWS
    for i, row in enumerate(rows):
        if i in UNUSABLE:
            assert row["response"] is None
            assert row["error"]["message"].startswith(f"line {i + 1}: ")
            continue
        assert row["error"] is None
        status, body = row["response"]["status_code"], row["response"]["body"]
        if i == REFUSED:
            assert status == 400
            assert "speculative_prefill.keep_rate must be" in body["error"]["message"]
        else:
            assert status == 200, body
            assert body["object"] == ["chat.completion", "text_completion", "response"][i % 3]
            assert body["usage"]["output_tokens" if i % 3 == 2 else "completion_tokens"] == 2
