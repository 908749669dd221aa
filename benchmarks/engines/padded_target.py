"""A padded target: it gives the same answers as the original target, at the cost of a deeper model.

The bundled target is so small that one draft costs a third of a target step; in real pairs it costs a few percent. The
added layers are copies of the model's own layers, with the projections that write to the residual stream (o_proj,
down_proj) set to zero. Such a layer reads its weights, attends over its own KV cache and multiplies like any other
layer, and then adds 0.0, which changes no bit of the logits. So the acceptance is that of the original pair, and the
time of a step is that of a deeper model.

A padded target is not a larger model: it answers no better. A better target might accept fewer of the same drafts.
"""

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from skim_common.errors import SkimError

_COPIED = ("tokenizer*.json", "chat_template.jinja", "generation_config.json")


def pad_target(source: Path, folder: Path, layers: int) -> int:
    """Write the model in `source`, padded to `layers` decoder layers, into `folder`. Returns its number of parameters.

    The decoder layers must have self_attn.o_proj and mlp.down_proj (Llama, Mistral, Qwen). Raises SkimError for other
    models, and for a model that already has more layers.
    """
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    own = getattr(model.get_decoder(), "layers", None)
    if own is None or not all(hasattr(o, "self_attn") and hasattr(getattr(o, "mlp", None), "down_proj") for o in own):
        raise SkimError(f"the model in {source} cannot be padded: it has no layers with o_proj and down_proj")
    had = len(own)
    if layers < had:
        raise SkimError(f"the target has {had} layers and cannot be padded to {layers}: ask for more")
    own.extend(_idle_copy(own[index % had], index) for index in range(had, layers))
    model.config.num_hidden_layers = layers
    if kinds := getattr(model.config, "layer_types", None):
        model.config.layer_types = [kinds[index % had] for index in range(layers)]
    model.save_pretrained(folder)
    for pattern in _COPIED:
        for file in source.glob(pattern):
            shutil.copy(file, folder)
    return sum(parameter.numel() for parameter in model.parameters())


def _idle_copy(layer: Any, index: int) -> Any:
    idle = copy.deepcopy(layer)
    idle.self_attn.layer_idx = index
    for projection in (idle.self_attn.o_proj, idle.mlp.down_proj):
        for parameter in projection.parameters():
            torch.nn.init.zeros_(parameter)
    return idle
