"""A speculator and a target in one process, without Ray and HTTP: for the Python API, the tools, benchmarks and evals.

Lives here: `Pair` for users, `AsyncPair` below it, prompts and selections as both use them. Importing it loads neither
Ray, torch, transformers nor vLLM. Not here: the engines themselves, and anything that serves several clients.
"""
