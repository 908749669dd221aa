"""`skim demo`, which new users try first."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from demo_models.demo import ask_twice
from demo_models.documents import make_document
from tests.reference.recording_proxy import proxy_variables, recording_proxy


def check(result: dict[str, Any], shown: str) -> None:
    assert result["prompt_tokens"] >= 3500
    assert result["keep_rate"] == result["kept_tokens"] / result["prompt_tokens"] <= 0.3
    for mode in ("dense", "speculative"):
        assert result[mode]["answer"].strip(". ") == result["expected"]
        assert result[mode]["ttft_ms"] > 0
    assert {"speculate", "select", "transfer", "prefill"} <= result["speculative"]["parts_ms"].keys()
    for text in (result["question"], result["expected"], "First token", "kept tokens are highlighted"):
        assert text in shown


def test_the_question_of_the_demo_is_answered_right_from_a_fraction_of_the_prompt(client: httpx.Client) -> None:
    """On the running pair."""
    shown = StringIO()
    check(ask_twice(client, "skim-demo", make_document(4000, 7), Console(file=shown, width=120)), shown.getvalue())


@pytest.mark.nightly
def test_the_command_starts_the_pair_and_asks_it(tmp_path: Path) -> None:
    out = tmp_path / "demo.json"
    command = [Path(sys.executable).with_name("skim"), "demo", "--json", out]
    with recording_proxy() as (proxy, asked):
        environment = {**os.environ, **proxy_variables(proxy)}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in asked if "127.0.0.1" in line or "localhost" in line] == []
    check(json.loads(out.read_text()), done.stdout)
    assert "Traceback" not in done.stderr
