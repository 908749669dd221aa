"""`python -m benchmarks.gpu proof`: shows on one GPU, step by step, that what was only read and run on CPU holds there.

Lives here: the runner, which starts each step in a process of its own and keeps one JSON file, and the steps, one file
per topic. `plan.py` lists them. README.md of the folder above describes the file. Not here: speed (`benchmarks.gpu
scoring|ttft|decode`, which some steps call) and comparisons on CPU (tests/engine).
"""
