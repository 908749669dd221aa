"""What a speculator's model must be, and by what it is known again, in whatever folder and however quantised."""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from skim_common.errors import ModelError
from skim_common.models.info import ModelInfo, text_config
from skim_common.models.source import local_folder

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")


def window_of_all_layers(text: Any) -> int | None:
    """The sliding window of a text model whose layers all have one, by its transformers config; else None."""
    window = getattr(text, "sliding_window", None)
    layer_types = getattr(text, "layer_types", None)
    # Without layer_types (Mistral) the window holds for all layers; with layer_types (Qwen2) for those listed.
    listed = set(layer_types) == {"sliding_attention"} if layer_types else getattr(text, "use_sliding_window", True)
    return window if window and listed else None


def check_speculator(path: str, max_model_len: int) -> None:
    """Raise ModelError if no layer attends to the whole prompt. max_model_len: limit for prompt plus answer."""
    text = text_config(path)
    window, layer_types = window_of_all_layers(text), set(getattr(text, "layer_types", None) or ())
    if getattr(text, "index_topk", None):
        reason = f"sparse attention (index_topk {text.index_topk})"
    elif window is not None and max_model_len > window:
        reason = (
            f"sliding-window attention in every layer; set max_model_len to at most {window}, where its window covers"
            " the whole prompt"
        )
    elif window is None and layer_types and not layer_types & {"full_attention", "hybrid"}:
        reason = f"only layers of type {', '.join(sorted(layer_types))}"
    else:
        return
    raise ModelError(f"model {path} is not supported yet as a speculator: it has {reason}")


def model_fingerprint(model: ModelInfo) -> str:
    """Hex SHA-256 of the architecture, SIZES of the config, and the weights of the norms outside of the layers.

    Quantised copies of a model have these norms unchanged, perhaps in another float type, so they are rounded to
    bfloat16. Further training changes them. Weights of a hub model are downloaded. Raises ModelError for a model that
    has no such norms in safetensors.
    """
    text = text_config(model.path)
    norms = _norms(Path(local_folder(model.path, weights=True)))
    if not norms:
        raise ModelError(f"model {model.path} has no norm outside of its layers in safetensors: it has no fingerprint")
    sizes = [getattr(text, name, None) for name in SIZES]
    digest = hashlib.sha256(json.dumps([model.architecture, *sizes]).encode())
    for name in sorted(norms):
        digest.update(name.encode() + norms[name])
    return digest.hexdigest()


def _norms(folder: Path) -> dict[str, bytes]:
    """The one-dimensional weights whose names have no number of a layer, by name, as float32 of bfloat16 values."""
    found = {}
    for file in _files(folder):
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (no mapping)
                    alone = name.endswith(".weight") and not any(part.isdigit() for part in name.split("."))
                    if alone and len(tensors.get_slice(name).get_shape()) == 1:
                        found[name] = tensors.get_tensor(name).bfloat16().float().numpy().tobytes()
        except (OSError, SafetensorError) as error:
            raise ModelError(f"model {folder}: {file.name} cannot be read ({error})") from None
    return found


def _files(folder: Path) -> list[Path]:
    """The files that the index names, or all; a folder may hold a second copy of the weights in another layout."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return sorted({folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
