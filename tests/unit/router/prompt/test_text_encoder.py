"""The places of tokens are those that the tokenizer gives, whether they are made from its lengths or by itself."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from router.prompt.text_encoder import TextEncoder
from tests.unit.router.small_tokenizers import KINDS, SPECIAL, byte_level, trained, with_other_added_tokens

DEMO = Path(__file__).parents[4] / "demo_models" / "target" / "tokenizer.json"


class Watched:
    """A tokenizer that notes which of its methods are asked for."""

    def __init__(self, backend):
        self.backend, self.asked = backend, []

    def __getattr__(self, name):
        self.asked.append(name)
        return getattr(self.backend, name)


def cut_only(**options):
    return byte_level(trim_offsets=False, **options)


def gpt2():
    made, trainer = cut_only()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made, trainer


def word_piece():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"])


def without_some_bytes():
    made, _ = cut_only()
    return made, trainers.BpeTrainer(vocab_size=400)


def with_suffix():
    made, _ = cut_only()
    made.model = models.BPE(end_of_word_suffix="</w>")
    return made, trainers.BpeTrainer(vocab_size=400, end_of_word_suffix="</w>")


def with_added(**options):
    made = trained(*cut_only())
    made.add_special_tokens([AddedToken("<|added|>", **options)])
    return made


def with_every_kind_of_added_token():
    return with_other_added_tokens(trained(*cut_only()))


BY_LENGTHS = {
    "demo": lambda: Tokenizer.from_file(str(DEMO)),
    "byte-level": lambda: trained(*cut_only()),
    "as GPT-2": lambda: trained(*gpt2()),
    "NFC, as Qwen": lambda: trained(*cut_only(normalizer=normalizers.NFC())),
    "single digits": lambda: trained(*cut_only(before=[pre_tokenizers.Digits(individual_digits=True)])),
    "added words": lambda: with_added(single_word=True, normalized=True),
}
BY_TOKENIZER = {
    **{kind: lambda make=make: trained(*make()) for kind, make in KINDS.items()},  # byte-level: offsets are trimmed
    "lowercase": lambda: trained(*cut_only(normalizer=normalizers.Lowercase())),
    "replaces what no sample has": lambda: trained(*cut_only(normalizer=normalizers.Replace("qqq", "z"))),
    "prefix space": lambda: trained(*cut_only(add_prefix_space=True)),
    "prefix space, trimmed": lambda: trained(*byte_level(add_prefix_space=True)),
    "drops spaces": lambda: trained(*cut_only(before=[pre_tokenizers.WhitespaceSplit()])),
    "drops a letter": lambda: trained(*cut_only(before=[pre_tokenizers.Split("e", "removed")])),
    "WordPiece": lambda: trained(*word_piece()),
    "without some bytes": lambda: trained(*without_some_bytes()),
    "suffix": lambda: trained(*with_suffix()),
    "takes spaces before": lambda: with_added(lstrip=True),
    "takes spaces after": lambda: with_added(rstrip=True),
    "every kind of added token": with_every_kind_of_added_token,
}

PIECES = [*SPECIAL, "<|added|>", "<|user|>", "<|assistant|>", "<|end|>", "<|left|>", "<|right|>", "<|word|>", "the cat"]
PIECES += ["The", " the end", "mat", "12345", " ", "    ", "\n", "\r\n", "\t", "\n\n  ", "<|", "|>", "    return x\n"]
ASCII = st.characters(max_codepoint=127)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(ASCII, max_size=12), max_size=12).map("".join)


def encoded(watched, encoder, text):
    """The tokens, which are those of the tokenizer itself, and its methods that were used."""
    [wanted] = watched.backend.encode_batch([text], add_special_tokens=False)
    watched.asked.clear()
    ids, offsets = encoder.encode(text)
    assert (ids.dtype, offsets.dtype, offsets.shape) == ("int32", "int32", (ids.size, 2))
    assert ids.tolist() == wanted.ids
    assert [tuple(pair) for pair in offsets.tolist()] == wanted.offsets
    return watched.asked


@pytest.fixture(scope="module", params=list(BY_LENGTHS))
def by_lengths(request):
    watched = Watched(BY_LENGTHS[request.param]())
    return watched, TextEncoder(watched)


@pytest.fixture(scope="module", params=list(BY_TOKENIZER))
def by_tokenizer(request):
    watched = Watched(BY_TOKENIZER[request.param]())
    return watched, TextEncoder(watched)


@given(TEXTS)
def test_ascii_texts_get_their_places_from_lengths(by_lengths, text):
    assert encoded(*by_lengths, text) == ["encode_batch_fast"]


@given(TEXTS, st.text(st.characters(min_codepoint=128, exclude_categories=["Cs"]), min_size=1, max_size=3), TEXTS)
def test_other_texts_get_their_places_from_the_tokenizer(by_lengths, before, other, after):
    assert encoded(*by_lengths, before + other + after) == ["encode_batch"]


@given(TEXTS)
def test_tokenizers_whose_places_do_not_follow_from_lengths(by_tokenizer, text):
    assert encoded(*by_tokenizer, text) == ["encode_batch"]


def test_a_text_of_which_the_tokenizer_drops_something():
    """No sample shows it."""
    rare = pre_tokenizers.Split(Regex("q{5}"), "removed")
    watched = Watched(trained(*cut_only(before=[rare])))
    encoder = TextEncoder(watched)
    assert encoded(watched, encoder, "the cat") == ["encode_batch_fast"]
    assert encoded(watched, encoder, "the qqqqq cat") == ["encode_batch_fast", "encode_batch"]
