"""The speculator's scheduler: one mixin per idea on top of vLLM's own.

Lives here: which request runs when, and with which blocks. Not here: what a step computes.
"""
