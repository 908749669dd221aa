"""The second baseline of the overhead: the target alone behind `ray.serve.llm`, on a Ray Serve that runs already."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray import serve
from ray.serve.schema import ApplicationStatus

from kv_transfer.errors import SkimError

APP_NAME = "ray-serve-llm"
ROUTE = "/ray-serve-llm"
START_LIMIT_S = 180


@contextmanager
def ray_llm(model: str, engine_options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """Serve the model folder `model` while the context lasts; gives the path of its OpenAI endpoint's root.

    engine_options: as in vLLM. environment: of the replica. Raises SkimError if it does not start within
    START_LIMIT_S, and what Ray raises.
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
    try:
        # Serve tries again and again to start what fails: to wait for it would be to wait forever.
        serve.run_many(
            [serve.RunTarget(app, APP_NAME, ROUTE)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        _await_running()
        yield ROUTE
    finally:
        # It takes its time to stop, and a failed one forever; Ray itself ends soon.
        serve.delete(APP_NAME, _blocking=False)


def _await_running() -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while (status := serve.status().applications[APP_NAME].status) != ApplicationStatus.RUNNING:
        if status == ApplicationStatus.DEPLOY_FAILED or time.monotonic() > deadline:
            raise SkimError(f"it was {status.value.lower()} after {START_LIMIT_S} s at most; Ray Serve's logs say why")
        time.sleep(0.5)
