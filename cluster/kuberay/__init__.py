"""The deployment on Kubernetes: objects for the KubeRay operator, made from the same config that `skim serve` takes.

Lives here: the `kubernetes:` section of a config and the builders of the objects, as plain dicts. Not here: code
that calls a cluster.
"""
