"""The size of a model and its longest prompt, from its config alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skim_common.models.costs import expert_count
from skim_common.models.info import position_count


@dataclass(frozen=True)
class ModelSize:
    """positions: longest prompt plus answer. parameters: all of them. per_token: those that compute one prompt token.

    per_token is what prefill costs. It leaves out the embedding table, the output head, and the experts that do not
    compute the token. Quantised weights are counted as the numbers that they stand for. Both counts are None if
    transformers cannot build the model.
    """

    positions: int
    parameters: int | None
    per_token: int | None


def model_size(folder: str | Path) -> ModelSize:
    """The size of the model in `folder`, whose config.json transformers can read. No weight is read."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return ModelSize(position_count(config.get_text_config()), *parameter_counts(config))


def parameter_counts(config: Any) -> tuple[int, int] | tuple[None, None]:
    """ModelSize's `parameters` and `per_token` of a transformers config. Tied embeddings count once.

    The model is built on PyTorch's meta device, which takes no memory.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        embedding = model.get_input_embeddings().weight
    except Exception:  # transformers raises many kinds, from ImportError to KeyError
        return None, None
    layers = {name: weight.numel() for name, weight in model.base_model.named_parameters() if weight is not embedding}
    experts = sum(count for name, count in layers.items() if ".experts." in name)
    idle = round(experts * (1 - _active_share(config.get_text_config())))
    return sum(weight.numel() for weight in model.parameters()), sum(layers.values()) - idle


def _active_share(text: Any) -> float:
    """The share of the routed experts that compute one token; 1 for a model without experts."""
    experts = expert_count(text)
    active = getattr(text, "num_experts_per_tok", None)
    return active / experts if active and experts else 1.0
