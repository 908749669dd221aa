"""TTFT, decode and scoring at real model sizes on one big GPU, with random weights: `python -m benchmarks.gpu`.

Lives here: sizes, the memory they need, and the measurements. See README.md beside this file. Not here: quality, which
random weights do not have.
"""
