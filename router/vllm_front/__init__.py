"""The only folder of the router that knows vLLM: its HTTP app, `EngineClient`, renderer, and checks before a start.

Not here: decisions and calls of the pools.
"""
