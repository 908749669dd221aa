"""Prompts, answers and drafts through two tokenizers, of all kinds, for random text."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skim_common.errors import ModelError
from speculator_service.translation.answer import SETTLED_AFTER, AnswerTranslation
from speculator_service.translation.token_text import TokenText
from speculator_service.translation.translator import Translator, whole
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
    assert translator.text(prompt) == b"\nuser\nThe dog\n\nassistant\n"
    assert TEXTS["trimmed"].text(translator.read(prompt).ids) == translator.text(prompt)


def test_the_speculator_s_own_bos_stands_before_the_text():
    prompt = ids_of("trimmed", "The dog sleeps")
    reading = Translator(TEXTS["byte_fallback"], TEXTS["trimmed"]).read(prompt)
    assert reading.ids[0] == tokenizer_of("byte_fallback").bos_token_id
    assert reading.spans[0].tolist() == [0, 0]
    spiked = np.zeros(reading.ids.size)
    spiked[0] = 1  # the BOS is an attention sink; no token of the target stands for it
    assert not reading.importance(spiked).any()


@pytest.mark.parametrize("kind", KINDS)
@given(text, text)
def test_text_that_goes_on(kind, before, after):
    ids = TEXTS[kind].going_on(before.encode(), after.encode())
    if ids is not None:
        assert TEXTS[kind].text(ids) == after.encode()
    else:
        assert kind not in ("demo", "trimmed")  # the others normalise, or begin a text with a space


@pytest.mark.parametrize("kind", ["demo", "trimmed", "byte_level"])
@pytest.mark.parametrize(("before", "after"), [("The quick", " brown fox"), ("The dog", "\nsleeps near 1987")])
def test_a_boundary_between_words_splits_as_in_one_piece(kind, before, after):
    together = ids_of(kind, before + after).tolist()
    ids = TEXTS[kind].going_on(before.encode(), after.encode())
    assert together[-len(ids) :] == ids
    assert TEXTS[kind].text(ids) == after.encode()


@PAIR
@settings(max_examples=20)
@given(text, text)
def test_drafts_are_the_target_s_tokens_of_the_drafted_text(speculator, target, before, after):
    translator = Translator(TEXTS[speculator], TEXTS[target])
    drafted = ids_of(speculator, after)
    drafts = translator.drafts(before.encode(), b"", drafted)
    ended = next((i for i, token in enumerate(drafted) if int(token) in translator._ends), drafted.size)
    spelled = TEXTS[speculator].text(drafted[:ended])
    assert TEXTS[target].text(drafts) == whole(spelled) or not drafts.size
    if target in ("demo", "trimmed"):
        assert TEXTS[target].text(drafts) == whole(spelled)


def test_drafts_of_a_character_that_has_begun():
    thumb = "👍".encode()
    translator = Translator(TEXTS["trimmed"], TEXTS["demo"])  # the demo tokenizer has a token for each byte
    rest = translator.drafts(b"Good " + thumb[:2], thumb[:2], ids_of("trimmed", "👍🏽 yes"))
    assert TEXTS["demo"].text(rest) == "👍🏽 yes".encode()[2:]
    assert translator.drafts(b"Good " + thumb[:2], thumb[:2], ids_of("trimmed", " no")).size == 0
    cut = ids_of("demo", "ok 👍")[:-1]
    assert (
        Translator(TEXTS["demo"], TEXTS["trimmed"]).drafts(b"", b"", cut).tolist() == ids_of("trimmed", "ok ").tolist()
    )


def test_ids_that_a_tokenizer_lacks():
    """Embedding tables can be padded: a model can decode ids that its tokenizer does not have."""
    translator = Translator(TEXTS["trimmed"], TEXTS["byte_level"])
    drafted = np.append(ids_of("trimmed", " brown fox"), np.int32(len(TEXTS["trimmed"].pieces)))
    assert translator.drafts(b"The quick", b"", drafted).tolist() == ids_of("byte_level", " brown fox").tolist()
    answer = np.append(ids_of("byte_level", "The dog"), np.int32(len(TEXTS["byte_level"].pieces)))
    assert AnswerTranslation(translator, b"").read(answer)[0].tolist() == ids_of("trimmed", "The dog").tolist()


def test_drafts_end_where_the_speculator_ends():
    translator = Translator(TEXTS["trimmed"], TEXTS["byte_level"])
    drafted = ids_of("trimmed", " brown fox<|endoftext|> more")
    assert translator.drafts(b"The quick", b"", drafted).tolist() == ids_of("byte_level", " brown fox").tolist()


@PAIR
@settings(max_examples=20)
@given(st.lists(text, min_size=1, max_size=4), st.data())
def test_an_answer_is_read_as_it_grows_and_shrinks(speculator, target, texts, data):
    translator = Translator(TEXTS[speculator], TEXTS[target])
    answer = np.concatenate([ids_of(target, text) for text in texts * 8])
    translation = AnswerTranslation(translator, b"assistant\n")
    for _ in range(8):
        size = data.draw(st.integers(0, answer.size))
        text = translator.text(answer[:size])
        read = translation.read(answer[:size])
        if read is None:
            assert len(text) - len(whole(text)) > 3
            continue
        ids, before, partial = read
        assert before.endswith(text[-32:])
        assert text.endswith(partial)
        if speculator in ("demo", "trimmed"):
            assert TEXTS[speculator].text(ids) == text[: len(text) - len(partial)]


def test_a_long_answer_is_not_read_again_from_its_start(monkeypatch):
    translator = Translator(TEXTS["trimmed"], TEXTS["demo"])
    translation, answer = AnswerTranslation(translator, b""), ids_of("demo", "The dog sleeps near the old mill. " * 60)
    sizes, going_on = [], translator.speculator.going_on
    monkeypatch.setattr(translator.speculator, "going_on", lambda a, b: sizes.append(len(b)) or going_on(a, b))
    for size in range(0, answer.size, 5):
        ids, _, _ = translation.read(answer[:size])
        assert TEXTS["trimmed"].text(ids) == TEXTS["demo"].text(answer[:size])
    assert max(sizes) < 2 * SETTLED_AFTER * max(map(len, translator.target.pieces))
    assert max(sizes) < len(TEXTS["demo"].text(answer)) / 2


def test_a_tokenizer_whose_tokens_have_no_certain_text():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="neither byte-level nor SentencePiece"):
        TokenText(PreTrainedTokenizerFast(tokenizer_object=words), "bert")
