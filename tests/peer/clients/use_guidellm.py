import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from checks import MODEL, NOBODY, TOKENIZER, URL, run

REPORT = Path("guidellm.json")


def measured(name: str = MODEL, stream: bool = True) -> dict[str, Any]:
    """The requests of a run, by what became of them."""
    REPORT.unlink(missing_ok=True)
    options = {
        "backend": f"kind=openai_http,target={URL},model={name},stream={stream}",
        "profile": "kind=synchronous",
        "constraint": "kind=max_requests,count=3",
        "tokenizer": f"kind=huggingface_auto,model={TOKENIZER}",
        "data": "kind=synthetic_text,prompt_tokens=1500,output_tokens=12",
        "output": f"kind=json,path={REPORT}",
    }
    words = [Path(sys.executable).with_name("guidellm"), "run", "--disable-console"]
    words += [word for option, value in options.items() for word in (f"--{option}", value)]
    done = subprocess.run(words, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert REPORT.exists(), done.stdout + done.stderr
    return json.loads(REPORT.read_text())["benchmarks"][0]["requests"]


def check_answers(stream: bool) -> None:
    requests = measured(stream=stream)
    assert len(requests["successful"]) == 3, requests
    for request in requests["successful"]:
        assert request["output"]
        assert request["prompt_tokens"] > 1000
        assert request["output_tokens"] == 12


def chat() -> None:
    check_answers(stream=False)


def stream() -> None:
    check_answers(stream=True)


def error() -> None:
    requests = measured(NOBODY)
    assert not requests["successful"]
    assert "404" in str(requests["errored"][0]["info"]["error"]), requests["errored"][0]["info"]


run(chat, stream, error)
