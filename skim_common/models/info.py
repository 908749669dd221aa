"""The facts of a model that a pool needs before it starts: limits, vocabulary, and whether two models fit together.

Only config.json and the tokenizer are read: no weights and no engine. The network is used only for a model of the hub
whose small files are not in the cache. Every error is one line that names the model and the reason.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skim_common.errors import ModelError, one_line
from skim_common.models.costs import LINEAR, ReadCost, read_cost
from skim_common.models.source import local_folder


@dataclass(frozen=True, slots=True, eq=False)
class ModelInfo:
    """A pool's model, as reported at start.

    path: a folder or a hub name. fingerprint: hex SHA-256 of the tokenizer's whole vocabulary. max_model_len: the
    engine's limit for prompt plus answer. max_position: as of `position_count`. cache_tokens: tokens that the engine's
    prefix cache can hold; 0 without one. has_head_profile: whether a speculator can score by retrieval heads.
    gain_over_words: the share of people's evidence that its heads keep more than words alone; None if not measured.
    """

    path: str
    architecture: str
    vocab_size: int
    fingerprint: str
    max_model_len: int
    max_position: int
    engine: str
    read_cost: ReadCost = LINEAR
    cache_tokens: int = 0
    has_head_profile: bool = False
    gain_over_words: float | None = None


YARN = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""RoPE types whose table is a multiple of the original one. vLLM's DeepSeek models rename yarn to the others."""

CACHES_BY_POSITION = ("DeepseekV4", "Dots3Note", "HYV4", "Inkling", "Qwen4")
"""Architectures of vLLM 0.29 whose compressed or convolution caches are addressed by position. By reading."""

TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab.*", "tekken.json", "*.tiktoken")


def inspect_model(
    path: str, *, engine: str, max_model_len: int | None = None, overrides: Mapping[str, Any] | None = None
) -> ModelInfo:
    """The facts of a model, a folder or a hub name, for a pool that runs it with `engine`.

    max_model_len: limit for prompt plus answer; the default is the model's number of positions (`position_count`).
    overrides: attributes in place of those of config.json, as vLLM's option `hf_overrides`.
    Raises ModelError if the folder holds no usable causal language model, or if max_model_len exceeds its positions.
    """
    if not isinstance(overrides or {}, Mapping):
        raise ModelError(f"model {path}: hf_overrides must be a mapping of fields of config.json, not {overrides!r}")
    folder = Path(local_folder(path, weights=False))
    raw = _read_config_file(folder)
    for name in map(str, raw.get("architectures") or ()):
        if name.startswith(CACHES_BY_POSITION):
            raise ModelError(
                f"model {path} is not supported: {name} finds entries of its caches by position, and restored positions"
                " would address other entries"
            )
    config = _load_config(folder, raw)
    _override(config, overrides or {})
    text, architecture = config.get_text_config(), _causal_architecture(folder, raw)
    max_position = position_count(text)
    if not max_position:
        raise ModelError(
            f"model {path}: config.json gives no max_position_embeddings, so its longest prompt is unknown"
        )
    if max_model_len is not None and not (isinstance(max_model_len, int) and 1 <= max_model_len <= max_position):
        raise ModelError(
            f"model {path}: max_model_len must be from 1 to {max_position}, the positions the model was made for"
            f" (max_position_embeddings, with the RoPE scaling of config.json), not {max_model_len!r}"
        )
    vocabulary: dict[str, int] = load_tokenizer(path).get_vocab()
    words = json.dumps([len(vocabulary), sorted(vocabulary.items())])
    return ModelInfo(
        path=path,
        architecture=architecture,
        # Models pad their embedding tables, tokenizers do not: only ids below both sizes are valid.
        vocab_size=min(text.vocab_size, max(vocabulary.values()) + 1),
        fingerprint=hashlib.sha256(words.encode("ascii")).hexdigest(),
        max_model_len=max_model_len or max_position,
        max_position=max_position,
        engine=engine,
        read_cost=read_cost(text),
    )


def _override(config: Any, overrides: Mapping[str, Any], *, nested: bool = False) -> None:
    """As vLLM's ModelConfig: a mapping changes the part of the config that it names; any other value replaces one."""
    for name, value in overrides.items():
        part = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
        if isinstance(value, Mapping) and (hasattr(part, "to_dict") or (nested and isinstance(part, dict))):
            _override(part, value, nested=True)
        elif isinstance(config, dict):
            config[name] = value
        else:
            setattr(config, name, value)


