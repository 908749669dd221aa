"""What both services do to vLLM: restored positions, position-aware block hashes, engine start.

Lives here: hooks into vLLM that the speculator and the target share, and the adapters, which the router checks before a
start. Not here: hooks of one service alone.
This file and `start_up.py` do not import vLLM at module level. vLLM itself imports them in each of its processes.
"""
