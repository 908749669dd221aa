"""Lets vLLM's CPU platform use the Ray executor, in every Python process with this folder in PYTHONPATH.

The platform has no `ray_device_key`, so vLLM refuses it (vllm.v1.executor.ray_utils.initialize_ray_cluster). Here each
rank takes one of Ray's GPUs, which the nodes of a test claim to have. The model still runs on CPU.
"""

import importlib.abc
import importlib.util
import sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != "vllm.platforms.cpu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            module.CpuPlatform.ray_device_key = "GPU"

        spec.loader.exec_module = execute_and_change
        return spec


sys.meta_path.insert(0, _Finder())
