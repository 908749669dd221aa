"""How much of a passage an answer repeats, for tasks that ask for an exact quotation."""

from difflib import SequenceMatcher

SMALLEST = 0.6
"""Two unrelated English sentences share up to half of their characters in order, so less than this is no quotation."""


def overlap(passage: str, answer: str) -> float:
    """The similarity of two texts, from SMALLEST to 1, or 0 if it is less.

    It is difflib's ratio: twice the number of characters in matching blocks, divided by the characters of both texts.
    White space counts as one space, and quotation marks around the answer do not count. An answer that repeats much
    more than the passage is therefore no quotation.
    """
    wanted, given = _plain(passage), _plain(answer)
    # autojunk ignores frequent characters of long texts.
    ratio = SequenceMatcher(None, wanted, given, autojunk=False).ratio()
    return ratio if ratio >= SMALLEST else 0.0


def _plain(text: str) -> str:
    return " ".join(text.split()).strip("\"'`*>“” ")
