"""Bytes in, bytes out: ASGI middleware, limits of bodies, deferred headers, keep-alive, draining.

Not here: vLLM's app (`router.vllm_front`), anything about one prompt.
"""
