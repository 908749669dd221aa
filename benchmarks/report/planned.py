"""The plan against the measurements of this repository: `python -m benchmarks.report.planned`.

Two numbers of a CPU (operations and bytes per second) come from the dense rows of turns.json, and three of a GPU from
the engine-alone rows of gpu-ttft.json at one keep rate. All other rows are predicted; none that calibrates is counted.
Skim's own seconds come from the parts that turns.json and gpu-ttft.json name (queue, selection, transfer). Results in
bfloat16 on CPU are left out: they ran on other units of the CPU than those in float32. All results are older than the
second read of a prompt in windows.
"""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import AutoConfig

from benchmarks.gpu.presets import configs, preset
from benchmarks.harness.models import SPECULATOR, TARGET, Shape
from cluster.plan import GPUS, LINEAR, STEP_S, Machine, Model, PlannedEngine
from skim_common.models.costs import Read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CPU_CHUNK = 2048


class Row(NamedTuple):
    """One prediction. seconds: what was measured."""

    name: str
    seconds: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.seconds - 1


def results(name: str) -> dict[str, Any]:
    """The committed result of this name."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


@cache
def bench_model(shape: Shape) -> Model:
    return _model(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=1024,
    )


def _model(**settings: Any) -> Model:
    config = AutoConfig.for_model(**{"model_type": "llama", **settings})
    return Model.of("model", config.get_text_config())


def cpu_engine(model: Model, machine: Machine, **reading: Any) -> PlannedEngine:
    """reading: the fields `windows`, `window` and `again`."""
    return PlannedEngine(model, machine, weight_bits=32, kv_bits=32, chunk=CPU_CHUNK, **reading)


# --- CPU ---


@cache
def cpu() -> Machine:
    """The two usable cores of the machine of turns.json, by its dense rows and the parts of its speculative ones.

    Operations per second: of the first turns, which read 8,189 tokens and hardly wait for memory. Bytes per second: the
    ones that fit the later turns best, which read 18 to 143 tokens behind them.
    """
    rows = results("turns")["rows"]
    parts = [row["parts_ms"] for row in rows if row["parts_ms"].get("speculate")]
    skim = statistics.median(part["total"] - part["speculate"] - part["prefill"] for part in parts) / 1e3
    # The stock server's whole time, and the target's time in a dense turn of Skim.
    dense = [
        (_read(row), row["parts_ms"].get("prefill", row["ttft_ms"]["median"]) / 1e3)
        for row in rows
        if not row["speculator_computed"]
    ]
    model = bench_model(TARGET)
    operations = statistics.median(_operations(model, read) / seconds for read, seconds in dense if not read.cached)

    def deviation(size: float) -> float:
        engine = cpu_engine(model, Machine(operations, operations, size))
        return sum(math.log(engine.read_s(read) / seconds) ** 2 for read, seconds in dense if read.cached)

    return Machine(operations, operations, float(min(np.geomspace(1e9, 1e11, 400), key=deviation)), skim_s=skim)


def _operations(model: Model, read: Read) -> float:
    return model.read.linear_flops(read) + model.read.attention_flops(read)


def _read(row: dict[str, Any]) -> Read:
    return Read.of(row["kept_tokens"], row["kept_tokens"] - row["target_computed"])


def skim_s(target: PlannedEngine, speculator: PlannedEngine, kept: Read, read: Read) -> float:
    """First token of a speculative prompt: the plan's formula, with what the caches hold."""
    return target.machine.skim_s + speculator.select_s(read) + target.read_s(kept)


