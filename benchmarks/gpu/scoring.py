"""Time and memory of scoring one prompt, compared with one read of its keys at the copy bandwidth of the same run.

Queries and keys are random, in the layout of a paged KV cache: [blocks, KV heads, 16 tokens, key and value]. The
kernels take turns with the copy. `torch` is `speculator_service.scoring.importance`, called as the worker calls it.
`triton` is `speculator_service.scoring.triton_kernels`. `difference` is the largest difference between their tables.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.clock import copy_bandwidth, milliseconds, peak_bytes
from benchmarks.gpu.presets import MODELS
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from speculator_service.scoring.importance import AttentionFormula, add_layer, layer_scores, score_table

BLOCK = 16


@dataclass(frozen=True)
class GpuScoringSettings:
    """model: a name in presets.MODELS. tilings: additional tilings of the Triton kernels, as TILExROWSxWARPS."""

    device: str
    model: str
    lengths: tuple[int, ...]
    look_ahead: int = 8
    pool_kernel: int = 13
    rounds: int = 5
    tilings: tuple[str, ...] = ()


@dataclass
class Problem:
    """queries: [L, S, H, D]. memory: the caches [L, B, G, N, 2D]. blocks: the prompt's blocks in random order.

    soft_cap, sinks ([L, H]): as in `triton_kernels.fill_table`. visible: as in `triton_masses.weighted_masses`.
    """

    queries: torch.Tensor
    memory: torch.Tensor
    blocks: torch.Tensor
    prompt: int
    pool_kernel: int
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None
    visible: torch.Tensor | None = None

    @classmethod
    def make(cls, settings: GpuScoringSettings, prompt: int) -> "Problem":
        config = MODELS[settings.model]
        dtype = torch.bfloat16 if settings.device == "cuda" else torch.float32
        layers, size = config["num_hidden_layers"], config["head_dim"]
        count = -(-prompt // BLOCK)
        shapes = (
            (layers, settings.look_ahead + 1, config["num_attention_heads"], size),
            (layers, count, config["num_key_value_heads"], BLOCK, 2 * size),
        )
        queries, memory = (torch.randn(shape, dtype=dtype, device=settings.device) for shape in shapes)
        blocks = torch.randperm(count, device=settings.device).int()
        return cls(queries, memory, blocks, prompt, settings.pool_kernel)

    @property
    def size(self) -> int:
        return self.queries.shape[-1]

    @property
    def key_bytes(self) -> int:
        """Bytes of the prompt's keys, each counted once."""
        layers, _, heads, _, _ = self.memory.shape
        return layers * heads * self.prompt * self.size * self.memory.element_size()

    @property
    def caches(self) -> list[torch.Tensor]:
        return [layer[..., : self.size] for layer in self.memory]

    def table(self) -> torch.Tensor:
        layers, steps = self.queries.shape[:2]
        return score_table("max", layers=layers, steps=steps, prompt=self.prompt, device=self.queries.device)

    def keys(self, layer: int) -> torch.Tensor:
        """The prompt's keys of one layer, [G, M, D], gathered as in `keys.KeyReader`."""
        return self.caches[layer][self.blocks.long()].transpose(0, 1).flatten(1, 2)[:, : self.prompt]

    def formula(self, layer: int) -> AttentionFormula:
        return AttentionFormula(self.size**-0.5, self.soft_cap, None if self.sinks is None else self.sinks[layer])

    def reference(self) -> torch.Tensor:
        """The table of scores, computed by torch."""
        table = self.table()
        for layer, queries in enumerate(self.queries):
            scale, soft_cap, sinks = self.formula(layer)
            keys = self.keys(layer)
            scores = layer_scores(queries, keys, scale, self.pool_kernel, soft_cap=soft_cap, sinks=sinks)
            add_layer(table, layer, scores)
        return table

    def fused(self, tiling: Any) -> torch.Tensor:
        """The table of scores, computed by the Triton kernels."""
        from speculator_service.scoring.triton_kernels import fill_table

        table, scale = self.table(), self.size**-0.5
        fill_table(
            table, self.queries, self.caches, self.blocks, scale, self.pool_kernel, tiling,
            soft_cap=self.soft_cap, sinks=self.sinks,
        )  # fmt: skip
        return table


