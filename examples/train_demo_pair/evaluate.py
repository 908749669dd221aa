"""Measures a pair on prompts with known answers: the target reads whole prompts and the prompts that were kept.

    python evaluate.py ../../demo_models/speculator ../../demo_models/target --samples 200 --json evaluation.json
    python evaluate.py --table evaluation.json          # print a file again

Each cell is a kind of question at a prompt length: `--samples` questions, eight per document, each in its own prompt.
An answer is right if greedy decoding gives the whole value. The right answer is known, so one forward pass over prompt
and answer shows this. All models run in bf16 on one thread.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from data import HELD_OUT_OPENINGS, Recipe, make_prompt
from selection import CHUNK, HEAD, LOOK_AHEAD, POOL, TAIL, Reader, chunk_order, keep_chunks, keep_last
from tokenizer import hf_tokenizer
from transformers import AutoTokenizer

DRAFTS = 4
QUESTIONS = 8  # per document
KEEP_RATES = (0.05, 0.1, 0.2)
KINDS = {
    "easy": Recipe(unique_nouns=True, two_attributes=0.0),
    "hard": Recipe(),
    "unseen in records": Recipe(asked_words="held_out"),
    "unseen anywhere": Recipe(asked_words="new"),
    "unseen phrasing": Recipe(openings=HELD_OUT_OPENINGS),
    "unseen words and phrasing": Recipe(asked_words="held_out", openings=HELD_OUT_OPENINGS),
    "first or last of two": Recipe(duplicates=0.2, ask_duplicates=True),
    "other word order": Recipe(wording="Question: For the {adjective} {noun}, what is the {attribute}?"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A document and one question, as token ids. record: token range [start, stop) of the record asked for."""

    document: list[int]
    question: list[int]
    answer: list[int]
    record: tuple[int, int]


class CaseMaker:
    """Makes documents as text, so that pairs with other vocabularies get the same test."""

    def __init__(self, folder: Path):
        self.ours, self.theirs = hf_tokenizer(), AutoTokenizer.from_pretrained(folder)

    def encode(self, text: str) -> list[int]:
        return self.theirs.encode(text, add_special_tokens=False)

    def documents(self, recipe: Recipe, length: int, rng: random.Random) -> Iterator[list[Case]]:
        """An endless iterator over documents, each with its questions."""
        while True:
            prompt = make_prompt(length + 22 * (QUESTIONS - 1), replace(recipe, questions=QUESTIONS), rng)
            text = self.ours.decode(prompt.ids[2 : prompt.context]).strip()
            document = self.encode(f"<|bos|><|user|> {text}")
            cases = []
            for asked in prompt.asked:
                question = self.encode(f"\n{asked.question}<|end|><|assistant|>")
                before = text.index(asked.record.sentence())
                start = len(self.encode(f"<|bos|><|user|> {text[:before]}".rstrip()))
                span = (start, start + len(self.encode(f" {asked.record.sentence()}")))
                cases.append(Case(document, question, self.encode(f" {asked.record.value}.<|end|>"), span))
            yield cases


