"""What the results of benchmarks have in common: machine, progress, statistics, plots; sections without a benchmark.

Not here: measurements, and the page of all results (`evals/report/`, which shows those of evals, too).
"""
