"""The target: prefills the kept tokens at their original positions and decodes as if nothing were missing.

Lives here: restored positions and the engines that use them (only `vllm_backend/` imports vLLM).
Not here: the speculator, Ray, HTTP.
"""
