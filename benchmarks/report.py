"""docs/results.md from the committed JSON of benchmarks/results: `python -m benchmarks.report`, or `make results`.

Each JSON file may hold `command`, what produced it; `skim bench ... --json` writes it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"

_HEAD = """# Results

Made by `make results` from `benchmarks/results/*.json`. Ratios come from interleaved runs on one machine; absolute
numbers belong to that machine alone. Results that speak against Skim stay in.
"""


def report(results: Path = RESULTS) -> str:
    """The page's text. Files whose name begins with a section's key belong to it."""
    parts = [_HEAD]
    for key, title, section in _SECTIONS:
        files = sorted(results.glob(f"{key}*.json"), key=lambda file: file.stem)
        if files:
            parts.append(f"## {title}\n")
        parts += [section(json.loads(file.read_text())) for file in files]
    return "\n".join(parts)


def _decode(result: dict[str, Any]) -> str:
    settings = result["settings"]
    rows = [
        [
            name,
            f"{mode['tokens_per_second']:.0f}",
            f"{mode['ratio_to_plain']['median']:.2f} ({mode['ratio_to_plain']['lowest']:.2f} to "
            f"{mode['ratio_to_plain']['highest']:.2f})",
            f"{mode['ms_per_token']:.2f}",
            f"{mode['tokens_per_verify']:.2f}",
            _or_none(mode["ms_per_round"], "{:.1f}"),
            _or_none(mode["kv_bytes_per_session"], "{:,.0f}"),
            " ".join(f"{rate:.2f}" for rate in mode["acceptance_per_position"]),
        ]
        for name, mode in result["modes"].items()
    ]
    columns = ["mode", "tokens/s", "x plain (range)", "ms per token", "tokens per verify", "ms per drafting round"]
    columns += ["KV bytes per session", "accepted by position"]
    what = (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, {settings['prompts']} prompts of "
        f"{settings['prompt_tokens']} tokens per round, {settings['rounds']} rounds, {settings['batch']} at a time, "
        f"keep rate {settings['keep_rate']}, K = {settings['drafts']}, one core per pool, "
        + ("decoding on past the answers' end." if settings["ignore_eos"] else "whole answers.")
    )
    if all(mode["ms_per_round"] is None for mode in result["modes"].values()):
        what += " No drafting round was needed: the drafts that came with the selection covered the answers."
    return _block(what, columns, rows, result)


def _channel(result: dict[str, Any]) -> str:
    rows = [
        [
            str(row["batch"]),
            str(row["q_top"]),
            f"{row['median_ms']:.2f}",
            f"{row['p90_ms']:.2f}",
            f"{row['ratio_to_unary']:.2f}",
            f"{row['ratio_to_tcp']:.2f}",
        ]
        for row in result["rows"]
    ]
    columns = ["batch", "pairs of q", "median ms", "p90 ms", "x empty gRPC call", "x bare TCP"]
    what = f"{result['rounds']} exchanges per case on loopback, K = {result['max_drafts']}, no drafts computed."
    return _block(what, columns, rows, result)


def _block(what: str, columns: list[str], rows: list[list[str]], result: dict[str, Any]) -> str:
    lines = [what, "", _row(columns), _row(["---"] * len(columns)), *map(_row, rows), ""]
    machine = result["machine"]
    lines += [f"`{result['command']}`; {machine['usable_cores']} cores, {machine['machine']}, no GPU.", ""]
    return "\n".join(lines)


def _or_none(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_SECTIONS: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("decode", "Decoding: plain, remote drafts, vLLM's draft_model", _decode),
    ("channel", "The draft channel", _channel),
)

if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(report())
