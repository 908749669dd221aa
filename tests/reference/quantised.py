"""Writes a checkpoint with 4-bit weights and KV scales (compressed-tensors, pack-quantized), as llm-compressor does."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
"""Number of weights with one scale."""


def quantise(path: str, into: str, k_scale: float, v_scale: float) -> None:
    """Quantise the checkpoint in folder `path` into folder `into`, a copy of it.

    Afterwards the weights in `path` are those that `into` stands for, so that `path` is the oracle's checkpoint.
    """
    exact = load_file(Path(path, "model.safetensors"))
    packed: dict[str, torch.Tensor] = {}
    for name, weight in exact.items():
        if weight.dim() != 2 or "layers" not in name:
            packed[name] = weight.half()
            continue
        groups = weight.view(len(weight), -1, GROUP)
        scale = (groups.abs().amax(-1) / 7).half()
        digits = (groups / scale.float()[..., None]).round().clamp(-8, 7)
        exact[name] = (digits * scale.float()[..., None]).view_as(weight)
        nibbles = (digits.view(len(weight), -1, 8) + 8).long() << torch.arange(0, 32, 4)
        prefix = name.removesuffix("weight")
        # The conversion keeps the low 32 bits, as int32 does.
        packed[prefix + "weight_packed"] = nibbles.sum(-1).to(torch.int32)
        packed[prefix + "weight_scale"] = scale
        packed[prefix + "weight_shape"] = torch.tensor(weight.shape)
        if "k_proj" in name:
            attention = prefix.removesuffix("k_proj.")
            packed[attention + "k_scale"], packed[attention + "v_scale"] = (
                torch.tensor([k_scale]),
                torch.tensor([v_scale]),
            )
    save_file(exact, Path(path, "model.safetensors"), metadata={"format": "pt"})
    save_file(packed, Path(into, "model.safetensors"), metadata={"format": "pt"})
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    file = Path(into, "config.json")
    config = json.loads(file.read_text()) | {
        "dtype": "float16",
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head"],
            "kv_cache_scheme": {
                "num_bits": 8,
                "type": "float",
                "symmetric": True,
                "strategy": "tensor",
                "dynamic": False,
            },
        },
    }
    file.write_text(json.dumps(config))
