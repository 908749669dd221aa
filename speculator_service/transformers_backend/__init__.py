"""The speculator on transformers: small and slow, without vLLM.

Lives here: the engine and its sessions. Not here: anything tuned for speed.
"""
