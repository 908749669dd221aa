"""The `skim` command line.

Lives here: the commands and what they print. Not here: `skim bench` (benchmarks/) and `skim eval` (evals/).
"""
