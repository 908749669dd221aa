"""`python -m evals.guard.measure`: how many whole-text tasks and how many questions the guard runs dense.

The wordings of `held_out.txt` and `held_out_2.txt` were written apart from those of the training. The misses of the
first were read while those of the training grew; the second has roundabout wordings, written after that.
`--unseen`: each language of them by a classifier that was trained without it. `--questions FILE`: of questions about
texts, as `skim eval --questions` takes them, the share that runs dense, by set. `--bfcl DIR`: the same of what users
say in BFCL's conversations with tools (`evals.agents.bfcl`).
"""

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from evals.agents.bfcl import BFCL, bfcl_requests
from evals.guard.train import as_weights, train
from evals.guard.wordings import HELD_OUT, LATER, TRAINED, Wording, filled, plain
from evals.questions.file import read_questions
from router.decision import guard
from router.decision.guard import needs_whole_text


def table(wordings: Sequence[Wording], dense: Callable[[Wording], bool]) -> str:
    """The share that is dense by kind and language, in percent; questions last."""
    languages = list(dict.fromkeys(wording.language for wording in wordings))
    kinds = sorted(dict.fromkeys(wording.kind for wording in wordings), key=lambda kind: kind == "question")
    found: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    for wording in wordings:
        verdict = dense(wording)
        for kind in (wording.kind, *(["tasks"] if wording.whole else [])):
            for language in (wording.language, "all"):
                found[kind, language].append(verdict)
    columns = [*languages, "all"]
    lines = ["| kind | n | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for kind in (*kinds[:-1], "tasks", kinds[-1]):
        shares = (100 * sum(found[kind, one]) / len(found[kind, one]) for one in columns)
        lines.append(f"| {kind} | {len(found[kind, 'all'])} | " + " | ".join(f"{share:.3g}" for share in shares) + " |")
    return "\n".join(lines)


def unseen(path: Path) -> str:
    """The table by classifiers that do not know the language."""
    wordings, verdicts = plain(path), dict[Wording, bool]()
    known = guard.weights
    for language in dict.fromkeys(wording.language for wording in wordings):
        trained = as_weights(*train(list(filled(TRAINED, random.Random(0), without=[language]))))
        guard.weights = lambda trained=trained: trained  # type: ignore[assignment]
        verdicts |= {wording: needs_whole_text(wording.text) for wording in wordings if wording.language == language}
    guard.weights = known
    return table(wordings, verdicts.__getitem__)


def of_questions(path: Path) -> str:
    """A line for each set of a file."""
    return shares((one.set, one.question) for one in read_questions(path))


def shares(tasks: Iterable[tuple[str, str]]) -> str:
    """A line for each set. tasks: set and text of each."""
    found: defaultdict[str, list[bool]] = defaultdict(list)
    for name, text in tasks:
        found[name].append(needs_whole_text(text))
    return "\n".join(f"{name}: {100 * sum(dense) / len(dense):.0f} % of {len(dense)}" for name, dense in found.items())


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--questions" in sys.argv:
        print(of_questions(Path(sys.argv[sys.argv.index("--questions") + 1])))
        sys.exit()
    if "--bfcl" in sys.argv:
        print(shares((BFCL, text) for text in bfcl_requests(Path(sys.argv[sys.argv.index("--bfcl") + 1]))))
        sys.exit()
    for path in (HELD_OUT, LATER):
        print(f"{path.name}\n\n" + table(plain(path), lambda wording: needs_whole_text(wording.text)) + "\n")
        if "--unseen" in sys.argv:
            print(f"{path.name}, the language left out of the training\n\n{unseen(path)}\n")
