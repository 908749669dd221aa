"""Tokens of prompts whose beginning was tokenized before: only the rest is tokenized.

A tokenizer first cuts the text at its special tokens, such as those around a message, and reads each piece by itself.
So the tokens of a text are those before a special token and those from it on, and the first do not depend on what
follows. A text may be cut only where an earlier text had the same special token with the same characters before it. The
next turn of a conversation is such a text.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import re2
from transformers import TokenizersBackend

from kv_transfer.arrays import Int32Array, no_numbers, no_pairs

MIN_CHARS = 1024
"""Shorter texts are not held: to tokenize them costs as little as to find them."""
CUTS = 16
"""So many of a text's last special tokens are held; where it is changed before them, its tokens are made again."""
MAX_TOKENS = 2**21
"""Tokens that are held in all, at 12 bytes each."""


class Tokens(NamedTuple):
    """A tokenized text. ids: int32 [M]. offsets: each token's half-open character range, int32 [M, 2]."""

    ids: Int32Array
    offsets: Int32Array


@dataclass(slots=True, eq=False)
class _Held:
    """A tokenized text, and the digests under which its beginnings are found; never none."""

    tokens: Tokens
    digests: set[bytes]


class KnownTokens:
    """One tokenizer, and the tokens of the latest texts. Threads may share it. Made by `of`.

    reused: tokens that were not made again, in all.
    """

    def __init__(self, backend: Any, cuts: Sequence[tuple[int, str]], max_tokens: int = MAX_TOKENS) -> None:
        """backend: a tokenizers.Tokenizer. cuts: ids and texts of the special tokens at which a text may be cut."""
        self._backend, self._max_tokens = backend, max_tokens
        self._ids = np.array([id for id, _ in cuts], np.int32)
        longest_first = sorted((text for _, text in cuts), key=len, reverse=True)
        self._cut = re2.compile("|".join(map(re2.escape, longest_first)))
        self._lock = threading.Lock()
        self._held: OrderedDict[_Held, None] = OrderedDict()
        self._found: dict[bytes, tuple[_Held, int]] = {}  # by digest, with the tokens before the cut
        self._size = self.reused = 0

    @classmethod
    def of(cls, tokenizer: Any, max_tokens: int = MAX_TOKENS) -> "KnownTokens | None":
        """For a tokenizer of transformers; None if its texts cannot be cut."""
        if not isinstance(tokenizer, TokenizersBackend) or tokenizer.split_special_tokens:
            return None
        if type(tokenizer)._encode_plus is not TokenizersBackend._encode_plus:
            return None
        backend = copy.deepcopy(tokenizer._tokenizer)
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        # Other added tokens are looked for in normalized text, or read the characters around them. A token inside of a
        # longer one may be read as that one, depending on what follows.
        cuts = [
            (id, token.content)
            for id, token in added.items()
            if token.special and not (token.normalized or token.lstrip or token.single_word)
            if not any(token.content in other.content[:-1] for other in added.values())
        ]
        return cls(backend, cuts, max_tokens) if cuts else None

    def tokenize(self, text: str, salt: str | None = None) -> Tokens:
        """The tokens of `text`, without those that a tokenizer adds around it. salt: texts with different salts are not
        known to each other, so that the time tells nothing of another's text."""
        if len(text) < MIN_CHARS:
            return self._encode(text)
        digests = self._digests(text, salt)
        start, known = self._find(digests)
        ids, offsets = self._encode(text[start:])
        tokens = Tokens(np.concatenate([known.ids, ids]), np.concatenate([known.offsets, offsets + start]))
        self._hold(tokens, digests)
        return tokens

    def _encode(self, text: str) -> Tokens:
        # Of the methods of a tokenizer, only those for batches let other threads run meanwhile.
        [encoding] = self._backend.encode_batch([text], add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        # `encoding.offsets` makes all pairs at once: 128 bytes for each token instead of 8.
        pairs = map(encoding.token_to_chars, range(ids.size))
        offsets = np.fromiter(chain.from_iterable(pairs), np.int32, 2 * ids.size)
        return Tokens(ids, offsets.reshape(-1, 2))

    def _digests(self, text: str, salt: str | None) -> dict[int, bytes]:
        """By the place of each special token: the digest of the text up to its end."""
        salted = b"" if salt is None else b"\x01" + salt.encode("utf-8", "surrogatepass") + b"\0"
        digest = blake2b(salted, digest_size=16)
        digests: dict[int, bytes] = {}
        end = 0
        for found in self._cut.finditer(text):
            digest.update(text[end : found.end()].encode("utf-8", "surrogatepass"))
            end = found.end()
            digests[found.start()] = digest.digest()
        digests.pop(0, None)  # nothing is before it
        return digests

    def _find(self, digests: dict[int, bytes]) -> tuple[int, Tokens]:
        """The last place that is known, or 0, and the tokens before it."""
        with self._lock:
            for start, digest in reversed(digests.items()):
                if digest in self._found:
                    held, count = self._found[digest]
                    self._held.move_to_end(held)
                    ids, offsets = held.tokens
                    self.reused += count
                    return start, Tokens(ids[:count], offsets[:count])
        return 0, Tokens(no_numbers(), no_pairs())

    def _hold(self, tokens: Tokens, digests: dict[int, bytes]) -> None:
        at = np.flatnonzero(np.isin(tokens.ids, self._ids))[-CUTS:]
        # A special token that the tokenizer did not cut at, or that begins elsewhere, has no digest.
        places = {digests[start]: int(count) for count in at if (start := int(tokens.offsets[count, 0])) in digests}
        if not places:
            return
        held = _Held(tokens, set(places))
        with self._lock:
            for digest in places.keys() & self._found.keys():
                self._forget(digest)
            self._held[held] = None
            self._found.update({digest: (held, count) for digest, count in places.items()})
            self._size += tokens.ids.size
            while self._size > self._max_tokens:
                for digest in list(next(iter(self._held)).digests):
                    self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        """A text that cannot be found any more is dropped, such as an earlier turn of the conversation, or a repeat."""
        held, _ = self._found.pop(digest)
        held.digests.remove(digest)
        if not held.digests:
            del self._held[held]
            self._size -= held.tokens.ids.size
