"""From queries and keys to kept tokens: the importance of the prompt tokens, and the selection.

Lives here: scoring in torch, the same scoring in Triton, head profiles, and the selection. Not here: the source of
queries and keys.
"""
