"""The only folder of the router that knows vLLM: its HTTP app, `EngineClient` and renderer, and the check of options.

Not here: decisions and calls of the pools.
"""
