"""Which speculators fit a target: candidates on this machine, their check and their cost; known families.

Lives here: `skim pairs`. Not here: the check of a pair itself (`cluster.serve.preflight`).
"""
