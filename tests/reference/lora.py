"""A random LoRA adapter of a checkpoint, and the checkpoint into which it is merged."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 8, 16
MODULES = ("q_proj", "v_proj", "down_proj")
"""The layers that the adapter changes."""


def build_adapter(model: str, folder: Path, *, seed: int, rank: int = RANK) -> tuple[str, str]:
    """The folders of an adapter in the form of peft, and of the merged model: W + ALPHA / rank * B A."""
    adapter, merged = folder / f"adapter-{seed}", folder / f"merged-{seed}"
    adapter.mkdir()
    shutil.copytree(model, merged)
    generator = torch.Generator().manual_seed(seed)
    weights, change = load_file(merged / "model.safetensors"), {}
    for name, weight in weights.items():
        if any(f".{module}.weight" in name for module in MODULES):
            a = torch.randn(rank, weight.shape[1], generator=generator) / weight.shape[1] ** 0.5
            b = torch.randn(weight.shape[0], rank, generator=generator) * 0.1
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            change |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
            weights[name] = (weight.float() + ALPHA / rank * b @ a).to(weight.dtype)
    save_file(change, adapter / "adapter_model.safetensors")
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "target_modules": list(MODULES), "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": model}))
    return str(adapter), str(merged)
