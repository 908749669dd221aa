"""What the README says of quality: a table of natural questions, then of RULER, and which tasks lose."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evals.questions import kept
from evals.questions import results as answers
from evals.questions.ways import BM25, DEFAULT
from evals.results import published
from evals.selection.chunk_recall import LEXICAL

KEEP = 0.2
MOST_NAMED = 3
"""Tasks that the sentence on losses names, at most."""
BENCHMARK = "ruler"
PROMPTS = 2
"""A result of published benchmarks with fewer prompts of a task says nothing of its losses."""


def table(results: Path) -> str:
    """The rows of both kinds. Those of RULER begin when its result is there; other files must be there."""
    rows = [["what", "n", "dense", "Skim", "BM25", "kept"], ["---"] * 6, *_people(results), *_benchmark(results)]
    return "\n".join("|".join(row) for row in rows)


def heading(results: Path) -> str:
    """The line above the table, with the length of the longest prompt of a question."""
    longest = max(sample["length"] for sample in _read(results, "answers-free")["samples"])
    return f"[Questions of people](docs/results.md), up to {longest:,} tokens:"


def losses(results: Path) -> str:
    """The tasks in which Skim without an option loses; empty as long as those are hardly measured."""
    if (results / "published.json").exists() and published.fewest(_read(results, "published")) >= PROMPTS:
        named = published.lost(_read(results, "published")).split(", ")
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        return f"Tasks that lose points: {', '.join(named[:MOST_NAMED])}{more}."
    return ""


def _people(results: Path) -> Iterator[list[str]]:
    for name, source in (("answers", "answers-free"), ("answers, choices", "answers-default")):
        result = _read(results, source)
        name += " (older)" if "older" in result else ""
        yield _row(name, answers.whole(result, (DEFAULT, 0.0)), answers.whole(result, (BM25, 0.0)))
    for name, source in (("meetings and papers", "questions-natural"), ("several passages", "questions-natural2")):
        rows = [row for row in _read(results, source)["rows"] if (row["set"], row["keep_rate"]) == (kept.MEAN, KEEP)]
        of = {row["way"]: row for row in rows}
        shares = [f"{100 * of[way]['gold']:.0f}" for way in (LEXICAL, kept.PLAIN)]
        yield [f"evidence kept by words, {name}", str(of[LEXICAL]["of"]), "", *shares, f"{KEEP:g}"]


def _benchmark(results: Path) -> Iterator[list[str]]:
    if (results / "published.json").exists():
        for name, of in published.figures(_read(results, "published")).items():
            if name.startswith(f"{BENCHMARK},"):
                yield _row(name.replace(BENCHMARK, "RULER"), of[DEFAULT, 0.0], of[BM25, 0.0])


def _row(name: str, of: answers.Figure, bm25: answers.Figure) -> list[str]:
    points = answers.points(of, "")
    shown = [f"{100 * of.dense:.0f}", f"{100 * of.score:.0f} ({points})", f"{100 * bm25.score:.0f}"]
    return [name, str(of.n), *shown, f"{of.kept:.2f}"]


def _read(results: Path, name: str) -> dict[str, Any]:
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
