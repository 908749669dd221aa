"""The demo pair's tokenizer and chat template. It has 1024 tokens: known words, two-digit numbers and bytes.

Words outside the vocabulary are encoded as bytes, so any text can be encoded.
"""

import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from demo_models import documents as demo

VOCAB_SIZE = 1024
MAX_POSITIONS = 32768
SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
PAD, BOS, USER, ASSISTANT, SYSTEM, END = range(6)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<|assistant|> {{ m['content']|trim }}<|end|>"
    "{% elif m['role'] == 'system' %}<|system|> {{ m['content']|trim }}"
    "{% else %}<|user|> {{ m['content']|trim }}"
    "{% if (not loop.last) or add_generation_prompt %}<|end|>{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# More words for the records in training: with a wide choice, a model cannot rely on single words.
MORE_ADJECTIVES = demo.words(
    """bright small large round square smooth rough thin thick tall deep shallow warm cold sweet bitter sharp blunt
    plain fancy simple modern royal noble brave clever lazy eager calm wild tame lucky famous secret local distant
    foreign double single triple early late rapid slow soft hard loud silent dark pale pink purple orange brown black
    yellow red cotton woolen leather paper rubber plastic metal iron steel brass nickel granite pearl coral glass clay
    oaken carved twisted tangled stitched printed sealed locked open closed spare cheap costly rare common steady shaky
    loose tight clean muddy sandy rocky leafy mossy shiny faded cracked bent"""
)
MORE_NOUNS = demo.words(
    """table chair carpet curtain window mattress cabinet drawer shelf desk stool sofa cradle cushion napkin plate fork
    spoon knife teapot pitcher jar kettledrum flute piano guitar harp cello banjo bugle organ rocket engine tractor
    bicycle canoe ferry tram truck trailer sled carriage scooter tunnel fountain ladle pencil crayon notebook envelope
    ticket stamp coin wallet purse necklace bracelet ring crown scepter sword shield arrow cannon telescope microscope
    magnet battery lamp torch mask glove scarf jacket sweater sandal boot slipper umbrella suitcase backpack tent rope
    chain pulley lever spring wheel axle bolt screw nail hinge gate fence brick tile plank beam pillar ribbon needle
    thimble thread spindle loom quilt towel sponge broom mop rake plough sickle lawnmower kite marionette doll domino
    chessboard dice trophy medal banner flag globe atlas diary calendar"""
)
_OTHER_WORDS = demo.words(
    """Question Page The What You answer questions notes Read first then give short Summary Hello Notes Note I do not
    know Thank you please user help are or it Answer Yes No last Write Page Tell me Please say Do Give Show Could find
    need We want can Can tell Now here"""
)


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each of the 256 bytes (GPT-2's table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_LETTERS = _byte_letters()


def spell(piece: str) -> str:
    """`piece` as byte-level BPE writes it: one printable letter per byte."""
    return "".join(_LETTERS[byte] for byte in piece.encode())


def build_vocabulary() -> dict[str, int]:
    """Token text (in byte-level letters) to id: special tokens, all bytes, words with a leading space, numbers."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    for letter in _LETTERS:
        vocabulary[letter] = len(vocabulary)
    known = [*demo.ADJECTIVES, *demo.NOUNS, *demo.ATTRIBUTES]
    for choices in demo.FILLER_WORDS.values():
        known.extend(choices)
    for template in (*demo.FILLER_SENTENCES, *demo.DISTRACTOR_SENTENCES, demo.Record("", "", "", "").sentence()):
        known.extend(re.findall(r"[A-Za-z]+", re.sub(r"{\w+}", "", template)))
    known.extend((*_OTHER_WORDS, *MORE_ADJECTIVES, *MORE_NOUNS))
    pieces = [f" {word}" for word in known] + ["Question", "The", "What", "Page"]
    pieces += [f" {n:02d}" for n in range(100)] + [f"{n:02d}" for n in range(100)] + [f" {n}" for n in range(10)]
    for piece in pieces:
        vocabulary.setdefault(spell(piece), len(vocabulary))
    if len(vocabulary) > VOCAB_SIZE:
        raise ValueError(f"{len(vocabulary)} tokens do not fit a vocabulary of {VOCAB_SIZE}: remove some words")
    return vocabulary


VOCABULARY = build_vocabulary()
_PIECES = re.compile(demo.PIECE_PATTERN)
_ids_of_piece: dict[str, list[int]] = {}


def encode(text: str) -> list[int]:
    """Token ids of `text` without special tokens: equal to the exported tokenizer's, and fast enough for training."""
    ids: list[int] = []
    for piece in _PIECES.findall(text):
        known = _ids_of_piece.get(piece)
        if known is None:
            token = spell(piece)
            known = [VOCABULARY[token]] if token in VOCABULARY else [VOCABULARY[letter] for letter in token]
            _ids_of_piece[piece] = known
        ids += known
    return ids


def hf_tokenizer() -> PreTrainedTokenizerFast:
    """The same tokenizer in the form that transformers and vLLM load, with the chat template."""
    tokenizer = Tokenizer(models.BPE(vocab=dict(VOCABULARY), merges=[], ignore_merges=True, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(demo.PIECE_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[BOS],
        eos_token=SPECIAL_TOKENS[END],
        pad_token=SPECIAL_TOKENS[PAD],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped
