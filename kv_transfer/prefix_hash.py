"""Chained hashes of a prompt's blocks of tokens: equal hashes mean equal prefixes, in every process.

Unlike vLLM's block hashes they need no engine, do not depend on a seed of the process, and know no positions. They say
which prompts begin alike: for affinity, for what a pool has cached, and for records.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16


def block_hashes(
    token_ids: npt.ArrayLike, block_size: int, salt: str | None = None, *, known: Sequence[bytes] = ()
) -> list[bytes]:
    """One hash per whole block: hash i covers the tokens [0, (i + 1) * block_size) and the salt.

    token_ids: integers [M], hashed as int32. salt: prompts with different salts have no hash in common (`cache_salt`).
    known: the hashes of the first blocks.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    ids = np.ascontiguousarray(token_ids, "<i4")
    hashes = list(known)
    chain = hashes[-1] if hashes else _seed(salt)
    for start in range(len(hashes) * block_size, ids.size - block_size + 1, block_size):
        chain = blake2b(chain + ids[start : start + block_size].tobytes(), digest_size=DIGEST_BYTES).digest()
        hashes.append(chain)
    return hashes


def prefix_hash(token_ids: npt.ArrayLike, salt: str | None = None) -> bytes:
    """One hash of all tokens and the salt, for a prefix of any length."""
    ids = np.ascontiguousarray(token_ids, "<i4")
    return blake2b(_seed(salt) + ids.tobytes(), digest_size=DIGEST_BYTES).digest()


def _seed(salt: str | None) -> bytes:
    """The start of the chain. No salt and an empty salt are different."""
    return blake2b(b"" if salt is None else b"\x01" + salt.encode("utf-8", "surrogatepass"), digest_size=32).digest()
