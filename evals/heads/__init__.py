"""The search for a model's retrieval heads, behind `skim heads`: prompts of its own, the choice of heads and weights.

Not here: how heads score a prompt (`speculator_service.scoring.heads`), and the tasks that evaluate (`evals.tasks`).
"""
