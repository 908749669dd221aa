"""The speculator's scheduler: vLLM's scheduler with one mixin per idea.

Lives here: the choice of the requests of a step and of their blocks. Not here: the computation of a step.
"""
