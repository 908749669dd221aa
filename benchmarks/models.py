"""The bench pair: a Llama-shaped target and speculator of random weights, made on the spot.

What a prefill costs does not depend on what the weights say, so random ones measure it; answers mean nothing. Weights
are seeded, float32 and kept in the temporary folder, by a digest of all they follow from. The tokenizer is the demo
pair's.
"""

import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from kv_transfer.errors import SkimError
from kv_transfer.messages import Int32Array
from kv_transfer.model_info import inspect_model

TOKENIZER = Path(__file__).parents[1] / "demo_models" / "target"
MAX_POSITIONS = 2**18
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_VOCABULARY = 1024
_HEAD_SIZE = 64
_SPECIAL = 8


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes. hidden = heads * 64; the feed-forward layer is intermediate wide."""

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
class Pair:
    """Two model folders with one tokenizer, and their shapes."""

    target: Path
    speculator: Path
    target_shape: Shape = TARGET
    speculator_shape: Shape = SPECULATOR


def bench_pair(target: Shape = TARGET, speculator: Shape = SPECULATOR, seed: int = 0) -> Pair:
    """The pair of these shapes, made if it is not there yet. Raises SkimError without the demo models."""
    return Pair(make_model(target, seed), make_model(speculator, seed + 1), target, speculator)


def make_model(shape: Shape, seed: int) -> Path:
    """Folder of a model of this shape with weights that follow from the seed."""
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
        # At once or not at all: a run that is stopped leaves no half model, and two runs may make the same one.
        making.rename(folder)
    except OSError:
        shutil.rmtree(making)
    return folder


def random_prompt(tokens: int, *seed: int) -> Int32Array:
    """Token ids [tokens] of the pair's tokenizer but for its first ones, which are special."""
    vocabulary = inspect_model(str(TOKENIZER), engine="tokenizer").vocab_size
    return np.random.default_rng([tokens, *seed]).integers(_SPECIAL, vocabulary, tokens).astype(np.int32)


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
    # Not save_pretrained, which draws a bar of its own for the weights.
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    weights = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for file in _FILES:
        shutil.copy(TOKENIZER / file, folder)


def prefill_flops(shape: Shape, tokens: int) -> float:
    """Floating-point operations of reading `tokens`: 2 per weight and token, and causal attention's 2 products.

    Attention grows with the square of the length: q·k and weights·v are 2 * tokens^2 / 2 * hidden each, per layer. The
    vocabulary's rows are left out: only the last token needs them.
    """
    projections = 2 * shape.hidden * (shape.heads + shape.kv_heads) * _HEAD_SIZE
    weights = shape.layers * (projections + 3 * shape.hidden * shape.intermediate)
    attention = shape.layers * 2 * tokens**2 * shape.hidden
    return 2.0 * weights * tokens + attention


def flop_ratio(pair: Pair, tokens: int, keep_rate: float) -> float:
    """How many times the operations of speculator plus kept tokens the dense prefill takes: the best there could be."""
    kept = prefill_flops(pair.target_shape, round(tokens * keep_rate))
    return prefill_flops(pair.target_shape, tokens) / (prefill_flops(pair.speculator_shape, tokens) + kept)
