"""A speculator whose tokenizer is not the target's: it reads, scores and drafts the same text in its own tokens.

Lives here: the translation of token ids through text, and the engine that applies it. Not here: the engines below it.
"""
