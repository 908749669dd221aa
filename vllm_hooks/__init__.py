"""What both services do to vLLM: restored positions, position-aware block hashes, engine start, symbol checks.

Lives here: hooks into vLLM that the speculator and the target share. Not here: hooks of one service alone.
This file and `start_up.py` import no vLLM when they are imported: vLLM loads `start_up.py` in each of its processes.
"""
