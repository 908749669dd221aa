"""Tokens of a text whose beginning is known are those of the whole text, with every kind of tokenizer and text."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from router import known_tokens
from router.known_tokens import KnownTokens

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = {path.stem: path.read_text() for path in FOLDER.rglob("*.jinja")}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<bos>", "</s>"]
SPECIAL += ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<|begin_of_text|>", "<|e"]
CORPUS = [
    "the cat sat on the mat, the end",
    "user assistant system tool 12 345",
    "naïve 東京 <| |> im_start",
    "  a \n\n b\t",
]


def byte_level(**options):
    """As GPT-2, Llama 3 and Qwen."""
    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r" ?\w+|\s+(?!\S)|\s+| ?[^\s\w]+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    made.decoder = decoders.ByteLevel()
    return made, trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def metaspace(scheme):
    """As Llama 2, Mistral and Gemma: the first word, or each one after a special token, gets a space."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"])


def normalized():
    """As older SentencePiece conversions: a normalizer puts a space before each piece."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return made, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"])


KINDS = {
    "byte-level": byte_level,
    "metaspace first": lambda: metaspace("first"),
    "metaspace always": lambda: metaspace("always"),
    "normalized": normalized,
}


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request):
    made, trainer = KINDS[request.param]()
    made.train_from_iterator([text for text in CORPUS for _ in range(5)], trainer)
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    # Kinds of added tokens that read what stands around them.
    made.add_special_tokens([AddedToken("<|left|>", lstrip=True), AddedToken("<|right|>", rstrip=True)])
    made.add_special_tokens(
        [AddedToken("<|word|>", single_word=True), AddedToken("<|eot_id|>x", special=True, normalized=False)]
    )
    made.add_tokens([AddedToken("a<|end_header_id|>x", normalized=False)])
    made.add_tokens(["the cat", AddedToken("mat", normalized=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made)


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


@settings(deadline=None, max_examples=150)
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
    assert len(known._found) == sum(len(held.digests) for held in known._held.values())
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
    assert [held.tokens.ids.size for held in known._held.values()] == [known._size]
    other = turn + "<|im_start|>user another word<|im_end|> x"
    known.tokenize(other)
    assert len(known._held) == 2
    for text in (longer, other):
        assert pieced(known, text) == whole(tokenizer, text)
    assert len(known._found) == sum(len(held.digests) for held in known._held.values())


def test_short_texts_are_not_held(tokenizer):
    known = KnownTokens.of(tokenizer)
    for _ in range(2):
        pieced(known, "<|im_start|>user the cat<|im_end|> the mat and the rest of it")
    assert (known.reused, known._held) == (0, {})


def test_a_tokenizer_without_special_tokens_is_left_alone():
    made, trainer = byte_level()
    made.train_from_iterator(CORPUS, trainer)
    assert KnownTokens.of(PreTrainedTokenizerFast(tokenizer_object=made)) is None
    assert KnownTokens.of(object()) is None
