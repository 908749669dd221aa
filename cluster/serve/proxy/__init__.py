"""The HTTP proxy in front of the routers: HAProxy, TLS, connection draining of pods.

Not here: the routers.
"""