def position_count(text: Any) -> int:
    """The number of positions of a text model with this transformers config; 0 if the config does not say.

    It is the length of vLLM's rotary table (vllm.model_executor.layers.rotary_embedding), the shortest if layers have
    several. YaRN and linear scaling lengthen the table. In llama3 and longrope configs, max_position_embeddings is the
    scaled length. With dynamic scaling, vLLM's ModelConfig derives more positions than its table has.
    """
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return 0
    rope = getattr(text, "rope_parameters", None) or {}
    tables = []
    for part in [part for part in rope.values() if isinstance(part, dict)] or [rope]:  # by type of layer
        kind, factor = part.get("rope_type"), part.get("factor") or 1.0
        if kind in YARN:
            tables.append(int((part.get("original_max_position_embeddings") or positions) * factor))
        else:
            tables.append(int(positions * factor) if kind == "linear" else positions)
    return min(tables)


def longrope_original(text: Any) -> int | None:
    """The length up to which a longrope model has its short factors; None for all other models. vLLM takes the long
    ones if max_model_len is above it (Phi3LongRoPEScaledRotaryEmbedding), transformers by the last position read."""
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None
    original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    return original if isinstance(original, int) else None


def check_pair(speculator: ModelInfo, target: ModelInfo) -> None:
    """Raise ModelError unless token ids mean the same to both pools. A speculator with another tokenizer reports the
    target's vocabulary (`speculator_service.translation`)."""
    if not same_tokens(speculator, target):
        raise ModelError(
            f"speculator {speculator.path} and target {target.path} have different tokenizers (fingerprints"
            f" {speculator.fingerprint[:12]} and {target.fingerprint[:12]}), and the speculator did not find the"
            " target's on its machine; put the target's config and tokenizer there, at the same path"
        )


def same_tokens(speculator: ModelInfo, target: ModelInfo) -> bool:
    """Whether both models have one tokenizer. Raises ModelError if they have, but not for the same number of tokens."""
    if speculator.fingerprint != target.fingerprint:
        return False
    if speculator.vocab_size != target.vocab_size:
        raise ModelError(
            f"speculator {speculator.path} and target {target.path} have different vocabularies"
            f" ({speculator.vocab_size} and {target.vocab_size} tokens, fingerprints {speculator.fingerprint[:12]} and"
            f" {target.fingerprint[:12]}); choose two models of one family"
        )
    return True


def text_config(path: str) -> Any:
    """The transformers config of the model's text part."""
    folder = Path(local_folder(path, weights=False))
    return _load_config(folder, _read_config_file(folder)).get_text_config()


def _read_config_file(folder: Path) -> dict[str, Any]:
    """The content of config.json. Raises ModelError with a readable reason for everything that can go wrong."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing = "has no config.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"model folder {folder} {missing}") from None
    except OSError as e:
        raise ModelError(f"model folder {folder} cannot be read: {e.strerror or e}") from None
    except ValueError as e:
        raise ModelError(f"model {folder}: config.json is not valid JSON ({one_line(e)})") from None
    if not isinstance(raw, dict):
        raise ModelError(f"model {folder}: config.json is not a JSON object")
    return raw


def _load_config(folder: Path, raw: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        with _quiet():
            return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as e:  # transformers raises many kinds, from KeyError to its own validation errors
        kind = raw.get("model_type")
        if kind and str(kind) not in CONFIG_MAPPING:
            raise ModelError(
                f"model {folder} is not supported: transformers has no model type {kind}, and Skim runs no code of a"
                " repository"
            ) from None
        raise ModelError(f"model {folder}: config.json is not usable ({one_line(e)})") from None


def _causal_architecture(folder: Path, raw: dict[str, Any]) -> str:
    """The architecture's class name. Raises ModelError if transformers has no causal language model of that name.

    A model that reads images too counts: its text is served.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    names = raw.get("architectures")
    if not isinstance(names, list) or not names:
        names = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(raw.get("model_type")), "an unknown kind")]
    # BertConfig is in the mapping too, so an architecture that is named is checked by its name.
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()}
    for name in map(str, names):
        if name.endswith("ForCausalLM") or name in known:
            return name
    raise ModelError(f"model {folder} is not a causal language model: its architecture is {names[0]}")


def load_tokenizer(model: str) -> Any:
    """The transformers tokenizer of a model, a folder or a hub name. Raises ModelError if there is none to be used."""
    from transformers import AutoTokenizer

    folder = Path(local_folder(model, weights=False))
    _read_config_file(folder)  # says what is wrong with a folder that holds no model
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise ModelError(f"model folder {folder} has no tokenizer (tokenizer.json)")
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            empty = not tokenizer.get_vocab()
    except Exception as e:
        raise ModelError(f"model {folder}: its tokenizer cannot be loaded ({one_line(e)})") from None
    if empty:
        raise ModelError(f"model {folder}: its tokenizer has no tokens")
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' warnings; real problems are raised as errors."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
