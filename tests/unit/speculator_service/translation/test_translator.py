"""Prompts, answers and drafts through two tokenizers, of all kinds, for random text."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skim_common.errors import ModelError
from skim_common.models.token_text import TokenText
from speculator_service.translation import Translator
from tests.reference.tokenizers_by_kind import KINDS, tokenizer_of

TEXTS = {kind: TokenText(tokenizer_of(kind), kind) for kind in KINDS}
PAIRS = [pair for pair in product(KINDS, KINDS) if pair[0] != pair[1]]
LOSSLESS = ("demo", "trimmed", "byte_fallback")
"""Tokenizers that do not normalise."""

PAIR = pytest.mark.parametrize(("speculator", "target"), PAIRS)
WORDS = [
    "The quick fox",
    " ",
    "\n\n",
    "  ",
    "东京",
    "👍🏽",
    "e\N{COMBINING ACUTE ACCENT}",
    "ﬁ",
    "<|im_end|>",
    "x = 12;",
]
text = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=12)), max_size=12).map("".join)


def ids_of(kind, text):
    return np.array(tokenizer_of(kind)(text, add_special_tokens=False).input_ids, np.int32)


@pytest.mark.parametrize("kind", LOSSLESS)
@given(text)
def test_tokens_joined_are_the_text(kind, text):
    joined = TEXTS[kind].text(ids_of(kind, text)).decode()
    assert joined == (" " if kind == "byte_fallback" and text else "") + text


@PAIR
@settings(max_examples=20)
@given(text)
def test_a_prompt_is_covered_by_both_tokenizations(speculator, target, text):
    ids = ids_of(target, text)
    assume(ids.size)
    reading = Translator(TEXTS[speculator], TEXTS[target]).read(ids)
    covered = np.zeros(reading.characters, bool)
    for start, end in reading.target_spans:
        covered[start:end] = True
    assert covered.all()
    assert reading.target_spans.shape == (ids.size, 2)
    assert reading.spans.shape == (reading.ids.size, 2)
    assert reading.spans.min(initial=0) >= 0
    assert reading.spans.max(initial=0) <= reading.characters
    assert (reading.spans[:, 0] <= reading.spans[:, 1]).all()
    level = reading.importance(np.full(reading.ids.size, 0.25, np.float32))
    assert level.shape == ids.shape
    assert (level == np.float32(0.25)).all()
    ramp = reading.importance(np.linspace(0, 1, reading.ids.size, dtype=np.float32))
    assert ramp.min() >= 0
    assert ramp.max() <= 1


@PAIR
@settings(max_examples=20)
@given(data=st.data())
def test_any_ids_of_the_vocabulary_can_be_read(speculator, target, data):
    ids = data.draw(st.lists(st.integers(0, len(TEXTS[target].pieces) - 1), min_size=1, max_size=40))
    reading = Translator(TEXTS[speculator], TEXTS[target]).read(np.array(ids, np.int32))
    assert np.isfinite(reading.importance(np.ones(reading.ids.size))).all()


@pytest.mark.parametrize(("speculator", "target"), [pair for pair in PAIRS if set(pair) <= set(LOSSLESS)])
@settings(max_examples=20)
@given(text, st.data())
def test_importance_reaches_the_same_characters(speculator, target, text, data):
    """A spike on one of the speculator's tokens raises exactly the target's tokens that share a character with it."""
    ids = ids_of(target, text)
    assume(ids.size)
    reading = Translator(TEXTS[speculator], TEXTS[target]).read(ids)
    covering = np.flatnonzero(reading.spans[:, 1] > reading.spans[:, 0])
    assume(covering.size)
    spike = data.draw(st.sampled_from(covering.tolist()))
    importance = np.zeros(reading.ids.size)
    importance[spike] = 1
    carried = reading.importance(importance)
    start, end = reading.spans[spike]
    known = np.zeros(reading.characters + 1, bool)
    for a, b in reading.spans:
        known[a:b] = True
    for value, (a, b) in zip(carried, reading.target_spans, strict=True):
        if known[a:b].any():
            assert (value > 0) == (max(a, start) < min(b, end))


def test_special_tokens_that_both_have_are_read_as_such():
    translator = Translator(TEXTS["byte_level"], TokenText(tokenizer_of("byte_level"), "again"))
    prompt = ids_of("byte_level", "<|im_start|>user\nThe dog<|im_end|>\n")
    assert translator.read(prompt).ids.tolist() == prompt.tolist()


def test_a_special_token_of_the_target_alone_is_a_line_break():
    translator = Translator(TEXTS["trimmed"], TEXTS["byte_level"])
    prompt = ids_of("byte_level", "<|im_start|>user\nThe dog<|im_end|><|im_start|>assistant\n")
    assert TEXTS["trimmed"].text(translator.read(prompt).ids) == b"\nuser\nThe dog\n\nassistant\n"


def test_the_speculator_s_own_bos_stands_before_the_text():
    prompt = ids_of("trimmed", "The dog sleeps")
    reading = Translator(TEXTS["byte_fallback"], TEXTS["trimmed"]).read(prompt)
    assert reading.ids[0] == tokenizer_of("byte_fallback").bos_token_id
    assert reading.spans[0].tolist() == [0, 0]
    spiked = np.zeros(reading.ids.size)
    spiked[0] = 1  # the BOS is an attention sink; no token of the target stands for it
    assert not reading.importance(spiked).any()


def test_a_tokenizer_whose_tokens_have_no_certain_text():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="neither byte-level nor SentencePiece"):
        TokenText(PreTrainedTokenizerFast(tokenizer_object=words), "bert")