class Cell:
    """The measured values of one cell, by the name of the figure."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        self.seen.setdefault(name, []).append(float(value))

    def means(self) -> dict[str, float]:
        return {name: round(sum(values) / len(values), 4) for name, values in self.seen.items()}


def right_and_accepted(target: Reader, ids: list[int], positions: list[int], case: Case, drafts: list[int], end: int):
    """(whether the target's answer is right, share of the drafts it accepts) after a prefill of `ids` at `positions`.

    end: the position of the first decoded token.
    """

    def agreed(tokens: list[int]) -> int:
        """How many of the first `tokens` are the same in greedy decoding."""
        places = positions + [end + i for i in range(len(tokens) - 1)]
        choices = target.choices(ids + tokens[:-1], places, last=len(tokens))
        return next((i for i, (a, b) in enumerate(zip(choices, tokens, strict=True)) if a != b), len(tokens))

    right = agreed(case.answer)
    accepted = right if drafts[: len(case.answer)] == case.answer[: len(drafts)] else agreed(drafts)
    return right == len(case.answer), min(accepted, len(drafts)) / len(drafts)


def measure(speculator: Reader, target: Reader, case: Case, controls: bool, rng: random.Random, cell: Cell) -> None:
    """All figures of one question. The document must already be in the caches of both readers."""
    prompt = case.document + case.question
    n = len(prompt)
    importance, look_ahead = speculator.score(case.question)
    drafts = look_ahead[:DRAFTS]
    cell.add("speculator alone", look_ahead[: len(case.answer)] == case.answer)
    choices = target.choices_after_document(case.question + case.answer[:-1], last=len(case.answer))
    cell.add("full prompt", choices == case.answer)

    order = chunk_order(importance)
    asked_chunks = range(case.record[0] // CHUNK, (case.record[1] - 1) // CHUNK + 1)
    cell.add("rank of the record's worst chunk", max(order.index(chunk) for chunk in asked_chunks) + 1)
    for rate in KEEP_RATES:
        kept = keep_chunks(order, n, rate)
        cell.add(f"record kept, keep {rate}", set(range(*case.record)) <= set(kept))
        ids = [prompt[i] for i in kept]
        right, accepted = right_and_accepted(target, ids, kept, case, drafts, end=n)
        cell.add(f"keep {rate}", right)
        cell.add(f"drafts accepted, keep {rate}", accepted)
    if not controls:
        return
    for rate in (0.1, 0.2):
        kept = keep_chunks(order, n, rate)
        ids = [prompt[i] for i in kept]
        right, _ = right_and_accepted(target, ids, kept, case, case.answer, end=len(kept))
        cell.add(f"decoded from len(kept), keep {rate}", right)
        shuffled = rng.sample(order, len(order))
        for name, others in (("random chunks", keep_chunks(shuffled, n, rate)), ("last window", keep_last(n, rate))):
            right, _ = right_and_accepted(target, [prompt[i] for i in others], others, case, case.answer, end=n)
            cell.add(f"{name}, keep {rate}", right)


def evaluate(args: argparse.Namespace) -> dict:
    speculator, target = Reader(args.speculator), Reader(args.target)
    maker = CaseMaker(args.target)
    cells = {}
    for kind in args.kinds:
        for length in args.lengths:
            start, rng, cell, done = time.monotonic(), random.Random(args.seed + length), Cell(), 0
            for document in maker.documents(KINDS[kind], length, rng):
                if done >= args.samples or time.monotonic() - start > args.seconds:
                    break
                speculator.read_document(document[0].document)
                target.read_document(document[0].document)
                for case in document:
                    measure(speculator, target, case, kind == "hard", rng, cell)
                done += len(document)
            cells[f"{kind} {length}"] = {"samples": done, **cell.means()}
            print(f"{kind} {length}: {cells[f'{kind} {length}']}", flush=True)
            if args.json:
                args.json.write_text(
                    json.dumps({"settings": settings(args), "cells": cells}, indent=1) + "\n", encoding="utf-8"
                )
    return {"settings": settings(args), "cells": cells}


def settings(args: argparse.Namespace) -> dict:
    return {
        "look_ahead": LOOK_AHEAD,
        "pool": POOL,
        "chunk": CHUNK,
        "head": HEAD,
        "tail": TAIL,
        "drafts": DRAFTS,
        "questions_per_document": QUESTIONS,
        "density": Recipe().density,
        "seed": args.seed,
    }


def table(result: dict) -> str:
    """The cells as a markdown table, one line per kind and length."""
    columns = {
        "n": "samples",
        "full prompt": "full prompt",
        **{f"keep {rate}": f"keep {rate}" for rate in KEEP_RATES},
        "record kept at 0.1": "record kept, keep 0.1",
        "drafts accepted at 0.1": "drafts accepted, keep 0.1",
        "speculator alone": "speculator alone",
    }
    controls = ["random chunks", "last window", "decoded from len(kept)"]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, cell in result["cells"].items():
        figures = [cell.get(key, math.nan) for key in columns.values()]
        lines.append(f"| {name} | {figures[0]} | " + " | ".join(f"{x:.3f}" for x in figures[1:]) + " |")
    lines += ["", f"| controls at keep 0.2 | {' | '.join(controls)} |", "|---" * (len(controls) + 1) + "|"]
    for name, cell in result["cells"].items():
        if f"{controls[0]}, keep 0.2" in cell:
            lines.append(f"| {name} | " + " | ".join(f"{cell[f'{c}, keep 0.2']:.3f}" for c in controls) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speculator", type=Path, nargs="?")
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--table", type=Path, help="print the table of this JSON file and stop")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 2048, 4096, 8192])
    parser.add_argument("--samples", type=int, default=200, help="questions per cell")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop a cell after this time")
    parser.add_argument("--seed", type=int, default=4242)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.table:
        print(table(json.loads(args.table.read_text(encoding="utf-8"))))
    elif args.target:
        print(table(evaluate(args)))
    else:
        parser.error("give the folders of the speculator and the target, or --table FILE")


if __name__ == "__main__":
    main()
