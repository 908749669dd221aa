"""From scores to kept tokens, in numpy: units of text, what a selection keeps, and what later turns add.

Not here: where the scores come from (`scoring`).
"""
