"""Time to first token, decoding and scoring at real model sizes on one GPU: `python -m benchmarks.gpu`.

Lives here: the model sizes, the memory they need, and the measurements; README.md describes them. The weights are
random. Not here: answer quality, which random weights do not have.
"""
