"""Long waits behind a proxy that cuts silent connections: nginx, mock engines and real clients."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from demo_models.ports import free_port
from tests.e2e.conftest import Served, serving_slow_mocks

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
READ_TIMEOUT_S = 3
MODEL = "skim-demo"
TEXT = "word " * 600
MESSAGES: list[Any] = [{"role": "user", "content": TEXT}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": TEXT, "max_tokens": 4},
    "/v1/responses": {"input": TEXT, "max_output_tokens": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
}


@contextmanager
def nginx_before(served: Served, folder: Path) -> Iterator[str]:
    """The URL of an nginx in front of the endpoint. It buffers answers, as nginx does unless it is told otherwise."""
    if NGINX is None:
        pytest.skip("nginx is not installed (Debian's package nginx-light)")
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n"
        "events {}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {served.url}; proxy_http_version 1.1;\n"
        f"proxy_read_timeout {READ_TIMEOUT_S}s; }} }} }}\n"
    )
    nginx = subprocess.Popen([NGINX, "-p", folder, "-c", config])
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            assert nginx.poll() is None, (folder / "nginx.log").read_text()
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        nginx.terminate()
        nginx.wait(timeout=20)


@pytest.fixture(scope="module")
def url(slow_mocks: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with nginx_before(slow_mocks, tmp_path_factory.mktemp("nginx")) as url:
        yield url


def streamed(url: str, path: str) -> tuple[httpx.Response, list[str]]:
    """The response and its lines."""
    body = {"model": MODEL, "stream": True, **BODIES[path]}
    with httpx.stream("POST", url + path, json=body, timeout=60) as response:
        return response, list(response.iter_lines())


@pytest.fixture(scope="module")
def answers(url: str) -> dict[str, tuple[httpx.Response, list[str]]]:
    """Of all endpoints at once."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(BODIES, pool.map(partial(streamed, url), BODIES), strict=True))


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_arrives_whole(url: str, answers: dict[str, tuple[httpx.Response, list[str]]], path: str) -> None:
    response, lines = answers[path]
    assert response.status_code == 200
    assert lines[0] == ": keep-alive" or path == "/v1/responses"  # this endpoint begins with two events
    assert lines.count(": keep-alive") > 2
    assert not [line for line in lines if line.startswith(":") and line != ": keep-alive"]
    first = next(json.loads(line[6:]) for line in lines if line.startswith("data: {"))
    request_id = first.get("id") or first.get("response", first.get("message"))["id"]
    report = httpx.get(f"{url}/v1/requests/{request_id}").raise_for_status().json()
    assert report["headers"]["x-skim-mode"] == "speculative"
    assert "prefill;dur=" in report["headers"]["server-timing"]
    assert report["headers"].items() >= {k: v for k, v in response.headers.items() if k.startswith("x-skim")}.items()


@pytest.mark.nightly
def test_openai_clients_read_it(url: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, stream=True)
        chunks = [chunk.choices[0] for chunk in chat]
        assert chunks[-1].finish_reason == "length"
        assert "".join(chunk.delta.content or "" for chunk in chunks)
        raw = client.completions.create(model=MODEL, prompt=TEXT, max_tokens=4, stream=True)
        assert [chunk.choices[0].finish_reason for chunk in raw][-1] == "length"
        answer = client.responses.create(model=MODEL, input=TEXT, max_output_tokens=4, stream=True)
        assert [event.type for event in answer][-1] in ("response.completed", "response.incomplete")


def test_anthropics_client_reads_it(url: str) -> None:
    with (
        Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=4) as stream,
    ):
        assert stream.get_final_text()
        assert stream.get_final_message().stop_reason == "max_tokens"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_shows_the_first_byte_before_the_first_token(url: str) -> None:
    body = json.dumps({"model": MODEL, "stream": True, **BODIES["/v1/chat/completions"]})
    command = [
        "curl",
        "-sSN",
        "--fail",
        "-H",
        "content-type: application/json",
        "-d",
        body,
        f"{url}/v1/chat/completions",
    ]
    told = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode()
    assert told.startswith(": keep-alive\n\n: keep-alive\n\n")
    assert told.endswith("data: [DONE]\n\n")


def test_an_answer_that_is_not_streamed_is_cut(url: str) -> None:
    """As the docs say: its JSON cannot begin earlier. So without keep-alive nginx cuts the connection."""
    path = "/v1/chat/completions"
    assert httpx.post(url + path, json={"model": MODEL, **BODIES[path]}, timeout=60).status_code == 504


@pytest.mark.nightly
def test_without_keep_alive_every_stream_is_cut(tmp_path: Path) -> None:
    """The control."""
    with serving_slow_mocks(tmp_path, keep_alive_s=0) as served, nginx_before(served, tmp_path) as url:
        assert {path: streamed(url, path)[0].status_code for path in BODIES} == dict.fromkeys(BODIES, 504)
