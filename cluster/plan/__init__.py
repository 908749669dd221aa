"""How many GPUs a deployment needs, and how fast it will be: computed from the models' configs, before any is bought.

Lives here: formulas, GPUs, the time and memory of an engine, the sizes of the pools. All of it is pure.
Not here: the command (`cluster.commands.plan`), and the comparison with measurements (`benchmarks.report.planned`).
"""
