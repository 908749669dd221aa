"""The text of each token of a tokenizer as bytes, and the tokens of a text.

Bytes, because a token of a byte-level vocabulary can be a part of a character. The texts of tokens, joined, are the
text that a tokenizer's `decode` gives, before it replaces invalid UTF-8 and strips a leading space.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from skim_common.errors import ModelError
from skim_common.models.info import load_tokenizer

Int32Array = npt.NDArray[np.int32]
Spans = npt.NDArray[np.int64]
"""Half-open ranges [N, 2]."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a space inside a token."""


class TokenText:
    """The tokenizer of one model, as text.

    pieces: bytes of each token id. special: ids of the special tokens (control tokens such as <|im_end|>), by text.
    beginning: the ids that the tokenizer puts before a text (its BOS), often none.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        """name: of its model. Raises ModelError for a tokenizer whose tokens have no certain text."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                f"model {name}: its tokenizer has no tokenizer.json, so a speculator and a target with two tokenizers "
                "cannot use it; choose two models of one family"
            )
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        as_bytes = _reader(backend, name)
        size = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        self.pieces = [as_bytes(backend.id_to_token(token) or "") for token in range(size)]
        added = backend.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}
        for content, number in self.special.items():
            self.pieces[number] = content.encode()
        # Without its text only what stands before a text is left; an EOS after it is not part of a prompt.
        around = tokenizer("").input_ids
        self.beginning: list[int] = around[:1] if tokenizer.bos_token_id in around[:1] else []

    @classmethod
    def of(cls, model: str) -> "TokenText":
        """The tokenizer of a model, a folder or a hub name. Raises ModelError."""
        return cls(load_tokenizer(model), model)

    def read(self, text: str) -> tuple[Int32Array, Spans]:
        """The ids of a prompt's text [S], with `beginning` before it, and the characters [S, 2] of each token. Special
        tokens that are written in it are recognized."""
        encoded = self._backend.encode(text, add_special_tokens=False)
        ids, spans = encoded.ids, encoded.offsets
        lead = self.beginning if ids[:1] != self.beginning else []
        spans = np.array([(0, 0)] * len(lead) + spans, np.int64).reshape(-1, 2)
        return np.array(lead + ids, np.int32), spans

    def text(self, ids: npt.ArrayLike) -> bytes:
        """The joined text of token ids."""
        return b"".join([self.pieces[token] for token in np.asarray(ids).tolist()])


def _reader(backend: Any, name: str) -> Any:
    """The function that gives a token's bytes, after the tokenizer's decoder (tokenizers.decoders)."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    kinds = {part["type"] for part in decoder.get("decoders", [decoder]) if part}
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}

    def byte_level(token: str) -> bytes:
        try:
            return bytes([byte_of[character] for character in token])
        except KeyError:  # an added token is plain text
            return token.encode()

    if "ByteLevel" in kinds:
        return byte_level
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece
    raise ModelError(
        f"model {name}: its tokenizer is neither byte-level nor SentencePiece, so a speculator and a target with two "
        "tokenizers cannot use it; choose two models of one family"
    )


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()
