"""What both services do to vLLM: restored positions, position-aware block hashes, start of an engine, adapters.

Not here: hooks of one service alone. This file and `start_up.py` do not import vLLM at module level: vLLM itself
imports them in each of its processes.
"""
