"""Known families of models, and whether their pairs work. docs/models.md has the same table."""

from typing import NamedTuple


class KnownPair(NamedTuple):
    """Names without their owner. state: tested, by reading, or refused. about: the limit, or the reason."""

    family: str
    speculator: str
    target: str
    state: str
    about: str


KNOWN = (
    KnownPair(
        "demo pair", "demo_models/speculator", "demo_models/target", "tested", "trained for one kind of question"
    ),
    KnownPair("Llama 3.x", "Llama-3.2-1B, 3B", "Llama-3.1-8B, 70B, 405B, Llama-3.3-70B", "by reading", "131072 tokens"),
    KnownPair("Llama 3.x", "Llama-3.1-8B", "Llama-3.1-70B, 405B, Llama-3.3-70B", "by reading", "131072 tokens"),
    KnownPair("Qwen 2.5", "Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-1.5B", "tested", "on CPU; 32768 tokens"),
    KnownPair("Qwen 2.5", "Qwen2.5-0.5B, 1.5B, 3B", "Qwen2.5-14B, 32B, 72B", "by reading", "32768 tokens"),
    KnownPair("Qwen 3", "Qwen3-0.6B, 1.7B, 4B", "Qwen3-14B, 32B, 235B-A22B", "by reading", "40960 tokens"),
    KnownPair(
        "Qwen 3", "Qwen3-0.6B", "Qwen3-30B-A3B", "by reading", "larger ones gain little: 3B parameters are active"
    ),
    KnownPair(
        "Qwen 3", "Qwen3-0.6B", "Qwen3-Next-80B-A3B", "by reading", "the target needs `approximate_positions: true`"
    ),
    KnownPair("Qwen 3", "Qwen2.5 models", "Qwen3 models", "by reading", "two tokenizers"),
    KnownPair("Mistral", "Mistral-7B-v0.3", "Mistral-Large-2407", "by reading", "32768 tokens"),
    KnownPair("Gemma 3", "gemma-3-4b", "gemma-3-12b, 27b", "by reading", "every sixth layer is scored"),
    KnownPair(
        "Gemma 3",
        "gemma-3-1b",
        "gemma-3-4b, 12b, 27b",
        "by reading",
        "32768 tokens; refused if the 1B's tokenizer lacks the image token",
    ),
    KnownPair("DeepSeek", "R1-Distill-Qwen-1.5B", "R1-Distill-Qwen-14B, 32B", "by reading", "131072 tokens"),
    KnownPair("DeepSeek", "R1-Distill-Llama-8B", "R1-Distill-Llama-70B", "by reading", "131072 tokens"),
    KnownPair("DeepSeek", "DeepSeek-V2-Lite", "DeepSeek-V2", "by reading", "163840 tokens"),
    KnownPair("DeepSeek", "DeepSeek-V2-Lite", "DeepSeek-V3, R1", "by reading", "two tokenizers; 163840 tokens"),
    KnownPair("DeepSeek", "DeepSeek-V2-Lite", "DeepSeek-V4", "refused", "caches addressed by position"),
    KnownPair(
        "two families", "SmolLM2-135M", "Qwen2.5-Coder-0.5B, 1.5B", "tested", "two tokenizers; on CPU; 8192 tokens"
    ),
    KnownPair(
        "gpt-oss", "gpt-oss-20b", "gpt-oss-120b", "by reading", "gains little: 3.6B and 5.1B parameters are active"
    ),
)
