"""The bench pair: a target and a speculator with Llama architecture and random weights, made when they are needed.

The cost of a prefill does not depend on the values of the weights, so random weights can measure it. The answers mean
nothing. Weights are float32 and follow from a seed. The models are stored in the temporary folder, in a folder named by
a digest of all their settings. The tokenizer is that of the demo pair.
"""

import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from kv_transfer.arrays import Int32Array
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model
from speculator_service.model import model_fingerprint
from speculator_service.scoring.heads import Head, HeadProfile

TOKENIZER = Path(__file__).parents[2] / "demo_models" / "target"
MAX_POSITIONS = 2**18
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_VOCABULARY = 1024
_HEAD_SIZE = 64
_SPECIAL = 8


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model. The hidden size is heads * 64; intermediate is the width of the feed-forward layers."""

    layers: int
    heads: int
    kv_heads: int
    intermediate: int

    @property
    def hidden(self) -> int:
        return self.heads * _HEAD_SIZE

    def __str__(self) -> str:
        return f"{self.layers} layers x {self.hidden}"


TARGET = Shape(layers=12, heads=12, kv_heads=4, intermediate=2048)
SPECULATOR = Shape(layers=2, heads=4, kv_heads=2, intermediate=704)


@dataclass(frozen=True)
class BenchPair:
    """Two model folders with the same tokenizer, and the shapes of the models."""

    target: Path
    speculator: Path
    target_shape: Shape = TARGET
    speculator_shape: Shape = SPECULATOR


def bench_pair(target: Shape = TARGET, speculator: Shape = SPECULATOR, seed: int = 0) -> BenchPair:
    """The pair with these shapes. It is made if it does not exist yet. Raises SkimError without the demo models."""
    return BenchPair(make_model(target, seed), make_model(speculator, seed + 1), target, speculator)


def make_model(shape: Shape, seed: int) -> Path:
    """The folder of a model with this shape, with weights that follow from the seed."""
    if not TOKENIZER.exists():
        raise SkimError("the bench pair takes its tokenizer from demo_models: run it in a clone of the repository")
    settings = {**asdict(shape), "seed": seed, "positions": MAX_POSITIONS, "head_size": _HEAD_SIZE, "form": 1}
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / "skim-bench-models" / name
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=folder.parent))
    _write(shape, seed, making)
    try:
        # Renaming is atomic: a stopped run leaves no partial model, and two runs can make the same model at once.
        making.rename(folder)
    except OSError:
        shutil.rmtree(making)
    return folder


@cache
def usable_ids() -> range:
    """The token ids of the pair's tokenizer, without its special tokens (the first 8)."""
    return range(_SPECIAL, inspect_model(str(TOKENIZER), engine="tokenizer").vocab_size)


def random_prompt(tokens: int, *seed: int) -> Int32Array:
    """Random token ids [tokens] out of `usable_ids`."""
    ids = usable_ids()
    return np.random.default_rng([tokens, *seed]).integers(ids.start, ids.stop, tokens).astype(np.int32)


def every_head(model: Path, shape: Shape) -> HeadProfile:
    """A head profile of a model that `make_model` made: with random weights, one head is as good as another, so all
    heads of the last layer score.
    """
    heads = tuple(Head(layer=shape.layers - 1, head=head) for head in range(shape.heads))
    fingerprint = model_fingerprint(inspect_model(str(model), engine="vllm"))
    return HeadProfile(model=str(shape), fingerprint=fingerprint, question=0.5, last=0.5, heads=heads)


def _write(shape: Shape, seed: int, folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=_HEAD_SIZE,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=1,
        eos_token_id=5,
        tie_word_embeddings=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    # model.save_pretrained would print its own progress bar.
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    weights = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for file in _FILES:
        shutil.copy(TOKENIZER / file, folder)


def prefill_flops(shape: Shape, tokens: int) -> float:
    """Floating-point operations of a prefill of `tokens`: 2 per weight and token, plus causal attention.

    Attention has two products per layer, q·k and weights·v. Each takes 2 * tokens^2 / 2 * hidden operations. The output
    projection onto the vocabulary is left out, because only the last token needs it.
    """
    projections = 2 * shape.hidden * (shape.heads + shape.kv_heads) * _HEAD_SIZE
    weights = shape.layers * (projections + 3 * shape.hidden * shape.intermediate)
    attention = shape.layers * 2 * tokens**2 * shape.hidden
    return 2.0 * weights * tokens + attention


def flop_ratio(pair: BenchPair, tokens: int, keep_rate: float, window: int | None = None) -> float:
    """Operations of the dense prefill, divided by those of the speculator's prefill plus the target's kept tokens.

    window: the speculator reads windows of so many tokens; None: the prompt as a whole. The ratio is an upper bound of
    the speed-up if time is proportional to operations.
    """
    kept = prefill_flops(pair.target_shape, round(tokens * keep_rate))
    parts = tokens / (window or tokens)
    read = parts * prefill_flops(pair.speculator_shape, round(tokens / parts))
    return prefill_flops(pair.target_shape, tokens) / (read + kept)
