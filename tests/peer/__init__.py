"""Programs of others against Skim: vLLM's own tests of its endpoint.

None of their code is kept here. pip gets it when a night runs, into `build/peer`.
"""
