"""A model by name: where its files are, what its config says, what a read costs, and the text of its tokens.

Not here: engines.
"""
