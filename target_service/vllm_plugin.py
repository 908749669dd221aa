"""The `vllm.general_plugins` entry point of the target, which vLLM calls in each of its processes."""


def register() -> None:
    """Leave vLLM as it is: the hooks come with our worker and scheduler classes, so other engines never have them."""
