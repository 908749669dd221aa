"""docs/results.md, its plots and those of the README from benchmarks/results/*.json: `python -m benchmarks.report`.

A section is a module with `describe(result)`, `table(result)` and `plot(result, path)`; `skim bench` shows the same
table in the terminal. Each JSON file holds `command`, what produced it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
PLOTS = "plots"
"""Folder of the plots, beside the page."""
README = ROOT / "README.md"
README_PLOTS = ("ttft", "eval-needles-4096", "decode")
"""Results for the README: it shows the plots of the first two of them that are there."""
README_MARKS = ("<!-- plots of make results -->\n", "<!-- end of plots -->\n")
"""What lies between them in the README is made here."""

_HEAD = """# Results

Made by `make results` from `benchmarks/results/*.json`. Ratios come from interleaved runs on one machine; absolute
numbers belong to that machine alone. Results that speak against Skim stay in.
"""


@dataclass(frozen=True)
class Section:
    """Shows the result files `KEY.json` and `KEY-*.json` under one title. module: dotted name, imported when needed."""

    key: str
    title: str
    module: str


SECTIONS = (
    Section("ttft", "Time to first token", "benchmarks.ttft"),
    Section("goodput", "Goodput: requests per second that meet a time to first token", "benchmarks.goodput"),
    Section("decode", "Decoding: plain, remote drafts, vLLM's draft_model", "benchmarks.decode"),
    Section("overhead", "What the router, Ray and the wire add", "benchmarks.overhead"),
    Section("scoring", "Scoring", "benchmarks.scoring"),
    Section("channel", "The draft channel", "benchmarks.channel"),
    Section("scale", "Pools that follow a step of the load", "benchmarks.scale"),
    Section("eval", "Quality against keep rate", "evals.results"),
    Section("gpu-ttft", "On a GPU: time to the first token", "benchmarks.gpu.ttft"),
    Section("gpu-decode", "On a GPU: decoding", "benchmarks.gpu.decode"),
    Section("gpu-scoring", "On a GPU: scoring", "benchmarks.gpu.scoring"),
)
"""In the order of the page."""

_NO_GPU = """## On a GPU

Not run yet: the scripts for real model sizes (`python -m benchmarks.gpu`, see `benchmarks/gpu/README.md`) are ready and
have been tried on CPU at toy size only.
"""


def report(results: Path = RESULTS) -> str:
    """The page's text."""
    parts = [_HEAD]
    for section in SECTIONS:
        files = _files(section, results)
        if files:
            parts.append(f"## {section.title}\n")
        parts += [_block(section, file) for file in files]
    if not list(results.glob("gpu-*.json")):
        parts.append(_NO_GPU)
    return "\n".join(parts)


def readme(text: str, results: Path = RESULTS) -> str:
    """The README's `text` with the plots that it is to show. Raises ValueError without its marks."""
    shown = {file.stem: f"![{section.title}](docs/{PLOTS}/{file.stem}.png)\n" for section, file in figures(results)}
    chosen = [shown[stem] for stem in README_PLOTS if stem in shown][:2]
    begin, end = README_MARKS
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return before + begin + "\n" + "\n".join(chosen) + "\n" + end + after


def draw(folder: Path, results: Path = RESULTS) -> None:
    """Draw each result into `folder`, which is made if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for section, file in figures(results):
        import_module(section.module).plot(json.loads(file.read_text()), folder / f"{file.stem}.png")


def figures(results: Path = RESULTS) -> Iterator[tuple[Section, Path]]:
    """Each result file with its section, in the order of the page."""
    return ((section, file) for section in SECTIONS for file in _files(section, results))


def _files(section: Section, results: Path) -> list[Path]:
    named = [*results.glob(f"{section.key}.json"), *results.glob(f"{section.key}-*.json")]
    return sorted(named, key=lambda file: file.stem)


def _block(section: Section, file: Path) -> str:
    """What was measured, the table, the plot, and the command."""
    result, module = json.loads(file.read_text()), import_module(section.module)
    columns, rows = module.table(result)
    lines = [module.describe(result), "", _row(columns), _row(["---"] * len(columns)), *map(_row, rows), ""]
    lines += [f"![{section.title}]({PLOTS}/{file.stem}.png)", ""]
    lines += [f"`{result['command']}`; {in_words(result['machine'])}.", ""]
    return "\n".join(lines)


def _row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    draw(PAGE.parent / PLOTS)
    PAGE.write_text(report())
    README.write_text(readme(README.read_text()))
