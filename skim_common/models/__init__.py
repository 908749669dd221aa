"""A model by name: where its files are, what its config says, what a read costs, and how its weights are known again.

Not here: engines.
"""
