"""Programs of others against Skim: vLLM's own tests of its endpoint (vllm_suite), and clients that people use.

None of their code is kept here. pip gets it when a night runs, into `build/peer`.
"""