def run(settings: GpuScoringSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: one per length and kernel, with medians over the rounds."""
    began, rows = machine(), []
    megabytes = 2048 if settings.device == "cuda" else 64
    for index, prompt in enumerate(settings.lengths):
        progress(f"scoring {prompt} tokens", index / len(settings.lengths))
        rows += _length(Problem.make(settings, prompt), settings, megabytes)
    return {"machine": began, "engine": "torch", "settings": vars(settings), "rows": rows}


def _length(problem: Problem, settings: GpuScoringSettings, megabytes: int) -> list[dict[str, Any]]:
    work = _kernels(problem, settings)
    tables = {name: call() for name, call in work.items()}  # this also compiles the kernels
    peaks = {name: peak_bytes(call, settings.device) for name, call in work.items()}
    times: dict[str, list[float]] = {name: [] for name in work}
    copies = []
    repeat = 5 if settings.device == "cuda" else 1
    for _ in range(settings.rounds):
        copies.append(copy_bandwidth(settings.device, megabytes))
        for name, call in work.items():
            times[name].append(milliseconds(call, settings.device, repeat))
    copy = statistics.median(copies)
    return [
        {
            "prompt_tokens": problem.prompt,
            "kernel": name,
            "ms": statistics.median(times[name]),
            "lowest_ms": min(times[name]),
            "highest_ms": max(times[name]),
            "key_bytes": problem.key_bytes,
            "copy_bytes_per_second": copy,
            "share_of_copy": problem.key_bytes / (1e-3 * statistics.median(times[name])) / copy,
            "peak_bytes": peaks[name],
            "difference": float((tables[name] - tables["torch"]).abs().max()),
        }
        for name in work
    ]


def _kernels(problem: Problem, settings: GpuScoringSettings) -> dict[str, Callable[[], torch.Tensor]]:
    work: dict[str, Callable[[], torch.Tensor]] = {"torch": problem.reference}
    if settings.device == "cuda":
        from speculator_service.scoring.triton_kernels import TILING

        tilings = {"triton": TILING, **{f"triton {text}": _tiling(text) for text in settings.tilings}}
        work |= {name: partial(problem.fused, tiling) for name, tiling in tilings.items()}
    return work


def _tiling(text: str) -> Any:
    from skim_common.errors import SkimError
    from speculator_service.scoring.triton_kernels import TILING

    try:
        tile, rows, warps = map(int, text.split("x"))
    except ValueError:
        raise SkimError(f"tiling {text!r} does not have the form TILExROWSxWARPS, such as 128x64x4") from None
    return TILING._replace(tile=tile, rows=rows, warps=warps)


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    settings = result["settings"]
    return (
        f"Sizes of `{settings['model']}`, {settings['look_ahead']} look-ahead tokens, pooling kernel"
        f" {settings['pool_kernel']}, random queries and keys, {settings['rounds']} rounds. Share of copy: the bytes of"
        " the keys, each counted once, per second of scoring, divided by the bytes per second of a copy inside the"
        " device (read plus written) in the same run."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per length and kernel."""
    columns = ["tokens", "kernel", "ms", "share of copy", "copy GB/s", "peak MiB", "difference"]
    return columns, [
        [
            f"{row['prompt_tokens']:,}",
            row["kernel"],
            f"{row['ms']:.3f}",
            f"{row['share_of_copy']:.2f}",
            f"{row['copy_bytes_per_second'] / 1e9:,.0f}",
            "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f}",
            f"{row['difference']:.1e}",
        ]
        for row in result["rows"]
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: time of scoring by prompt length. Right: its share of the copy bandwidth."""
    rows: Sequence[dict[str, Any]] = result["rows"]
    with plots.figure(path, result, panels=2) as (left, right):
        for kernel in dict.fromkeys(row["kernel"] for row in rows):
            own = [row for row in rows if row["kernel"] == kernel]
            lengths = [row["prompt_tokens"] for row in own]
            left.plot(lengths, [row["ms"] for row in own], label=kernel)
            right.plot(lengths, [row["share_of_copy"] for row in own], label=kernel)
        for axis in (left, right):
            plots.prompt_axis(axis, sorted({row["prompt_tokens"] for row in rows}))
            axis.legend()
        left.set_yscale("log")
        left.set_title("scoring, ms")
        right.set_ylim(bottom=0)
        right.set_title("keys read once, as a share of the copy bandwidth")
