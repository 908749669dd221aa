"""The second baseline of the overhead benchmark: the target behind `ray.serve.llm`, on the running Ray Serve."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray import serve
from ray.serve.schema import ApplicationStatus

from skim_common.errors import SkimError

APP_NAME = "ray-serve-llm"
ROUTE = "/ray-serve-llm"
START_LIMIT_S = 180


@contextmanager
def ray_llm(model: str, engine_options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """Serve the model folder `model` inside the context; gives the URL path of its OpenAI endpoint.

    engine_options: vLLM's. environment: variables of the replica. Raises SkimError if it does not start within
    START_LIMIT_S, and Ray's own errors.
    """
    from ray.serve.llm import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": APP_NAME, "model_source": model},
        engine_kwargs=dict(engine_options),
        deployment_config={"num_replicas": 1, "max_ongoing_requests": 64},
        # Without a GPU in the bundle this is a CPU deployment. The CPU share is only Ray's reservation.
        placement_group_config={"bundles": [{"CPU": 0.1}]},
        runtime_env={"env_vars": dict(environment)},
    )
    app = build_openai_app(
        {"llm_configs": [config], "ingress_deployment_config": {"ray_actor_options": {"num_cpus": 0.1}}}
    )
    try:
        # Serve restarts a failing replica without limit, so waiting for it could take forever.
        serve.run_many(
            [serve.RunTarget(app, APP_NAME, ROUTE)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        _await_running()
        yield ROUTE
    finally:
        # A failed application never finishes stopping, and Ray is shut down soon after.
        serve.delete(APP_NAME, _blocking=False)


def _await_running() -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while (status := serve.status().applications[APP_NAME].status) != ApplicationStatus.RUNNING:
        if status == ApplicationStatus.DEPLOY_FAILED or time.monotonic() > deadline:
            raise SkimError(f"it was {status.value.lower()} after {START_LIMIT_S} s at most; Ray Serve's logs say why")
        time.sleep(0.5)
