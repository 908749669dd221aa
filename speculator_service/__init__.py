"""The speculator: reads the whole prompt, scores its tokens with its own attention, chooses what to keep.

Lives here: scoring, selection, and the engines that feed them (only `vllm_backend/` imports vLLM).
Not here: the target, Ray, HTTP.
"""
