"""Which architectures of vLLM's registry serve in both roles, found by running tiny random models of them.

Lives here: how such a model is made, the comparison with transformers, and the sweep behind `skim models check`.
"""
