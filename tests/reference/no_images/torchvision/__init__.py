"""Stands in for torchvision, first on PYTHONPATH, so that the text part of models that read images runs on CPU.

vLLM's and transformers' modules of such models import it for images, which no test sends. Its PyPI builds are for CUDA,
and do not load beside a CPU build of torch. Each name in it is a class that does nothing.
"""

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

__version__ = "0.0"
NAMES = ("transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional", "io")


class _Nothing(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)


def _nothing(name: str) -> Any:
    return _Nothing(name, (), {})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)


for name in NAMES:
    full = f"{__name__}.{name}"
    module = sys.modules[full] = _Module(full)
    module.__spec__ = importlib.machinery.ModuleSpec(full, None, is_package=True)
    module.__path__ = []
    parent, _, child = full.rpartition(".")
    setattr(sys.modules[parent], child, module)
