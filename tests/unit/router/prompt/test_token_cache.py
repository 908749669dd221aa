"""Tokens of a text whose beginning is known are those of the whole text, with every kind of tokenizer and text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from router.prompt import token_cache as known_tokens
from router.prompt.token_cache import KnownTokens
from tests.unit.router.small_tokenizers import KINDS, SPECIAL, byte_level, trained, with_other_added_tokens

FOLDER = Path(__file__).parents[1] / "templates"
TEMPLATES = {path.stem: path.read_text() for path in FOLDER.rglob("*.jinja")}


@pytest.fixture(scope="module", params=[*KINDS, "byte-level, places by lengths"])
def tokenizer(request):
    if request.param in KINDS:
        return PreTrainedTokenizerFast(tokenizer_object=with_other_added_tokens(trained(*KINDS[request.param]())))
    return PreTrainedTokenizerFast(tokenizer_object=trained(*byte_level(trim_offsets=False)))


PIECES = [
    *SPECIAL,
    "<|left|>",
    "<|right|>",
    "<|word|>",
    "<|eot_id|>x",
    "the cat",
    "mat",
    " ",
    "  ",
    "\n",
    "\n\n",
    "a",
    "x",
]
PIECES += ["the end", "12345", "naïve", "東京", "👍🏽", "<", "|", "<|", "im_end|>", "é", "ﬁ", "▁", "word"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def whole(tokenizer, text):
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoding["input_ids"], [tuple(pair) for pair in encoding["offset_mapping"]]


def pieced(known, text, salt=None):
    ids, offsets = known.tokenize(text, salt)
    return ids.tolist(), [tuple(pair) for pair in offsets.tolist()]


@pytest.fixture
def any_length(monkeypatch):
    monkeypatch.setattr(known_tokens, "MIN_CHARS", 0)


@given(st.lists(TEXTS, min_size=2, max_size=5), st.data())
def test_texts_that_share_beginnings(tokenizer, texts, data):
    known = KnownTokens.of(tokenizer)
    before = known_tokens.MIN_CHARS
    known_tokens.MIN_CHARS = 0
    try:
        text = ""
        for added in texts:
            text = text[: data.draw(st.integers(0, len(text)))] + added if data.draw(st.booleans()) else text + added
            assert pieced(known, text) == whole(tokenizer, text)
    finally:
        known_tokens.MIN_CHARS = before


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_turns_of_a_conversation(tokenizer, template, any_length):
    known, messages = KnownTokens.of(tokenizer), []
    for turn in range(4):
        messages += [{"role": "user", "content": f"{'the cat sat on the mat. ' * 20}And {turn}?"}]
        [text], _ = render_jinja_template(
            [messages],
            chat_template=TEMPLATES[template],
            add_generation_prompt=True,
            bos_token="<bos>",
            eos_token="</s>",
        )
        assert pieced(known, text) == whole(tokenizer, text)
        messages += [{"role": "assistant", "content": f"<think>\nwhy\n</think>\n\nThe end {turn}."}]
    assert known.reused > 0


def test_a_special_token_that_turns_out_to_be_inside_of_a_longer_one(tokenizer, any_length):
    known = KnownTokens.of(tokenizer)
    for text in ("the a<|end_header_id|>", "the a<|end_header_id|>x and more"):
        assert pieced(known, text) == whole(tokenizer, text)


def test_texts_of_different_salts_do_not_know_each_other(tokenizer, any_length):
    known, text = KnownTokens.of(tokenizer), "<|im_start|>user the cat<|im_end|> the mat and the rest of it"
    for salt in (None, "", "a", "b"):
        assert pieced(known, text, salt) == whole(tokenizer, text)
        assert known.reused == 0
    pieced(known, text, "a")
    assert known.reused > 0


def test_what_is_held_is_bounded_and_the_oldest_goes_first(tokenizer, any_length):
    known = KnownTokens.of(tokenizer, max_tokens=100)
    texts = [f"<|im_start|>{number} {'the cat ' * 10}<|im_end|> and more text after it" for number in range(20)]
    for text in texts:
        known.tokenize(text)
        assert known._size <= 100
    assert len(known._found) == sum(len(held.digests) for held in known._held)
    known.tokenize(texts[0])
    assert known.reused == 0
    known.tokenize(texts[-1])
    assert known.reused > 0


def test_a_repeated_text_and_the_turns_before_are_held_once(tokenizer, any_length):
    """The memory is for other conversations. What two texts share is found in the later one; the rest in each."""
    known = KnownTokens.of(tokenizer)
    turn = "<|im_start|>user the cat<|im_end|> the mat"
    for _ in range(5):
        known.tokenize(turn)
    longer = turn + "<|im_start|>assistant the end<|im_end|> and the rest"
    for _ in range(5):
        known.tokenize(longer)
    assert [held.tokens.ids.size for held in known._held] == [known._size]
    other = turn + "<|im_start|>user another word<|im_end|> x"
    known.tokenize(other)
    assert len(known._held) == 2
    for text in (longer, other):
        assert pieced(known, text) == whole(tokenizer, text)
    assert len(known._found) == sum(len(held.digests) for held in known._held)


def test_short_texts_are_not_held(tokenizer):
    known = KnownTokens.of(tokenizer)
    for _ in range(2):
        pieced(known, "<|im_start|>user the cat<|im_end|> the mat and the rest of it")
    assert (known.reused, len(known._held)) == (0, 0)


def test_a_tokenizer_without_special_tokens_is_left_alone():
    made = trained(*byte_level(), special=())
    assert KnownTokens.of(PreTrainedTokenizerFast(tokenizer_object=made)) is None
    assert KnownTokens.of(object()) is None
