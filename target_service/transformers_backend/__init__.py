"""The target on transformers: small and slow, without vLLM.

Lives here: the engine and its decoding loop. Not here: anything tuned for speed.
"""
