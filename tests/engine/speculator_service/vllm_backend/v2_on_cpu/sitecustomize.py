"""First on PYTHONPATH, lets vLLM's V2 model runner run the speculator on CPU, in Triton's interpreter.

It does the same as for the target, and one thing more: vLLM's memory profile samples from uninitialised logits, which
may all be NaN. A GPU's argmax then gives any index; numpy's, in the interpreter, raises.
"""

import runpy
from pathlib import Path

import numpy as np

runpy.run_path(str(Path(__file__).parents[3] / "vllm_hooks" / "v2_on_cpu" / "sitecustomize.py"))

_nanargmax = np.nanargmax


def _argmax_of_anything(values, *args, **kwargs):
    try:
        return _nanargmax(values, *args, **kwargs)
    except ValueError:
        return np.argmax(values, *args, **kwargs)


np.nanargmax = _argmax_of_anything
