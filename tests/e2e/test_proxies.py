"""A proxy in the environment gets no call of the deployment, nor of the commands that call it on this machine."""

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.conftest import ROOT, SKIM, skim_serve
from tests.reference.recording_proxy import proxy_variables, recording_proxy

pytestmark = pytest.mark.nightly


def test_no_call_on_this_machine_goes_through_the_proxy(tmp_path: Path) -> None:
    pool = {"engine": "mock", "cpus_per_replica": 0.1}
    settings = {
        "served_model_name": "skim-demo",
        "speculator": {"model": str(ROOT / "demo_models" / "speculator"), **pool},
        "target": {"model": str(ROOT / "demo_models" / "target"), **pool},
        "decode": {"method": "none"},
        "router": {"speculative_prefill": "always", "min_prompt_tokens": 64, "cpus": 0.1},
    }
    (tmp_path / "skim.yaml").write_text(yaml.safe_dump(settings))
    with recording_proxy() as (proxy, asked):
        environment = proxy_variables(proxy)
        served = skim_serve(tmp_path / "skim.yaml", tmp_path, **environment)
        try:
            served.await_ready()
            body = {
                "model": "skim-demo",
                "max_tokens": 4,
                "messages": [{"role": "user", "content": "A word. " * 400}],
            }
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, trust_env=False, timeout=60)
            assert (answer.status_code, answer.headers["x-skim-mode"]) == (200, "speculative")
            row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
            (tmp_path / "in.jsonl").write_text(json.dumps(row))
            (tmp_path / "chat.json").write_text(json.dumps(body))
            chat = ("--prompt", "chat.json", "--target", str(ROOT / "demo_models" / "target"))
            for words in (
                ["batch", "--input", "in.jsonl", "--output", "out.jsonl", "--endpoint", served.url],
                ["explain", "--request", answer.json()["id"], "--url", served.url, *chat, "--output", "page.html"],
            ):
                ran = subprocess.run(
                    [SKIM, *words], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True
                )
                assert ran.returncode == 0, ran.stderr
            assert json.loads((tmp_path / "out.jsonl").read_text())["response"]["status_code"] == 200
        finally:
            served.stop()
    # Ray asks at addresses of three clouds in which of them it runs.
    assert [line for line in asked if "169.254.169.254" not in line and "metadata.google.internal" not in line] == []
