"""Processes that are forked from one that has imported vLLM: the import takes most of a tiny engine's start."""

from multiprocessing.context import ForkContext, ForkProcess


class _Engine(ForkProcess):
    """vLLM loads plugins once. The engine loads them again, because Skim's plugin notes errors for each process."""

    def run(self) -> None:
        from vllm import plugins

        plugins.plugins_loaded = False
        super().run()


class _Engines(ForkContext):
    Process = _Engine


def fork_engines() -> None:
    """From now on this process forks vLLM's engine processes, and reads model classes here in place of a subprocess."""
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils

    utils.get_mp_context = _Engines
    registry._run_in_subprocess = lambda function: function()
