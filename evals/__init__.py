"""Answer quality: generated long-context tasks, at several keep rates and with several selections of the prompt.

Lives here: the measurements behind `skim eval`, `skim calibrate` and `skim heads`: tasks, baselines, tables and plots.
Not here: speed (`benchmarks/`).
"""
