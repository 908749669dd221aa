"""The deployment on Kubernetes: objects for the KubeRay operator, made from the same config as `skim serve` runs.

Lives here: the `kubernetes:` section of a config and the builders of the objects, as plain dicts. Not here: anything
that talks to a cluster.
"""
