"""What selection does to answers: generated long-context tasks, asked at several keep rates and by several selectors.

Lives here: the measurement behind `skim eval`, its tasks, baselines, table and plot. Not here: speed (`benchmarks/`).
"""
