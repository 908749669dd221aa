"""Finds parts of the objects and of the Serve config in them."""

from cluster.kuberay.service import ray_service
from tests.unit.cluster.kuberay.conftest import ROOT

DEMO = ROOT / "examples" / "demo.yaml"


def service_of(config):
    return ray_service(config)["spec"]


def pods(objects):
    """Every pod template, with a name of its object's kind and its group."""
    for thing in objects:
        spec = thing.get("spec", {})
        cluster = spec.get("rayClusterConfig") or spec.get("rayClusterSpec")
        if cluster:
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                yield f"{thing['kind']} {group.get('groupName', 'head')}", group["template"]


def pools_of(router):
    """The pools to which the router's deployment is bound."""
    bound = (*router.init_args, router.init_kwargs["prefill"])
    return [pool._bound_deployment for pool in bound if pool]
