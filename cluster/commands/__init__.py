"""The `skim` command line.

Lives here: the commands and what they print. Not here: `skim bench` (benchmarks/), `skim eval` and
`skim calibrate` (evals/).
"""
