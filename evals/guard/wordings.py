"""Tasks and questions in many languages, as they are written in the files of this folder.

A line of such a file is `kind: wording | wording`, below `# language`. `{o}` and the like are filled from the lists of
the same language (`SLOTS`).
"""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
TRAINED, HELD_OUT, LATER = (FOLDER / f"{name}.txt" for name in ("wordings", "held_out", "held_out_2"))

SPOT = frozenset({"question", "point", "rule", "noise"})
"""Kinds that need no whole text: questions, requests for one thing, rules for the answer, and words without a sense."""

SLOTS = {
    "{o}": "objects",
    "{x}": "things",
    "{a}": "attributes",
    "{c}": "countables",
    "{n}": "triggers",
    "{p}": "plurals",
    "{v}": "verbs",
}
NOISE = 120
"""Texts without a sense for each language."""
_TIMES = 6
"""How often a wording with slots is filled."""


class Wording(NamedTuple):
    """number: of the line's wording before its slots were filled."""

    text: str
    language: str
    kind: str
    number: int

    @property
    def whole(self) -> bool:
        return self.kind not in SPOT


def read(path: Path) -> dict[str, dict[str, list[str]]]:
    """Wordings by language and kind."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
        if line.startswith("# "):
            kinds = found.setdefault(line[2:].strip(), {})
            continue
        kind, wordings = line.split(": ", 1)
        kinds.setdefault(kind, []).extend(wording.strip() for wording in wordings.split(" | "))
    return found


def plain(path: Path) -> list[Wording]:
    """Those of a file without slots."""
    return [
        Wording(text, language, kind, number)
        for language, kinds in read(path).items()
        for kind, texts in kinds.items()
        for number, text in enumerate(texts)
    ]


def filled(path: Path, rng: random.Random, without: Sequence[str] = ()) -> Iterator[Wording]:
    """Those of a file with filled slots; of each second one some words are dropped. Noise of each language.

    without: languages to leave out.
    """
    number = 0
    for language, kinds in read(path).items():
        if language in without:
            continue
        noise = Noise([text for kind, texts in kinds.items() if kind in SPOT for text in texts], rng)
        for kind, texts in kinds.items():
            if kind in SLOTS.values():
                continue
            for text in texts:
                for time in range(_TIMES if "{" in text else 2):
                    full = _fill(text, kinds, rng)
                    yield Wording(full if time % 2 == 0 else _shortened(full, rng), language, kind, number)
                number += 1
        for _ in range(NOISE):
            yield Wording(noise.text(rng.randint(30, 200)), language, "noise", number)
            number += 1


class Noise:
    """Texts with the letters of a language but without a sense: what is unknown is no whole-text task."""

    def __init__(self, texts: Sequence[str], rng: random.Random) -> None:
        self._rng, self._after = rng, dict[str, list[str]]()
        for text in texts:
            plain = re.sub(r"\{.\}", "", text) + " "
            for start in range(len(plain) - 3):
                self._after.setdefault(plain[start : start + 3], []).append(plain[start + 3])
        self._starts = sorted(self._after)

    def text(self, length: int) -> str:
        """By the chances of a letter after three others."""
        text = self._rng.choice(self._starts)
        while len(text) < length:
            text += self._rng.choice(self._after.get(text[-3:]) or self._starts)
        return text


def _fill(text: str, lists: dict[str, list[str]], rng: random.Random) -> str:
    while slot := next((slot for slot in SLOTS if slot in text), None):
        text = text.replace(slot, rng.choice(lists[SLOTS[slot]]), 1)
    return text


def _shortened(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    if len(words) > 3:
        words = [word for word in words if rng.random() > 0.1] or words
    text = " ".join(words)
    return text.rstrip(".?!\u3002\u061f\u0964") if rng.random() < 0.3 else text
