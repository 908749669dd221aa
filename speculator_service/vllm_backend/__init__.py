"""The speculator on vLLM: query capture, key reading, scored requests and drafting sessions.

Lives here: what only the speculator does to vLLM. Not here: what the target does too (`vllm_hooks/`).
"""
