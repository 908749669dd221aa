"""The target on transformers: slow, small, needs no vLLM.

Lives here: the engine and its decoding loop. Not here: anything that is tuned for speed.
"""
