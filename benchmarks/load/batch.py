"""A batch of requests: Skim's batch job and `vllm run-batch`, on one file of rows.

The rows are questions about long documents, several for each document, in an order that follows from the seed. Every
run is one command in a process of its own, with its own engines, so nothing is cached before. The modes take turns, and
no two have their engines at the same time. The engines have the same options and the same cores. The answers are
compared with the known ones.

*Start* is the time until the engines are ready and the first row is accepted; *rows* is the time from there until the
output file is complete.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.conversations import Question, Style, conversation
from benchmarks.harness.servers import (
    MODEL,
    TELL_CACHED,
    engine_environment,
    engine_options,
    option_words,
    skim_config,
    stock_environment,
)
from benchmarks.load.batch_results import Ran, answer_of, describe, plot, table, totals_of
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from skim_common.errors import SkimError
from skim_common.models.source import local_folder, public_name

__all__ = ["describe", "plot", "run", "table"]

BASELINE = "run-batch"
MODES = {
    BASELINE: "`vllm run-batch`, a stock vLLM with its prefix cache",
    "run-batch sorted": "the same, with the questions about a document one after the other",
    "auto": "Skim's batch job; Skim decides for each row whether it runs speculative",
    "auto sorted": "the same, with the questions about a document one after the other",
    "speculative": "Skim's batch job; every row runs speculative",
    "dense": "Skim's batch job; every row runs dense",
}
"""Each mode and what it is. The first is always measured."""
_PREFILL: dict[str, bool | str] = {"auto": "auto", "speculative": "always", "dense": False}

_URL = "/v1/chat/completions"
# Tokens of a question, its answer and the template around them, at most, with any tokenizer.
_ROW_TOKENS = 160
# The line of each command when its engines are ready and it begins with the rows.
_ACCEPTS = {"run-batch": "Reading batch from", "skim": "Sending "}


@dataclass(frozen=True)
class BatchSettings:
    """document_tokens: length of a prompt in the demo tokenizer. held: documents that fit into each KV cache.

    concurrency: requests that Skim's job sends at a time; `run-batch` submits all rows at once.
    """

    target: str
    speculator: str
    documents: int = 8
    questions: int = 6
    document_tokens: int = 2048
    answer_tokens: int = 16
    rounds: int = 2
    keep_rate: float = 0.2
    held: int = 10
    concurrency: int = 32
    modes: tuple[str, ...] = tuple(MODES)
    style: Style = "plain"
    dtype: str = "float32"
    seed: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer; other tokenizers need up to a quarter more than the demo's."""
        margin = 1 if self.style == "plain" else 1.25
        return round(self.document_tokens * margin) + _ROW_TOKENS + self.answer_tokens


Keep = Callable[[dict[str, Any]], None]
"""Gets the result of the rounds that are complete."""


def run(settings: BatchSettings, progress: Progress = silent, keep: Keep = lambda result: None) -> dict[str, Any]:
    """Measure. `runs`: one entry per mode and round; `totals`: see `batch_results.totals_of`. Raises SkimError.

    keep: is called after each round, so that a long run that is cut off loses only its last one.
    """
    began = machine()
    target = Path(local_folder(settings.target, weights=True))
    modes = list(dict.fromkeys([BASELINE, *settings.modes]))
    result: dict[str, Any] = {}
    runs: list[Ran] = []
    for number in range(1, settings.rounds + 1):
        for place, mode in enumerate(modes):
            progress(f"round {number}: {mode}", (number - 1 + place / len(modes)) / settings.rounds)
            with tempfile.TemporaryDirectory() as folder:
                runs.append(_ran(settings, target, mode, number, Path(folder)))
        result = {"machine": began, **_conditions(settings, modes)}
        result |= {"runs": [asdict(one) for one in runs], "totals": totals_of(runs, BASELINE)}
        keep(result)
    return result


def _conditions(settings: BatchSettings, modes: Sequence[str]) -> dict[str, Any]:
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {
        "settings": asdict(settings) | names,
        "modes": {mode: MODES[mode] for mode in modes},
        "engine_options": engine_options(settings.longest, _held(settings), dtype=settings.dtype),
        "environment": engine_environment(),
    }


