"""`python -m benchmarks.gpu session`: all that is measured on a GPU, in the order of its value, within some minutes.

Lives here: the list of its steps, what each runs and writes, and the summary. The runner is `benchmarks.gpu.steps`. Not
here: the measurements themselves (`benchmarks.gpu.ttft`, `served`, `benchmarks.load.interference`, `evals`).
"""
