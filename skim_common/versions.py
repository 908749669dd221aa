"""The versions of vLLM and Ray that Skim's hooks are made for (docs/hooks.md)."""

import importlib

from skim_common.errors import SkimError

PINNED = {"vllm": "0.29.0", "ray": "2.60.0"}


def check_version(library: str) -> None:
    """Raise SkimError if another version of `library`, vllm or ray, is installed than the one that Skim pins."""
    installed = importlib.import_module(library).__version__
    if installed.partition("+")[0] != PINNED[library]:
        raise SkimError(
            f"Skim changes {library} {PINNED[library]} in places that are not public, and {library} {installed} is"
            f" installed; install {library} {PINNED[library]}"
        )
