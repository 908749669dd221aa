"""Small tokenizers of the kinds that models have, trained here, and model folders that use them."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

DEMO = Path(__file__).parents[2] / "demo_models" / "speculator"

_TEXT = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps near the old mill of the town.",
    "In 1987 the harbour was rebuilt; 42 lamps stand along the quay, and naïve visitors count them twice.",
    "def read(path):\n    with open(path) as file:\n        return file.read()\n",
    "Größe, façade, 東京の図書館, привет мир, 👍🏽 and e\N{COMBINING ACUTE ACCENT}.",
    "user\nassistant\nsystem\nYou are a helpful assistant.\n\n",
] * 20
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
_SPECIAL = ["<|im_start|>", "<|im_end|>", "<|only_here|>"]


def _byte_level() -> Tokenizer:
    """As in Qwen: NFC, its pattern, byte-level BPE, chat tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=_SPECIAL
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def _trimmed() -> Tokenizer:
    """As in GPT-2: byte-level BPE whose spans leave out leading spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"]
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """As in Llama 2: SentencePiece's BPE with bytes for unknown characters, a space before the text, and a BOS."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=special, limit_alphabet=60)
    tokenizer.train_from_iterator([text.replace(" ", "▁") for text in _TEXT], trainer)
    return _with_bytes_as_tokens(tokenizer)


def _unigram() -> Tokenizer:
    """As in T5 and Gemma: SentencePiece's unigram model, with a normaliser that changes the length of text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>", "<s>"], unk_token="<unk>")
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def _with_bytes_as_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer makes special tokens of the bytes; in a model they are ordinary ones."""
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if not token["content"].startswith("<0x")]
    raw["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return Tokenizer.from_str(json.dumps(raw))


_MAKERS = {"byte_level": _byte_level, "trimmed": _trimmed, "byte_fallback": _byte_fallback, "unigram": _unigram}
KINDS = ("demo", *_MAKERS)
_BOS = {"byte_fallback": "<s>"}


@cache
def tokenizer_of(kind: str) -> Any:
    """A transformers tokenizer of this kind."""
    if kind == "demo":
        return AutoTokenizer.from_pretrained(DEMO)
    return PreTrainedTokenizerFast(
        tokenizer_object=_MAKERS[kind](),
        bos_token=_BOS.get(kind),
        chat_template=_CHAT,
        clean_up_tokenization_spaces=False,
    )


def give_tokenizer(folder: Path, kind: str) -> str:
    """Put the tokenizer of this kind into a model's folder, in place of its own. Returns the folder."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    tokenizer_of(kind).save_pretrained(folder)
    return str(folder)


def model_without_weights(folder: Path, kind: str) -> str:
    """A folder with the demo speculator's config and the tokenizer of this kind, for mock engines."""
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return give_tokenizer(folder, kind)


def renumbered_model(source: Path, folder: Path) -> str:
    """A copy of a model folder whose ordinary tokens have other ids, in tokenizer and weights. Returns `folder`.

    It computes exactly what the source computes, but token ids mean something else.
    """
    shutil.copytree(source, folder)
    raw = json.loads((folder / "tokenizer.json").read_text())
    fixed = {token["id"] for token in raw["added_tokens"]}
    ids = [number for number in raw["model"]["vocab"].values() if number not in fixed]
    new = dict(zip(ids, ids[7:] + ids[:7], strict=True))
    raw["model"]["vocab"] = {token: new.get(number, number) for token, number in raw["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    weights = load_file(folder / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & weights.keys():
        rows = weights[name].clone()
        for old, number in new.items():
            rows[number] = weights[name][old]
        weights[name] = rows
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)
