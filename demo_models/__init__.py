"""The demo pair: its documents and `skim demo`. The weights are in the repository alone (README.md).

Benchmarks, evals, examples and tests use the documents. The product imports nothing of it.
"""
