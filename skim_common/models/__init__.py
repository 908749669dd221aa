"""A model by name: where its files are, and what its config says, what it costs to read.

Not here: weights, engines.
"""
