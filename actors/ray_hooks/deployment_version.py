"""A version for each deployment: Serve keeps replicas of the same version.

For an application that is run from Python, Serve's own version is random: any change would restart every engine. Its
public option `version` has been removed.
"""

from typing import Any

from ray import serve
from ray.serve import Application


def set_version(deployment: serve.Deployment, version: str) -> None:
    """Call it before `bind`, which copies the deployment."""
    deployment._version = version


def deployment_name(application: Application) -> Any:
    """The name of the deployment that the application binds."""
    return application._bound_deployment.name
