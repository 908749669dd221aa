"""A deployment as Serve reports it."""

from ray.serve.schema import ApplicationStatusOverview, DeploymentStatusOverview

from cluster.serve.app import APP_NAME


def part(state, replicas, message=""):
    return DeploymentStatusOverview(state, "UNSPECIFIED", replicas, message)


def put(served, **parts):
    served.applications[APP_NAME] = ApplicationStatusOverview("DEPLOYING", "", 0, parts)
