"""Before a deployment is bought: how many GPUs a load needs, how fast it will be.

Lives here: formulas, GPUs, the time and memory of an engine, the sizes of the pools, all from the models' configs.
Not here: the command, the comparison with measurements (`benchmarks.report.planned`).
"""
