"""What both services do to vLLM: restored positions, position-aware block hashes, start of an engine, adapters; and the
prompt by which they find out whether that works.

Not here: hooks of one service alone. This file, `start_up.py` and `needle_prompt.py` do not import vLLM at module
level: vLLM itself imports the first two in each of its processes.
"""
