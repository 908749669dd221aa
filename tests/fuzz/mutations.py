"""A small deterministic fuzzer: mutated examples of the corpus, for the unit ring and where atheris is missing."""

import random
from collections.abc import Callable, Sequence

INTERESTING = (
    b"",
    b"\x00",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xed\xa0\x80",
    b"{",
    b"[",
    b'"',
    b"null",
    b"1e999",
)


def mutated(example: bytes, others: Sequence[bytes], choose: random.Random) -> bytes:
    """`example` with one to four changes: flipped bytes, cut or repeated parts, inserted values, parts of another."""
    data = bytearray(example)
    for _ in range(choose.randint(1, 4)):
        at = choose.randint(0, len(data))
        end = min(len(data), at + choose.choice((1, 2, 4, 8, 64)))
        match choose.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= choose.randint(1, 255)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end] * choose.randint(1, 3)
            case 3:
                data[at:end] = choose.choice(INTERESTING)
            case _:
                other = choose.choice(others)
                start = choose.randint(0, len(other))
                data[at:end] = other[start : start + choose.choice((1, 4, 16, 64))]
    return bytes(data)


def fuzz(target: Callable[[bytes], None], examples: Sequence[bytes], count: int, seed: int) -> None:
    """Call `target` with each example and with `count` mutated ones. A failure names the bytes."""
    choose = random.Random(seed)
    found = list(examples)
    for number in range(-len(examples), count):
        data = found[number] if number < 0 else mutated(choose.choice(found), found, choose)
        try:
            target(data)
        except Exception as error:
            error.add_note(f"seed {seed}, call {number}, bytes {data!r}")
            raise
