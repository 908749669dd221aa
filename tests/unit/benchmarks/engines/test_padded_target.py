"""A padded target has exactly the logits of the original. The control: a layer that adds something changes them."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.engines.padded_target import pad_target
from skim_common.errors import SkimError
from tests.reference.models import build_model, random_prompt

IDS = torch.tensor([random_prompt(80, seed=1)])


def logits(folder: Path, **changed: float) -> torch.Tensor:
    """The float32 logits at every position of IDS. changed: projections of the last layer, and the value to fill."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, value in changed.items():
        torch.nn.init.constant_(model.get_submodule(f"model.layers.{len(model.model.layers) - 1}.{name}").weight, value)
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_logits_are_the_originals(tmp_path: Path, family) -> None:
    source, padded = Path(build_model(tmp_path / "own", family)), tmp_path / "padded"
    parameters = pad_target(source, padded, 6)
    # On a busy machine, the first forward of a process differed by 0.003 once, from all 59 that followed.
    logits(source)
    assert torch.equal(logits(padded), logits(source))
    model = AutoModelForCausalLM.from_pretrained(padded)
    assert len(model.model.layers) == model.config.num_hidden_layers == 6
    assert sum(p.numel() for p in model.parameters()) == parameters
    # The added layers are not empty: they have the keys and values of real layers.
    assert all(layer.self_attn.k_proj.weight.abs().sum() > 0 for layer in model.model.layers)
    assert AutoTokenizer.from_pretrained(padded).get_vocab() == AutoTokenizer.from_pretrained(source).get_vocab()


@pytest.mark.parametrize("projection", ["self_attn.o_proj", "mlp.down_proj"])
def test_a_layer_that_adds_something_is_seen(tmp_path: Path, projection: str) -> None:
    source, padded = Path(build_model(tmp_path / "own", "llama")), tmp_path / "padded"
    pad_target(source, padded, 3)
    assert not torch.equal(logits(padded, **{projection: 1e-3}), logits(source))


def test_fewer_layers_than_there_are(tmp_path: Path) -> None:
    source = Path(build_model(tmp_path / "own", "llama"))
    with pytest.raises(SkimError, match="has 2 layers and cannot be padded to 1"):
        pad_target(source, tmp_path / "padded", 1)
