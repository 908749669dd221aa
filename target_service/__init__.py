"""The target: it prefills the kept tokens at their original positions and decodes the answer.

Lives here: the target's engines, and its side of drafting (only `vllm_backend/` imports vLLM).
Not here: the speculator, Ray, HTTP.
"""
