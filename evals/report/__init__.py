"""`python -m evals.report` writes docs/results.md and its plots from benchmarks/results.

Lives here: the page's order, its claims, its prose. Not here: the sections, each beside its benchmark or evaluation.
"""
