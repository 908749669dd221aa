"""The speculator on transformers: slow, small, needs no vLLM.

Lives here: the engine and its sessions. Not here: anything that is tuned for speed.
"""
