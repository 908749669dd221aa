"""Answer quality: generated long-context tasks, at several keep rates and with several selections of the prompt.

Lives here: the measurement behind `skim eval`, its tasks, baselines, table and plot. Not here: speed (`benchmarks/`).
"""
