"""Answer quality: generated long-context tasks, at several keep rates and with several selections of the prompt.

Lives here: the measurements behind `skim eval`, `skim calibrate` and `skim heads`: tasks, baselines, tables and plots;
and the answers of agents (`skim bench agents`).
And `skim models check`: which architectures answer as transformers do; and the page of all results (`report/`).
Not here: speed (`benchmarks/`).
"""
