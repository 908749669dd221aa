"""From queries and keys to kept tokens: importance scores, and the selection made from them.

Lives here: pure torch, and the same scores in Triton. Not here: where queries and keys come from.
"""
