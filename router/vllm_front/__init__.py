"""The only folder of the router that knows vLLM: its HTTP app, `EngineClient` and renderer, and the program that checks options.

Not here: decisions and calls of the pools.
"""
