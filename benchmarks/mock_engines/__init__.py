"""Engines without a model, for tests, for benchmarks of what is around an engine, and to try a deployment.

Lives here: what `engine: mock` names. The product imports nothing of it: its factories take engine classes by name.
"""