def ttft_rows() -> Iterator[Row]:
    """ttft.json: dense, the engines alone, and Skim. Its machine's operations per second come from the longest dense
    prompt.
    """
    rows = results("ttft")["rows"]
    dense = {row["prompt_tokens"]: row["dense_ms"] / 1e3 for row in rows}
    longest = max(dense)
    operations = _operations(bench_model(TARGET), Read(longest)) / dense.pop(longest)
    machine = replace(cpu(), linear=operations, attention=operations)
    target = cpu_engine(bench_model(TARGET), machine)
    window = int(results("ttft")["defaults"]["window_tokens"])
    speculator = cpu_engine(bench_model(SPECULATOR), machine, windows=True, window=window, again=False)
    for length, seconds in dense.items():
        yield Row(f"ttft: dense, {length} tokens", seconds, target.read_s(Read(length)))
    for row in rows:
        length, kept = row["prompt_tokens"], Read.of(row["kept_tokens"])
        if not row["parts"]["skim"].get("speculate"):
            continue
        name = f"{length} tokens, keep {row['keep_rate']}"
        windows = -(-length // window) if speculator.windows else 1
        alone = speculator.read_s(Read(length // windows), windows) + target.read_s(kept)
        yield Row(f"ttft: engines alone, {name}", row["limit_ms"] / 1e3, alone)
        yield Row(f"ttft: Skim, {name}", row["skim_ms"] / 1e3, skim_s(target, speculator, kept, Read(length)))


def turns_rows() -> Iterator[Row]:
    """turns.json: the speculative turns."""
    target, speculator = (cpu_engine(bench_model(shape), cpu()) for shape in (TARGET, SPECULATOR))
    for row in results("turns")["rows"]:
        if computed := row["speculator_computed"]:
            read = Read.of(row["prompt_tokens"], row["prompt_tokens"] - computed)
            predicted = skim_s(target, speculator, _read(row), read)
            yield Row(f"turns: {row['mode']}, turn {row['turn']}", row["ttft_ms"]["median"] / 1e3, predicted)


# --- GPU ---


@cache
def gpu() -> Machine:
    """The H200 of gpu-ttft.json: least squares over the dense rows, and the engines alone at the lowest keep rate."""
    target, speculator = _gpu_models()
    work: list[tuple[list[float], float]] = []
    for row in _gpu_rows():
        if row["keep_rate"] == 0.1:
            length, kept = Read(row["prompt_tokens"]), Read(round(row["kept_tokens"]))
            work.append((_work([(target, length)]), row["dense_ms"] / 1e3))
            work.append((_work([(speculator, length), (target, kept)]), row["limit_ms"] / 1e3))
    seconds = np.array([measured - steps for (*_, steps), measured in work])
    units = np.array([amounts for (*amounts, _), _ in work]) / seconds[:, None]
    # In units of about one second, so that the equations are well conditioned.
    linear, attention, token = np.linalg.lstsq(units, np.ones(len(seconds)), rcond=None)[0]
    return replace(
        GPUS["h200"],
        linear=1e15 / float(linear),
        attention=1e15 / float(attention),
        token_s=float(token) * 1e-5,
    )


def _work(reads: Sequence[tuple[Model, Read]]) -> list[float]:
    """1e15 operations of the matrix products and of the attention, 1e5 tokens, and the seconds of the steps."""
    tokens = sum(read.tokens for _, read in reads)
    linear = sum(model.read.linear_flops(read) for model, read in reads)
    attention = sum(model.read.attention_flops(read) for model, read in reads)
    steps = sum(-(-read.tokens // 8192) for _, read in reads)
    return [linear / 1e15, attention / 1e15, tokens / 1e5, steps * STEP_S]


def _gpu_models() -> tuple[Model, Model]:
    target, speculator = configs(preset("8b"))
    return _model(**target), _model(**speculator)


def _gpu_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results("gpu-ttft")["rows"]
    return rows


def gpu_rows() -> Iterator[Row]:
    """gpu-ttft.json: the engines alone at the other keep rate, and Skim at both."""
    target, speculator = (PlannedEngine(model, gpu()) for model in _gpu_models())
    for row in _gpu_rows():
        length, kept = Read(row["prompt_tokens"]), Read(round(row["kept_tokens"]))
        name = f"{length.tokens} tokens, keep {row['keep_rate']}"
        if row["keep_rate"] != 0.1:
            alone = speculator.read_s(length) + target.read_s(kept)
            yield Row(f"gpu-ttft: engines alone, {name}", row["limit_ms"] / 1e3, alone)
        yield Row(f"gpu-ttft: Skim, {name}", row["skim_ms"] / 1e3, skim_s(target, speculator, kept, length))


def checked() -> dict[str, list[Row]]:
    """All predictions by the kind of result."""
    found = {"ttft": ttft_rows(), "turns": turns_rows(), "gpu-ttft": gpu_rows()}
    return {name: list(rows) for name, rows in found.items()}


def summary(rows: Sequence[Row]) -> str:
    """The number of predictions, their median error, and the worst one."""
    worst = max(rows, key=lambda row: abs(math.log(row.predicted / row.seconds)))
    median = statistics.median(abs(row.error) for row in rows)
    return f"{len(rows)} predictions, median error {median:.1%}, worst {worst.error:+.0%} ({worst.name})"


def main() -> None:
    by_kind = checked()
    for rows in by_kind.values():
        for row in rows:
            print(f"{row.name:55} {1e3 * row.seconds:9.1f} ms {1e3 * row.predicted:9.1f} ms {row.error:+7.1%}")
    share = LINEAR * gpu().linear / GPUS["h200"].linear
    print(f"\nCPU: {cpu()}\nH200: {gpu()}, {share:.3f} of the peak (the plan: {LINEAR})")
    for kind, rows in by_kind.items():
        print(f"{kind}: {summary(rows)}")
    print(f"all: {summary([row for rows in by_kind.values() for row in rows])}")


if __name__ == "__main__":
    main()
