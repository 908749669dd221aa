"""A model by name: where its files are, and what its config says.

Not here: weights, engines.
"""
