"""Before a deployment is bought: which speculators fit a target, how many GPUs a load needs, how fast it will be.

Lives here: pairs (`fit.py`, `candidates.py`); formulas, GPUs, the time and memory of an engine, the sizes of
the pools, all from the models' configs. Not here: the commands, the check of a pair itself (`cluster.serve.preflight`),
the comparison with measurements (`benchmarks.report.planned`).
"""
