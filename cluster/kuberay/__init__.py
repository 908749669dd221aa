"""The deployment on Kubernetes: objects for the KubeRay operator, made from the same config that `skim serve` takes.

Lives here: the builders of the objects, as plain dicts. Not here: code that calls a cluster, and the settings
(`cluster/config/kubernetes.py`).
"""
