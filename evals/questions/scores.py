"""Scores of an answer to a question of people, from 0 to 1.

f1, exact and contains compare normalised words: SQuAD's evaluation script v1.1 (Rajpurkar et al., 2016), which Qasper
(Dasigi et al., 2021) uses too. Of several right answers the best counts.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

LETTERS = string.ascii_uppercase
_LABEL = re.compile(r"\s*\(?([A-Z])[.:)\]]\s*")


def words(text: str) -> list[str]:
    """The normalised words: lower case, without punctuation and without a, an and the."""
    plain = "".join(char for char in text.lower() if char not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def f1(answer: str, right: str) -> float:
    """Twice the shared words, divided by the words of both."""
    given, wanted = words(answer), words(right)
    if not given or not wanted:
        return float(given == wanted)
    return 2 * (Counter(given) & Counter(wanted)).total() / (len(given) + len(wanted))


def exact(answer: str, right: str) -> float:
    """Whether the words are the same."""
    return float(words(answer) == words(right))


def contains(answer: str, right: str) -> float:
    """Whether the answer has the right one's words, in a row."""
    return float(f" {' '.join(words(right))} " in f" {' '.join(words(answer))} ")


OF_TEXTS = {"f1": f1, "exact": exact, "contains": contains}


def lettered(choices: Sequence[str]) -> dict[str, str] | None:
    """The text of each option by its letter, A first.

    None where the options do not make clear which letter each has: they begin with letters such as `A.`, but not all
    of them or not in order; there are fewer than two, or more than the alphabet has.
    """
    labels = [_LABEL.match(choice) for choice in choices]
    if not 2 <= len(choices) <= len(LETTERS):
        return None
    if not any(labels):
        return dict(zip(LETTERS, (choice.strip() for choice in choices), strict=False))
    if [label and label[1] for label in labels] != [*LETTERS[: len(choices)]]:
        return None
    return {label[1]: choice[label.end() :].strip() for label, choice in zip(labels, choices, strict=True) if label}


def chosen_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option that an answer chooses; None if it is not clear.

    The first of these that the answer has: a letter at its start (`B`, `(b)`, `B. Because`), the letter after "answer",
    "option" or "choice", the text of one option alone, one of the letters alone. The word "A" is no letter.
    """
    known = "".join(options)
    # The word "A" before another word is an article.
    letter = rf"(?<![\w'\u2019])(?!A [a-z])([{known}])(?![\w'\u2019])"
    start = re.match(rf"\W*{letter}(?=\s*(?:[.:)\*]|$|\n))", answer)
    named = re.search(rf"\b(?i:answer|option|choice)\b(?:\s+(?i:is|would be))?[\s:*(]*{letter}", answer)
    lone = re.fullmatch(r"\W*([a-z])\W*", answer)
    for found in (start, lone, named):
        if found and found[1].upper() in options:
            return found[1].upper()
    stated = [one for one, text in options.items() if words(text) and contains(answer, text)]
    for letters in (stated, [*set(re.findall(letter, answer))]):
        if len(letters) == 1:
            return letters[0]
    return None
