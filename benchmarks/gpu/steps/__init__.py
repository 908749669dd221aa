"""Steps that run on a GPU, each in a process of its own with a limit of time, and their results.

Lives here: what a step is and reports, its process, and the runner, which keeps one JSON file and goes on where an
earlier run ended. Not here: the lists of steps (`benchmarks.gpu.proof.plan`, `benchmarks.gpu.session.plan`).
"""