def rows(settings: BatchSettings, *, in_order: bool = False) -> dict[str, tuple[dict[str, Any], Question]]:
    """The rows of the input and their questions, by custom_id. in_order: not shuffled."""
    made = {}
    for document in range(settings.documents):
        chat = conversation(settings.document_tokens, settings.questions, settings.seed + document, settings.style)
        for number, question in enumerate(chat.questions):
            message = {"role": "user", "content": f"{chat.document}\n{question.text}"}
            body = {"model": MODEL, "messages": [message], "max_tokens": settings.answer_tokens, "temperature": 0}
            name = f"{document}-{number}"
            made[name] = ({"custom_id": name, "method": "POST", "url": _URL, "body": body}, question)
    names = list(made)
    if not in_order:
        random.Random(settings.seed).shuffle(names)
    return {name: made[name] for name in names}


def _held(settings: BatchSettings) -> int:
    return settings.held * settings.longest


def _ran(settings: BatchSettings, target: Path, mode: str, number: int, folder: Path) -> Ran:
    """One command on the rows. folder: empty, for its files."""
    system, _, order = mode.partition(" ")
    asked = rows(settings, in_order=order == "sorted")
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row, _ in asked.values()), encoding="utf-8")
    files = ["--input", str(folder / "in.jsonl"), "--output", str(folder / "out.jsonl")]
    if system == "run-batch":
        files[::2] = ["--input-file", "--output-file"]
        words, accepts = _run_batch(settings, target), _ACCEPTS["run-batch"]
        # The line that tells when it accepts rows is an INFO line, which `skim` switches off.
        environment = {**stock_environment(), "VLLM_LOGGING_LEVEL": "INFO"}
    else:
        (folder / "deployment.yaml").write_text(
            json.dumps(deployment(settings, target, _PREFILL[system])), encoding="utf-8"
        )
        words = ["-m", "cluster.batch", "--config", str(folder / "deployment.yaml")]
        words += ["--concurrency", str(settings.concurrency)]
        environment, accepts = {}, _ACCEPTS["skim"]
    began, accepted = execute([sys.executable, *words, *files], environment, accepts)
    try:
        output = (folder / "out.jsonl").read_text(encoding="utf-8")
        ended = (folder / "out.jsonl").stat().st_mtime
    except FileNotFoundError:
        raise SkimError(f"{mode} wrote no output") from None
    answers = [answer_of(json.loads(line), asked) for line in output.splitlines()]
    return Ran(mode, number, accepted - began, ended - accepted, answers)


def _run_batch(settings: BatchSettings, target: Path) -> list[str]:
    options = {**engine_options(settings.longest, _held(settings), dtype=settings.dtype), **TELL_CACHED}
    words = ["-m", "vllm.entrypoints.openai.run_batch", "--model", str(target), "--served-model-name", MODEL]
    return [*words, *option_words(options)]


def deployment(settings: BatchSettings, target: Path, prefill: bool | str) -> dict[str, Any]:
    """Settings of Skim's deployment. prefill: `router.speculative_prefill`."""
    speculator = Path(local_folder(settings.speculator, weights=True))
    config = skim_config(target, speculator, settings.longest, _held(settings), dtype=settings.dtype)
    made = config.model_dump(mode="json")
    made["router"]["speculative_prefill"] = prefill
    made["selection"]["keep_rate"] = settings.keep_rate
    return made


def execute(words: Sequence[str], environment: Mapping[str, str], accepts: str) -> tuple[float, float]:
    """Run the command to its end. When it began, and when it printed a line with `accepts`: seconds since the epoch,
    as the times of files. Raises SkimError if it fails or prints no such line.
    """
    began, accepted, last, error = time.time(), None, "it printed nothing", ""
    # In its own process group, so that the engine's processes can be ended with it.
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if accepted is None and accepts in line:
                accepted = time.time()
            last = line.strip() or last
            error = error or last * ("Error" in line)
        code = process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code or accepted is None:
        raise SkimError(f"{' '.join(words[1:3])} failed: {error or last:.300}")
    return began, accepted
