"""The second baseline of the overhead: the target alone behind `ray.serve.llm`, on a Ray Serve that runs already."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray import serve

APP_NAME = "ray-serve-llm"
ROUTE = "/ray-serve-llm"


@contextmanager
def ray_llm(model: str, engine_options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """Serve the model folder `model` while the context lasts; gives the path of its OpenAI endpoint's root.

    engine_options: as in vLLM. environment: of the replica. Raises what Ray raises if it does not start.
    """
    from ray.serve.llm import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": APP_NAME, "model_source": model},
        engine_kwargs=dict(engine_options),
        deployment_config={"num_replicas": 1, "max_ongoing_requests": 64},
        # Without a GPU in the bundle it is a CPU deployment; the share of a core is only what Ray sets aside.
        placement_group_config={"bundles": [{"CPU": 0.1}]},
        runtime_env={"env_vars": dict(environment)},
    )
    app = build_openai_app(
        {"llm_configs": [config], "ingress_deployment_config": {"ray_actor_options": {"num_cpus": 0.1}}}
    )
    serve.run(app, name=APP_NAME, route_prefix=ROUTE)
    try:
        yield ROUTE
    finally:
        serve.delete(APP_NAME)
