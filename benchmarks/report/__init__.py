"""`python -m benchmarks.report` writes docs/results.md and its plots from benchmarks/results.

Not here: measurements.
"""
