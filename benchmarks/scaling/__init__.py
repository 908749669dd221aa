"""Pools that grow: replicas, routers, affinity."""
