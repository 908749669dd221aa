"""Queries and keys of vLLM's attention layers: captured while the model runs, and read for scoring.

Not here: scores (`speculator_service.scoring`).
"""
