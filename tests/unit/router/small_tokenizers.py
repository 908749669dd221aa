"""Small tokenizers of the kinds that models have, trained on a few words."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<bos>", "</s>"]
SPECIAL += ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<|begin_of_text|>", "<|e"]
CORPUS = [
    "the cat sat on the mat, the end",
    "user assistant system tool 12 345",
    "naïve 東京 <| |> im_start",
    "  a \n\n b\t",
]


def byte_level(trim_offsets=True, add_prefix_space=False, normalizer=None, before=()):
    """As GPT-2, Llama 3 and Qwen. before: pre-tokenizers before the usual ones."""
    made = Tokenizer(models.BPE())
    if normalizer is not None:
        made.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(r" ?\w+|\s+(?!\S)|\s+| ?[^\s\w]+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*before, split, pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)]
    )
    made.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
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


def trained(made, trainer, special=tuple(SPECIAL)):
    """The tokenizer `made`, with the tokens of `CORPUS` and `special`."""
    made.train_from_iterator([text for text in CORPUS for _ in range(5)], trainer)
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return made


def with_other_added_tokens(made):
    """Kinds of added tokens that read what stands around them, or are inside of another one."""
    made.add_special_tokens([AddedToken("<|left|>", lstrip=True), AddedToken("<|right|>", rstrip=True)])
    made.add_special_tokens(
        [AddedToken("<|word|>", single_word=True), AddedToken("<|eot_id|>x", special=True, normalized=False)]
    )
    made.add_tokens([AddedToken("a<|end_header_id|>x", normalized=False)])
    made.add_tokens(["the cat", AddedToken("mat", normalized=True)])
    return made
