"""The speculator on vLLM: query capture, key reading, scored requests and drafting sessions.

Lives here: changes to vLLM for the speculator alone. Not here: changes that the target needs too (`vllm_hooks/`).
"""
