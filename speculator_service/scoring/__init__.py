"""From queries and keys to scores: all heads or the heads of a profile, in torch and in Triton.

Not here: the source of queries and keys (`vllm_backend`), and what the scores select (`selection`).
"""
